"""What a check found: problems, and how they are counted and printed."""

import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field

EXAMPLES = 5  # shown of each kind unless all are wanted


@dataclass(frozen=True)
class Problem:
    """One thing to repair.

    Attributes:
        kind: short name; the kinds are listed in docs/check.md.
        message: what is wrong. remedy: what to do.
        file, line, id: where it stands; line None if it is the whole file, id None if the row has none.
        row: place of the row among all rows of the run, None if the problem is no single row's.
    """

    kind: str
    message: str
    remedy: str
    file: str
    line: int | None = None
    id: str | None = None
    row: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        id = "" if self.id is None else f" (id {self.id!r})"
        return f"{place}{id}: {self.message}; {self.remedy}" if self.remedy else f"{place}{id}: {self.message}"


@dataclass
class Report:
    """Result of a check.

    Attributes:
        rows: how many were looked at.
        image_paths: files that were looked at, each once. image_digest: their `files_digest` before that.
        problems: in the order of the rows.
        tokens: part -> percentile -> tokens of a prompt (see data/tokens.py); None if no model was given.
        context: the longest prompt and completion together that the model takes, in tokens; None likewise.
        shared: what training and test rows share without being a problem: "entities", "questions" -> number; None if no test rows were given.
        unanswered: rows without a reference answer, where that is no problem.
    """

    rows: int = 0
    image_paths: list[str] = field(default_factory=list)
    image_digest: str = ""
    problems: list[Problem] = field(default_factory=list)
    tokens: dict[str, dict[str, int]] | None = None
    context: int | None = None
    shared: dict[str, int] | None = None
    unanswered: int = 0

    @property
    def bad_rows(self) -> frozenset[int]:
        """Places of the rows that have a problem."""
        return frozenset(problem.row for problem in self.problems if problem.row is not None)

    def by_kind(self) -> dict[str, list[Problem]]:
        """Problems grouped by kind, the largest group first."""
        groups = defaultdict(list)
        for problem in self.problems:
            groups[problem.kind].append(problem)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    def problem_lines(self, examples: int | None = EXAMPLES) -> list[str]:
        """A heading for each kind, then its problems, at most `examples` of them (None: all)."""
        lines = []
        for kind, problems in self.by_kind().items():
            lines.append(f"{kind}: {len(problems):,}")
            lines += [f"  {problem}" for problem in problems[:examples]]
            if examples is not None and len(problems) > examples:
                lines.append(f"  ... and {len(problems) - examples:,} more")
        return lines

    def lines(self, examples: int | None = EXAMPLES) -> list[str]:
        """The whole report as text."""
        lines = [*self.problem_lines(examples), ""] if self.problems else []
        if self.tokens:
            names = list(next(iter(self.tokens.values())))
            lines += [f"{'tokens':10}" + "".join(f"{name:>9}" for name in names)]
            lines += [
                f"{part:10}" + "".join(f"{values[name]:9,}" for name in names) for part, values in self.tokens.items()
            ]
            lines += [f"The model takes {self.context:,} tokens, prompt and completion together.", ""]
        if self.shared is not None:
            shared = ", ".join(f"{number:,} {name}" for name, number in self.shared.items())
            lines += [f"Shared with the test rows, and no problem by itself: {shared}.", ""]
        if self.unanswered:
            lines += [self.unanswered_line(), ""]
        looked_at = f"Checked {_number(self.rows, 'row')} and {_number(len(self.image_paths), 'image')}"
        if not self.problems:
            return [*lines, f"{looked_at}: no problem."]
        return [
            *lines,
            f"{looked_at}: {_number(len(self.problems), 'problem')}, {_number(len(self.bad_rows), 'row')} affected.",
        ]

    def unanswered_line(self) -> str:
        """That there are rows without a reference answer, and what becomes of them."""
        rows = "1 row has" if self.unanswered == 1 else f"{self.unanswered:,} rows have"
        return f"{rows} no reference answer: evaluation answers such rows and scores none of them."

    def to_json(self) -> dict:
        """All of it as plain values: every problem, and the counts."""
        return {
            "rows": self.rows,
            "images": len(self.image_paths),
            "bad_rows": len(self.bad_rows),
            "counts": {kind: len(problems) for kind, problems in self.by_kind().items()},
            "problems": [asdict(problem) for problem in self.problems],
            "tokens": self.tokens,
            "context": self.context,
            "shared": self.shared,
            "unanswered": self.unanswered,
        }


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class ProgressLine:
    """Shows on stderr how far a check has come: in place on a terminal, else as a line every minute."""

    def __init__(self):
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 60.0  # seconds
        self._last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            print(
                f"{what} {done:,} of {total:,}", end="\033[K\r" if self._terminal else "\n", file=sys.stderr, flush=True
            )

    def clear(self) -> None:
        """Takes the line off a terminal, where it would show behind a shorter one."""
        if self._terminal:
            print("\033[K", end="", file=sys.stderr, flush=True)
