"""What became of the rows: counted, with examples, printed and written as JSON."""

import os
from collections import Counter

from ..data.aside import write_json
from ..data.samples import Sample
from ..errors import InputError
from .bridge import OUTCOMES, Outcome

EXAMPLES = 5  # of each outcome
MOST_TEXT = 300  # characters of an example
MEANINGS = {
    "kept": "kept",
    "wrong_answer": "wrong answer",
    "bad_format": "bad format",
    "contradiction": "contradiction",
    "refused": "refused",
    "no_image": "row without image",
    "endpoint_failed": "endpoint failed",
}


class Tally:
    """Counts outcomes in the order of the rows."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.rules: dict[str, Counter[str]] = {kind: Counter() for kind in OUTCOMES}
        self.examples: dict[str, list[dict]] = {kind: [] for kind in OUTCOMES}
        self.attempts: Counter[int] = Counter()
        self.failed_rows: list[str] = []
        self.answers_described = 0

    def add(self, sample: Sample, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        if outcome.rule:
            self.rules[outcome.kind][outcome.rule] += 1
        examples = self.examples[outcome.kind]
        if len(examples) < EXAMPLES:
            text = " ".join(outcome.text.split())
            text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
            examples.append({"id": sample.id, "rule": outcome.rule, "text": text})
        if outcome.kind == "kept":
            self.attempts[outcome.attempts] += 1
            self.answers_described += outcome.answer_described
        if outcome.kind == "endpoint_failed":
            self.failed_rows.append(sample.id)

    @property
    def rows(self) -> int:
        return self.counts.total()

    def share(self, kind: str) -> float:
        return self.counts[kind] / self.rows if self.rows else 0.0

    def to_json(self) -> dict:
        """As plain values; docs/bridging.md says what each is."""
        return {
            "rows": self.rows,
            "yield": self.share("kept"),
            "outcomes": {
                kind: {
                    "count": self.counts[kind],
                    "share": self.share(kind),
                    "rules": dict(self.rules[kind].most_common()),
                    "examples": self.examples[kind],
                }
                for kind in OUTCOMES
            },
            "kept_at_attempt": {str(attempt): count for attempt, count in sorted(self.attempts.items())},
            "answer_in_description": self.answers_described,
            "failed_rows": self.failed_rows,
        }

    def lines(self) -> list[str]:
        """The report as text: a line an outcome that occurred, its rules, and one example of each but the kept."""
        lines = []
        for kind in OUTCOMES:
            if not self.counts[kind] and kind != "kept":
                continue
            rules = ", ".join(f"{rule} {count:,}" for rule, count in self.rules[kind].most_common())
            lines.append(
                f"{MEANINGS[kind]:18}{self.counts[kind]:>9,}{self.share(kind):>8.1%}{f'  {rules}' if rules else ''}"
            )
            if kind != "kept":
                example = self.examples[kind][0]
                lines.append(f"    {example['id']}: {example['text'][:160]}")
        return lines


def token_lines(requests: dict[str, dict[str, int]]) -> list[str]:
    """A line for each model: what it was asked and how many tokens that took, as far as its endpoint says."""
    lines = []
    for name, counts in requests.items():
        tokens = f"{counts['prompt_tokens']:,} prompt and {counts['completion_tokens']:,} completion tokens"
        untold = f"; {counts['uncounted']:,} replies came without token counts" if counts["uncounted"] else ""
        lines.append(
            f"{name}: {counts['asked']:,} requests ({counts['failed']:,} failed), {tokens}; {counts['cached']:,} answers were known{untold}"
        )
    return lines


def write_report(path: str | os.PathLike, report: dict) -> None:
    """As indented JSON.

    Raises:
        InputError: the disk does not take it.
    """
    try:
        write_json(path, report)
    except OSError as error:
        raise InputError(f"The report {path} cannot be written ({error.strerror}): make room and run again.") from error
