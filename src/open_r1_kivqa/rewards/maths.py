r"""Mathematical answers: equal as text, as numbers, or by math-verify (`math`).

The final answer is what stands in `\boxed{…}`, else behind "answer is", else the whole text. Boxes, and numbers and formulas in prose, must all say the same: whoever names several
values has given a list, which equals only a list. Case counts: `X` is not `x`.

math-verify (sympy) never ends on `9^9^9^9`, so a process of its own compares (`maths_worker`): one a process that scores, started by the first answer that needs it.
"""

import logging
import re
from fractions import Fraction
from itertools import accumulate

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.answer import plain
from open_r1_kivqa.rewards.maths_worker import SECONDS, compare
from open_r1_kivqa.rewards.text import boxed

MAX_BOXES = 20_000  # characters at the end of an answer that boxes are looked for in
MAX_READ = 4_000  # characters of an answer without a box
MAX_VALUE = 500  # characters of one value that is still compared by math-verify
MAX_DEPTH = 10  # brackets of a value within each other: math-verify's parser takes seconds for 15
MAX_NAMES = 50  # places where a value names variables
MAX_VALUES = 16  # values of one answer, and references of one row, that are compared by math-verify

logger = logging.getLogger(__name__)

ANSWER_IS = re.compile(r"\banswer\b(?:[^.\n:=]{0,40}?\b(?:is|are|equals)\b|\s*[:=])\s*:?|####", re.IGNORECASE)
SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])|\n")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox|operatorname|textbf|mathbf)\s*\{[^{}]*\}|\\(?:begin|end)\s*\{[a-z*]+\}")
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|max|min|gcd|lcm"
WORD = re.compile(
    rf"(?<![\\A-Za-z])(?!(?:{FUNCTIONS}|sqrt|and|infty|inf)(?![A-Za-z]))(?:(?!(?-i:[A-Z]{{3}})(?![A-Za-z]))[A-Za-z]{{3,}}|(?:is|it|so|to|of|in|we|no|at|by|be|if|as|an)(?![A-Za-z]))",
    re.IGNORECASE,
)
HUGE = re.compile(r"\^\{?\d{7}|\d{6}\s*!|\d\s*\^\s*\{?\s*\(?\d+\s*\^")  # 2^9999999, 100000!, 9^{9^9}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
IN_PROSE = re.compile(
    rf"(?<![\w\\.^])[-+]?[\d.(√π][\d.,\s()+\-*/^×÷·=√π%:⁄]*+(?:(?:{'|'.join(SCALES)})\b|(?=(?:cm|mm|km|kg|mg|ml|ft|mph)\b|\{{?\\circ)|(?<=[\s,:%])|(?![\w\\^{{]))"
)
LEFT_OVER = re.compile(r"(?<![\w^_{.])\d")  # a number in prose that is none of IN_PROSE: 3rd, 2x
DENIED = re.compile(r"(?:\bnot|n't)\s+(?:equal\s+to\s+)?[-+$\\(]*\d", re.IGNORECASE)
PLAIN_NUMBER = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|0,\d+|\d+(?:\.\d*)?|\.\d+)")
SYMBOLS = {
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∞": r"\infty ",
    "π": r"\pi ",
    "°": r"^\circ ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "∈": r"\in ",
    "θ": r"\theta ",
    "≈": r"\approx ",
    **dict.fromkeys("€£¥₹", ""),
}


def math(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer's value equals a reference's, else 0.0, also for one that can't be compared within the limits. None if the references are a range, or the row has none.

    math-verify's rules hold: six decimals, `1/2` is `0.5`, `50%` is `0.5` and `50`, a unit behind a number is dropped, sets have no order.
    """
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    given = values(answer)
    if not given:
        return 0.0
    whole = _key(latex(answer)) if len(answer) <= MAX_READ else ""
    candidates = [*given, ", ".join(given)] if len(given) > 1 else given
    keys = [_key(value) for value in candidates]
    rest = []
    for reference in sample.answers:
        expected = ", ".join(values(reference))
        if (whole and whole == _key(latex(reference))) or (
            expected and _agree([key == _key(expected) for key in keys])
        ):
            return 1.0
        equal = _equal_numbers(candidates[0], expected) if len(candidates) == 1 else None
        if equal:
            return 1.0
        if equal is None and _comparable(expected):
            rest.append(expected)
    if not rest or len(given) > MAX_VALUES or not all(map(_comparable, candidates)):
        return 0.0
    found = compare(tuple(rest[:MAX_VALUES]), tuple(candidates))
    if found is None:
        _report(answer, sample)
        return 0.0
    return float(any(_agree([i in equals for equals in found]) for i in range(len(rest[:MAX_VALUES]))))


def _agree(right: list[bool]) -> bool:
    """Whether an answer is right if these of its values are; of several the last stands for all of them as a list."""
    return right[-1] or all(right[:-1]) and len(right) > 1


def values(text: str) -> list[str]:
    """The final values that a text gives, as LaTeX, each once; [] if it has none that can be read."""
    boxes = boxed(text[-MAX_BOXES:])
    if boxes:
        parts = list(dict.fromkeys(boxes))
        if len(parts) > MAX_VALUES:
            return []
    elif len(text) > MAX_READ:
        return []
    else:
        ends = [match.span() for match in ANSWER_IS.finditer(text)]
        starts = [start for start, _ in ends[1:]] + [len(text)]
        said = [text[end:start].strip() for (_, end), start in zip(ends, starts, strict=False)]
        parts = [SENTENCE_END.split(part, maxsplit=1)[0] for part in said if part.strip("*.:")] or [text]
    found = [latex(value) for part in parts if len(part) <= MAX_READ for value in _in_prose(part)]
    return list(dict.fromkeys(value for value in found if value))


def _in_prose(text: str) -> list[str]:
    """The formulas and numbers that a text names, [] if one of them can't be told from the prose; the text itself if it is one."""
    text = plain(text)
    if DENIED.search(text):
        return []
    formulas = ["".join(groups) for groups in FORMULA.findall(text)]
    rest = FORMULA.sub(" ", text)
    if formulas or WORD.search(IN_TEXT.sub("", rest)):
        if LEFT_OVER.search(IN_PROSE.sub(" ", rest)):
            return []
        numbers = [_balanced(number) for number in IN_PROSE.findall(rest) if re.search(r"\d|π", number)]
        return formulas + numbers or [text]
    return [text]


def _balanced(number: str) -> str:
    number = number.rstrip(" \n\t.,:+-*/^×÷·=")
    return number if number.count("(") == number.count(")") else number.strip("()")


def latex(text: str) -> str:
    r"""A value in one spelling of LaTeX: without signs of markup around it, `½`, `x²`, `1e5`, `1 000`, `2 million` and `sqrt(2)` written out. Its case stays."""
    text = re.sub(r"(?<=[\w)])\*\*(?=[\w(])", "^", plain(text)).replace("**", "").replace("`", "")
    text = re.sub(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]|\\displaystyle|\\left(?![a-z])|\\right(?![a-z])|\\!", "", text)
    text = re.sub(r"\\[,;: ]|~|\\q?quad(?![a-z])", " ", text)
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
    text = re.sub(r"\\?(?<![A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", r"\sqrt")
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"(?<![\d.,])([1-9]\d{0,2}(?: \d{3})++)(?![\d.])", lambda match: match[1].replace(" ", ""), text)
    text = re.sub(r"(?<![\w.\\])(\d+) (\d+)[/⁄](\d+)(?!\d)", r"\1\\frac{\2}{\3}", text).replace("⁄", "/")
    text = re.sub(r"(?<=\d)[eE]([+-]?\d+)(?!\w)", r"\\times 10^{\1}", text)
    text = re.sub(r"\^\s?([+-]?\d+)", r"^{\1}", text)
    text = re.sub(
        rf"(?<=[\d}}])\s*(?:\\text\s*\{{\s*)?\b({'|'.join(SCALES)})\b(?:\s*\}})?",
        lambda match: rf"\times 10^{{{SCALES[match[1]]}}}",
        text,
    )
    text = re.sub(rf"(?<![\\A-Za-z])({FUNCTIONS})(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"^\s*\\approx(?![a-z])", "", text)
    return " ".join(text.split()).rstrip(" .;,").lstrip(" ;,")


def _key(value: str) -> str:
    """Equal for two texts that are the same but for spaces between other things than numbers, `\\text`, and the capital that a word begins with."""
    value = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", value)
    value = re.sub(r"(?<![\d.,])\s+|\s+(?!\d)", "", value)  # "5 6" is not 56
    return re.sub(r"(?<![\\A-Za-z])[A-Z][a-z]{2,}", lambda match: match[0].lower(), value)


def _equal_numbers(a: str, b: str) -> bool | None:
    """Whether two plain numbers are equal by math-verify's rule, to six decimals if one has any; near zero, where that says little, also to a thousandth. None if they are none."""
    if not (len(a) <= 60 and len(b) <= 60 and PLAIN_NUMBER.fullmatch(a) and PLAIN_NUMBER.fullmatch(b)):
        return None
    a, b = (number.replace(",", "." if number.lstrip("+-").startswith("0,") else "") for number in (a, b))
    x, y = Fraction(a), Fraction(b)
    if x == y or not ("." in a or "." in b):
        return x == y
    return round(x, 6) == round(y, 6) and abs(x - y) * 1000 <= max(abs(x), abs(y))


def _comparable(value: str) -> bool:
    """Whether math-verify may see a value: one that it ends with soon, as far as can be told, and reads rightly.

    It would read words as products of their letters ("pots" as "stop"), add up "2 3", read "7_5" as 7, and drop what stands in a `\\text` at the end.
    """
    outside = IN_TEXT.sub("", value)
    return (
        0 < len(value) <= MAX_VALUE
        and _depth(value) <= MAX_DEPTH
        and not HUGE.search(value)
        and len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]", outside)) <= MAX_NAMES
        and not re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", outside)
        and not re.search(r"(?<!_)\d\.?\s+\d|\d\s*_", outside)
        and not any(re.search(r"\d|\b(?:or|and)\b\s*\w", text) for text in IN_TEXT.findall(value))
    )


def _depth(value: str) -> int:
    return max(accumulate((char in "([{") - (char in ")]}") for char in value))


unfinished = 0  # answers of this process that were given up, each of which got 0.0


def _report(answer: str, sample: Sample) -> None:
    """Counts an answer that was given up, and says so for the 1st, 10th, 100th…"""
    global unfinished
    unfinished += 1
    if str(unfinished).strip("0") == "1":
        logger.warning(
            f"math: {unfinished} answer(s) so far could not be compared with their reference within {SECONDS:g} s and 1 GiB and got 0; the last is {answer[:80]!r} ({sample.source})."
        )
