"""The process that compares mathematical expressions for `rewards.maths`, so that one which never ends can be killed. Not imported: run as a script, it needs nothing of this package.

One JSON line in, `[references, candidates]`, each a list of LaTeX texts; one JSON line out, for each candidate the indices of the references it equals. It ends at the end of its
input. The kernel ends it when an answer takes more than the CPU seconds of its first argument (SIGPROF stops even one single multiplication of huge integers, which no Python signal
handler does, and does so too where the parent has been killed), and its memory is limited to 1 GiB more than it starts with.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from functools import lru_cache

MEMORY = 1 << 30  # bytes
NEAR_ZERO = 1e-3  # below it, math-verify's six decimals are too few to tell numbers apart

# "5 cm", "5cm", "5\text{ m}^2", but not "5t" or "2x + 3 t": there letters are variables.
UNIT = re.compile(
    r"(?:[^A-Za-z\\]|\\[A-Za-z]+)*+(?<=[\d})°])(?:\s+[A-Za-z]+|[A-Za-z]{2,}|\s*\\(?:text|mathrm|mbox)\s*\{[^{}\d]*\}[\^{}\d]*)\.?"
)
PERCENT = re.compile(r"(?:\\?%|\s*(?:percent|pct))\s*$")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    seconds = float(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library's print must not pass for an answer
    logging.disable()  # math-verify warns of every expression that it cannot read
    equals([r"\frac{1}{2}"], ["0.5"])  # loads the libraries and fills the parser's tables
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
    from math_verify import verify

    try:
        gold, given = parsed(reference), parsed(candidate)
        if gold is None or given is None or not verify(gold, given, timeout_seconds=None):
            return False
        if getattr(gold, "is_number", False) and getattr(given, "is_number", False):
            a, b = complex(gold), complex(given)
            return max(abs(a), abs(b)) >= NEAR_ZERO or abs(a - b) <= NEAR_ZERO * max(abs(a), abs(b))
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
    units = UNIT.fullmatch(number) is not None
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
