"""Whether a short answer is right: 1 or 0 by comparing it with the references of its row.

exact    equal to any reference after `normalise`;
numeric  the same numbers as a reference, or inside its range (limits included);
default  `numeric` if the references are a range or the row's `answer_type` is numeric, else `exact`.

A method returns None where it does not apply to the row (no number in any reference, say): TRL then leaves that reward out for the row. Training must not be fooled, so there is
no partial credit, and `numeric` demands a plain answer: see `numeric`. No function raises, whatever the answer's text.
"""

import re
import unicodedata
from collections.abc import Iterable

from open_r1_kivqa.data.samples import Sample

MAX_NUMERIC_WORDS = 32
ROOM = (
    1000  # characters that an answer may be longer than four times the longest reference; a longer one is wrong unread
)
NUMERIC_TYPES = {"numeric", "numerical", "number"}
TO_SPACE = set("-/|_")
DELETED_SYMBOLS = set("`´^~<>=")  # besides all that Unicode calls punctuation
POWER_SIGNS = {f"{ord(char):04X}" for char in "0123456789+\u2212"}  # as Unicode names what stands behind a superscript


def plain(text: str) -> str:
    """`text` in NFKC with ASCII digits and `-` for every dash and minus. Powers keep a caret (`km²` → `km^2`) and mixed fractions a space (`2½` → `2 1⁄2`), or NFKC would glue them."""
    if text.isascii():
        return text
    out, in_power = [], False
    for char in text:
        form = unicodedata.decomposition(char)
        power = form.startswith("<super>") and form[8:] in POWER_SIGNS
        if power and not in_power:
            out.append("^")
        elif form.startswith("<fraction>") and out and out[-1].isdecimal():
            out.append(" ")
        out.append(char)
        in_power = power
    text = unicodedata.normalize("NFKC", "".join(out))
    return "".join(map(_ascii_sign, text))


def _ascii_sign(char: str) -> str:
    if char.isascii():
        return char
    if char == "\u2212" or unicodedata.category(char) == "Pd":
        return "-"
    if char in "\u066b\u066c":  # Arabic decimal and thousands separator
        return "." if char == "\u066b" else ","
    if char in "‘’":
        return "'"
    digit = unicodedata.decimal(char, None)
    return char if digit is None else str(digit)


def normalise(text: str) -> str:
    """The form in which `exact` compares answers.

    Case, accents (Latin, Greek, Cyrillic), punctuation, articles that a word follows, and the kind of digits, dashes and spaces don't matter; `&` is "and". What changes a number
    stays: its decimal point and a minus sign before it (thousands commas go). Hyphens and slashes become spaces; other punctuation is deleted. May be empty.
    """
    text = unicodedata.normalize("NFKD", plain(text).casefold())
    # Accents only: the vowel signs of other scripts have blocks of their own.
    text = "".join(char for char in text if not "\u0300" <= char <= "\u036f")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", unicodedata.normalize("NFKC", text).replace("&", " and "))
    kept = []
    for i, char in enumerate(text):
        before, after = text[i - 1 : i], text[i + 1 : i + 2]
        if char in ".," and _digit(before) and _digit(after):
            kept.append(char)
        elif char == "-" and _digit(after) and not before.isalnum():
            kept.append(char)
        elif char in TO_SPACE:
            kept.append(" ")
        elif char == "^" and _digit(before):
            kept.append(char)
        elif char not in DELETED_SYMBOLS and not unicodedata.category(char).startswith("P"):
            kept.append(char)
    words = "".join(kept).split()
    followed = [word for word in words[:-1] if word not in {"a", "an", "the"}]
    return " ".join(followed + words[-1:])


def _digit(char: str) -> bool:
    return char.isascii() and char.isdigit()


NUMBER = re.compile(
    r"""
    (?P<minus> (?<![\w%°)\]])- | \b(?:minus|negative)\s++ )?+            # a dash after a digit or a unit is a range's, not a minus
    [$€£¥₹]?+
    (?<![^\W_])                                                          # not inside a word: km2, CO2
    (?: (?:(?P<whole>\d++)\s)?(?P<top>\d++)⁄(?P<bottom>\d++)             # ½  2 1⁄2
      | (?P<commas>[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}(?!\d)(?:\.\d++)?)     # 1,000  12,34,567.8
      | (?P<spaces>[1-9]\d{0,2}(?:[ ']\d{3})+(?!\d)(?:[.,]\d++)?)        # 1 000  1'000
      | (?P<points>[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\d)(?:,\d++)?)          # 1.000.000
      | (?P<simple>\d++(?:[.,]\d++)?|\.\d++)                             # 1000  0.5  0,5  .5
    )
    (?:e(?P<exponent>[+-]?\d++))?+
    (?:\s?(?P<scale>hundred|thousand|million|billion|trillion)\b)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
SCALES = {None: 0, "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def numbers(text: str) -> list[float]:
    """The numbers written in `text`, in order; too large ones are inf, a division by zero is nan.

    Understands digits of any script, separators of thousands (`1,000`, `1 000`, `1'000`, `1.000.000`), decimal points and commas, exponents (`1e6`, `×10⁶`), `½`, minus signs,
    "million" and the like. `5-7` is 5 and 7; digits within a word or a power of a unit (`km²`) are not numbers. A lone `1.000` is 1.
    """
    text = plain(text)
    text = re.sub(r"(?<=[^\W\d_])\^[+-]?\d++", "", text)  # km^2
    text = re.sub(r"(?<=\d)\s?[x×*·⋅]\s?10\^([+-]?\d++)", r"e\1", text)  # 1.2×10^6
    text = re.sub(r"(?<![\w.,])10\^([+-]?\d++)", r"1e\1", text)
    return [_value(match) for match in NUMBER.finditer(text)]


def _value(match: re.Match) -> float:
    scale = SCALES[match["scale"] and match["scale"].lower()]
    if match["top"]:
        bottom = float(match["bottom"])
        value = float(match["whole"] or 0) + float(match["top"]) / bottom if bottom else float("nan")
        value *= 10.0**scale
    else:
        if match["commas"]:
            digits = match["commas"].replace(",", "")
        else:
            digits = match["simple"] or (match["spaces"] or match["points"].replace(".", "")).replace(" ", "").replace(
                "'", ""
            )
            digits = digits.replace(",", ".")
        value = float(f"{digits}e{match['exponent'] or scale}")  # one conversion: 1.4 million is exactly 1400000
        if match["exponent"]:
            value *= 10.0**scale
    return -value if match["minus"] else value


ALTERNATIVES = {
    "or": re.compile(r"\bor\b", re.IGNORECASE),
    "/": re.compile(r"(?<![^\W\d_])/|/(?![^\W\d_])"),  # km/h is a unit
    "|": re.compile(r"\|"),
    ";": re.compile(r";"),
}


def exact(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer equals a reference after `normalise`, else 0.0, also for an answer of which nothing is left. None if the references are a range, or the row has none."""
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    if too_long(answer, sample.answers):
        return 0.0
    answer = normalise(answer)
    return float(answer != "" and any(answer == normalise(reference) for reference in sample.answers))


def too_long(answer: str, references: Iterable[str]) -> bool:
    return len(answer) > 4 * max(map(len, references), default=0) + ROOM


def numeric(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer's numbers are those of a reference, or lie inside its range; else 0.0. None if no reference has a number.

    A range takes one number, or two ascending ones that both lie inside. Guards against answers that hedge come first: at least one number; at most 32 words; none of
    "or", "/", "|", ";" unless a reference (or the row's own answer) has it. Units are not compared.
    """
    if isinstance(sample.answers, dict):
        references, written = [], [sample.answer]
    else:
        references, written = [numbers(reference) for reference in sample.answers], [*sample.answers, sample.answer]
        if not any(references):
            return None
    if too_long(answer, written) or len(answer.split()) > MAX_NUMERIC_WORDS:
        return 0.0
    if hedges(answer, written):
        return 0.0
    given = numbers(answer)
    if not given:
        return 0.0
    if references:
        return float(given in references)
    low, high = sample.answers["range"]
    return float(len(given) <= 2 and given == sorted(given) and all(low <= number <= high for number in given))


def hedges(answer: str, references: Iterable[str]) -> bool:
    """Whether the answer gives alternatives, by one of "or", "/", "|", ";" that no reference has."""
    answer, references = plain(answer), [plain(text) for text in references]
    return any(
        sign.search(answer) and not any(sign.search(text) for text in references) for sign in ALTERNATIVES.values()
    )


def default(answer: str, sample: Sample) -> float | None:
    """`numeric` for rows whose references are a range or whose `answer_type` is numeric, else `exact`."""
    is_numeric = isinstance(sample.answers, dict) or sample.answer_type.lower() in NUMERIC_TYPES
    return (numeric if is_numeric else exact)(answer, sample)
