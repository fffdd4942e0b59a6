"""Shows how far a run has come: a bar on a terminal, else a line now and then."""

import sys
import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

EVERY = 30.0  # seconds between two lines


class _RowsPerSecond(ProgressColumn):
    def render(self, task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.2f} rows/s")


class RowProgress(AbstractContextManager):
    """Counts rows: `step("kept")`, or another of OUTCOMES, after each. Rows whose answers were known go by at once, so the time left counts from recent rows only."""

    def __init__(self, total: int, every: float = EVERY):
        self.total, self.every = total, every
        self.done = self.kept = self.failed = 0
        self._since = self._seen = 0.0
        self._bar: Progress | None = None

    def __enter__(self):
        self._since = time.monotonic()
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), _RowsPerSecond(), TimeRemainingColumn())
            console = Console(stderr=True)
            self._bar = Progress(*columns, TextColumn("{task.fields[told]}"), console=console)
            self._task = self._bar.add_task("", total=self.total, told="")
            self._bar.start()
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.stop()

    def step(self, outcome: str) -> None:
        self.done += 1
        self.kept += outcome == "kept"
        self.failed += outcome == "endpoint_failed"
        told = f"{self.kept:,} kept" + (f", {self.failed:,} failed" if self.failed else "")
        if self._bar is not None:
            self._bar.update(self._task, advance=1, told=told)
            return
        seconds = time.monotonic() - self._since
        if seconds >= self.every:
            speed = (self.done - self._seen) / seconds
            left = time_left((self.total - self.done) / speed)
            print(
                f"{self.done:,} of {self.total:,} rows, {told}, {speed:.2f} rows/s, {left} left",
                file=sys.stderr,
                flush=True,
            )
            self._since, self._seen = time.monotonic(), self.done


def time_left(seconds: float) -> str:
    """As 5 s, 12 min, or 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
