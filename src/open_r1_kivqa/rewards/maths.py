r"""Mathematical answers: equal as text, as numbers, or by math-verify (`math`).

The final answer is what stands in `\boxed{…}`, else behind "answer is", else the whole text. Boxes, and numbers and formulas in prose, must all say the same: whoever names several
values has given a list, which equals only a list. Case counts: `X` is not `x`.

math-verify (sympy) never ends on `9^9^9^9`, so a process of its own compares (`maths_worker`): one a process that scores, started by the first answer that needs it.
"""

import atexit
import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
import time
from fractions import Fraction
from functools import lru_cache

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.answer import plain
from open_r1_kivqa.rewards.text import boxed

SECONDS = 2.0  # of CPU time for one answer; usual ones take some milliseconds
PATIENCE = 15.0  # seconds by the clock, where the machine is overloaded
START = 180.0  # seconds by the clock until the worker has loaded sympy: usually 1, more from a network disk
MAX_BOXES = 20_000  # characters at the end of an answer that boxes are looked for in
MAX_READ = 4_000  # characters of an answer without a box
MAX_VALUE = 500  # characters of one value that is still compared by math-verify
MAX_VALUES = 16  # values of one answer, and references of one row, that are compared by math-verify

logger = logging.getLogger(__name__)

ANSWER_IS = re.compile(r"\banswer\b(?:[^.\n:=]{0,40}?\b(?:is|are|equals)\b|\s*[:=])\s*:?", re.IGNORECASE)
SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])|\n")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox|operatorname|textbf|mathbf)\s*\{[^{}]*\}")
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|max|min|gcd|lcm"
WORD = re.compile(
    rf"(?<![\\A-Za-z])(?!(?:{FUNCTIONS}|sqrt|and|infty|inf)(?![A-Za-z]))(?:[A-Za-z]{{3,}}|(?:is|it|so|to|of|in|we|no|at|by|be|if|as|an)(?![A-Za-z]))",
    re.IGNORECASE,
)
IN_PROSE = re.compile(r"(?<![\w\\.^])[-+]?[\d.(√π][\d.,\s()+\-*/^×÷·=√π%:⁄]*(?![\w\\^{])")
PLAIN_NUMBER = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|0,\d+|\d+(?:\.\d*)?|\.\d+)")
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
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
}
SYMBOLS |= {
    "°": r"^\circ ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "∈": r"\in ",
    "θ": r"\theta ",
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
    found = _compared(tuple(rest[:MAX_VALUES]), tuple(candidates))
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
        parts = boxes
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
    """The formulas and numbers that a text names; the text itself if it is one."""
    text = plain(text)
    formulas = ["".join(groups) for groups in FORMULA.findall(text)]
    rest = FORMULA.sub(" ", text)
    if formulas or WORD.search(IN_TEXT.sub("", rest)):
        numbers = [_balanced(number) for number in IN_PROSE.findall(rest) if re.search(r"\d|π", number)]
        return formulas + numbers or [text]
    return [text]


def _balanced(number: str) -> str:
    number = (
        number.strip(" \n\t.,:+-*/^×÷·=")
        if not number.startswith(("-", "+", "."))
        else number.rstrip(" \n\t.,:+-*/^×÷·=")
    )
    return number if number.count("(") == number.count(")") else number.strip("()")


def latex(text: str) -> str:
    r"""A value in one spelling of LaTeX: without signs of markup around it, `½`, `x²`, `1e5`, `1 000`, `2 million` and `sqrt(2)` written out. Its case stays."""
    text = re.sub(r"(?<=[\w)])\*\*(?=[\w(])", "^", plain(text)).replace("**", "").replace("`", "")
    text = re.sub(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]|\\displaystyle|\\left(?![a-z])|\\right(?![a-z])|\\!", "", text)
    text = re.sub(r"\\[,;: ]|~|\\q?quad(?![a-z])", " ", text)
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
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
    text = (
        " ".join(text.split()).strip(" .;,")
        if not text.lstrip().startswith(".")
        else " ".join(text.split()).rstrip(" .;,")
    )
    return text


def _key(value: str) -> str:
    """Equal for two texts that are the same but for spaces, and the capital that a word begins with."""
    return re.sub(r"(?<![\\A-Za-z])[A-Z][a-z]{2,}", lambda match: match[0].lower(), "".join(value.split()))


def _equal_numbers(a: str, b: str) -> bool | None:
    """Whether two plain numbers are equal, by math-verify's rule: to six decimals if one has any. Near zero, where that says little, to a thousandth. None if they are no plain numbers."""
    if not (len(a) <= 60 and len(b) <= 60 and PLAIN_NUMBER.fullmatch(a) and PLAIN_NUMBER.fullmatch(b)):
        return None
    a, b = (number.replace(",", "." if number.lstrip("+-").startswith("0,") else "") for number in (a, b))
    x, y = Fraction(a), Fraction(b)
    if x == y or not ("." in a or "." in b):
        return x == y
    return round(x, 6) == round(y, 6) and abs(x - y) * 1000 <= max(abs(x), abs(y))


def _comparable(value: str) -> bool:
    """Whether math-verify may see a value. It would read words as products of their letters (so "pots" as "stop"), add up "2 3", and drop what stands in a \\text at the end."""
    outside = IN_TEXT.sub("", value)
    return (
        0 < len(value) <= MAX_VALUE
        and not re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", outside)
        and not re.search(r"\d\s+\d", outside)
        and not any(re.search(r"\d|\b(?:or|and)\b\s*\w", text) for text in IN_TEXT.findall(value))
    )


unfinished = 0  # answers of this process that were given up, each of which got 0.0


def _report(answer: str, sample: Sample) -> None:
    """Counts an answer that was given up, and says so for the 1st, 10th, 100th…"""
    global unfinished
    unfinished += 1
    if str(unfinished).strip("0") == "1":
        logger.warning(
            f"math: {unfinished} answer(s) so far could not be compared with their reference within {SECONDS:g} s and 1 GiB and got 0; the last is {answer[:80]!r} ({sample.source})."
        )


@lru_cache(maxsize=4096)
def _compared(references: tuple[str, ...], candidates: tuple[str, ...]) -> list[list[int]] | None:
    """For each candidate the indices of the references that it equals; None if the worker had to be ended."""
    with _lock:
        return _worker.ask([references, candidates])


class Worker:
    """A `maths_worker` process, started when first needed and after each that had to be ended. Not thread-safe: hold `_lock`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.ready = False
        self.unread = b""

    def start(self) -> None:
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "maths_worker.py")
        # -P, since the script's folder holds modules called like others' (text, format).
        self.process = subprocess.Popen(
            [sys.executable, "-P", script, str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.ready, self.unread = False, b""

    def ask(self, question: list) -> list[list[int]] | None:
        """The worker's answer; None if it ended, or was ended, before it gave one: then the next is started already. RuntimeError if it can't be started."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self.start()
        if not self.ready and self.line(START) is None:
            code = self.stop()
            raise RuntimeError(
                f"The process that compares mathematical answers did not start (exit code {code}, see its message above); is math-verify installed for {sys.executable}?"
            )
        self.ready = True
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            line = self.line(PATIENCE)
        except BrokenPipeError:
            line = None
        if line is None:
            self.stop()
            self.start()
            return None
        return json.loads(line)

    def line(self, seconds: float) -> bytes | None:
        """The next line that it writes; None if it ends, or `seconds` pass."""
        end = time.monotonic() + seconds
        while b"\n" not in self.unread:
            poll = select.poll()  # select itself takes no descriptor above 1023
            poll.register(self.process.stdout, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return None
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def stop(self) -> int | None:
        """Ends the process and returns its exit code."""
        if self.process is None:
            return None
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        code = self.process.wait()
        self.process = None
        return code

    def forget(self) -> None:
        """In a process that was forked off: the worker is the parent's. Its pipes are closed here, or it would outlive the parent."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.returncode = 0  # not ours to wait for
            self.process = None


_lock = threading.Lock()
_worker = Worker()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _worker.forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_worker.stop)
