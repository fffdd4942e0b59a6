"""math-verify in a process of its own, so that a comparison which never ends can be ended: `compare`, and the script that the process runs.

sympy computes `9^9^9` in one multiplication of huge integers, which no Python signal handler interrupts, and would hold the rank for hours. So the kernel ends the process when an
answer takes more than SECONDS of CPU time (SIGPROF, left at its default), also where its parent has been killed meanwhile; its memory is limited too. It ends with its input, so
with its parent. Each process that scores has one, started by the first answer that needs it; after one had to be ended, the next starts at once.

One JSON line in, `[references, candidates]`, each a list of LaTeX texts; one JSON line out, for each candidate the indices of the references that it equals.
"""

import atexit
import json
import logging
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from functools import lru_cache

SECONDS = 2.0  # of CPU time for one answer; usual ones take some milliseconds
PATIENCE = 15.0  # seconds by the clock for one answer, should the machine be overloaded
START = 180.0  # seconds by the clock until the worker has loaded sympy: usually 1, more from a network disk
MEMORY = 1 << 30  # bytes
NEAR_ZERO = 1e-3  # below it, math-verify's six decimals are too few to tell numbers apart

# Units behind a number, which math-verify drops: "5 cm", "5cm", "5\text{ m}^2", but not "5t" or "2x + 3 t", where letters are variables. It misses powers and quotients.
UNIT = re.compile(
    r"(?<=[\d})°])(?:\s+[A-Za-z]+|[A-Za-z]{2,}|\s*\\(?:text|mathrm|mbox)\s*\{[^{}\d]*\}(?:\^\{?\d\}?)?)\.?$"
)
COMPOUND = re.compile(
    r"(?<=\d)\s*(?:(?:[cmk]m|in|ft|k?g|kWh|mol|Pa|Hz|mph|mi)|(?<=\s)[mshgNJWKVAL])(?:\^\{?-?\d\}?)?"
    r"(?:/(?:[cmk]?m|k?g|s|h|hr|min|L|mol|K)(?:\^\{?-?\d\}?)?)?$"
)
ASSIGNED = re.compile(r"^\s*[A-Za-z]{1,3}(?:_\{?\w+\}?)?\s*=")
VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
PERCENT = re.compile(r"(?:\\?%|\s*(?:percent|pct))\s*$")


@lru_cache(maxsize=4096)
def compare(references: tuple[str, ...], candidates: tuple[str, ...]) -> list[list[int]] | None:
    """For each candidate the indices of the references that it equals; None if the worker had to be ended."""
    with _one_at_a_time:
        return _worker.ask([references, candidates])


class Worker:
    """A process of this script, started when first needed and after each that had to be ended. Not thread-safe."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.ready = False  # it has said that it is
        self.busy = False  # it was asked and hasn't answered yet
        self.unread = b""

    def start(self) -> None:
        script = os.path.abspath(__file__)
        # As a script, so that this package isn't imported; -P, since the script's folder holds modules called like others' (text, format).
        self.process = subprocess.Popen(
            [sys.executable, "-P", script, str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.ready, self.busy, self.unread = False, False, b""

    def ask(self, question: list) -> list[list[int]] | None:
        """The worker's answer; None if it ended, or was ended, before it gave one: then the next is started already. RuntimeError if it can't be started."""
        # Busy still: Ctrl-C cut an earlier call short.
        if self.process is None or self.process.poll() is not None or self.busy:
            self.stop()
            self.start()
        if not self.ready and self.line(START) is None:
            code = self.stop()
            raise RuntimeError(
                f"The process that compares mathematical answers did not start (exit code {code}, see its message above); is math-verify installed for {sys.executable}?"
            )
        self.ready = self.busy = True
        line = self.line(PATIENCE) if self.write(json.dumps(question).encode() + b"\n") else None
        if line is None:
            self.stop()
            self.start()
            return None
        self.busy = False
        return json.loads(line)

    def write(self, data: bytes) -> bool:
        """Whether it took the data."""
        try:
            while data:
                data = data[os.write(self.process.stdin.fileno(), data) :]
        except BrokenPipeError:
            return False
        return True

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


_one_at_a_time = threading.Lock()
_worker = Worker()


def _after_fork() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.Lock()  # another thread may have held it
    _worker.forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_worker.stop)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    seconds = float(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library's print must not pass for an answer
    logging.disable()  # math-verify warns of every expression that it cannot read
    if equals([r"\frac{1}{2}"], ["0.5"]) != [[0]]:  # loads the libraries and fills the parser's tables
        raise RuntimeError("math-verify does not work: to it 1/2 is not 0.5.")
    os.dup2(1, 2)
    limit_memory()
    print("[]", file=answers)  # ready
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = equals(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=answers)


def limit_memory() -> None:
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def equals(references: list[str], candidates: list[str]) -> list[list[int]]:
    """For each candidate the indices of the references that it equals."""
    return [[i for i, reference in enumerate(references) if agree(reference, text)] for text in candidates]


def agree(reference: str, candidate: str) -> bool:
    """Whether they are equal by math-verify's rules, less those by which nearly anything is: e and E, numbers near zero, and `5x = 7` for 7."""
    from latex2sympy2_extended.latex2sympy2 import is_expr_of_only_symbols
    from math_verify import verify
    from math_verify.grader import is_equation
    from sympy import E, Symbol

    def equal(a, b) -> bool:
        return verify(a, b, timeout_seconds=None)

    try:
        gold, given = parsed(reference), parsed(candidate)
        if gold is None or given is None or not equal(gold, given):
            return False
        if (gold == E and isinstance(given, Symbol)) or (given == E and isinstance(gold, Symbol)):
            return False
        if is_equation(given) and not is_equation(gold):
            # Its last side was compared. The others are a name, as in x = 7, or equal too, as in 3 + 4 = 7.
            parts = getattr(given, "_unsorted_args", (given,))
            sides = [parts[0].lhs, *(part.rhs for part in parts[:-1])]
            return all(is_expr_of_only_symbols(side) or equal(gold, side) for side in sides)
        if getattr(gold, "is_number", False) and getattr(given, "is_number", False):
            a, b = gold.doit().evalf(), given.doit().evalf()
            size = max(abs(a).evalf(), abs(b).evalf())
            return bool(size >= NEAR_ZERO or abs(a - b).evalf() <= NEAR_ZERO * size)
        return True
    except Exception:  # sympy raises anything on odd input: TypeError, AttributeError, RecursionError, MemoryError
        return False


@lru_cache(maxsize=256)
def parsed(text: str):
    """The expression as math-verify reads LaTeX, but with the case of its letters kept and units dropped only where they can't be variables; None if it is none."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, convert_to_pct, latex2sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex

    number, percents = PERCENT.subn("", text)
    compound = COMPOUND.search(number)
    if compound and not VARIABLE.search(number[: compound.start()]):
        number = number[: compound.start()]
    unit = UNIT.search(number)
    units = unit is not None and not VARIABLE.search(ASSIGNED.sub("", number[: unit.start()]))
    if units and ASSIGNED.match(number) and len(unit.group().strip()) == 1:
        units = False  # v = 5 t
    config = NormalizationConfig(basic_latex=True, units=units, malformed_operators=True, nits=True, boxed="none")
    latex = normalize_latex(number, config)
    try:
        value = latex2sympy(
            latex,
            is_real=not should_treat_as_complex(latex),
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except Exception:  # its parser's way to say that this is no LaTeX
        return None
    return convert_to_pct(value) if percents else value


if __name__ == "__main__":
    main()
