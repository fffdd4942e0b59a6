"""The file that a conversion writes: rows written aside, so that nothing half-written has the final name, and a conversion that was killed goes on from where it was.

identity = {"flags": …, "inputs": [file_identity(path)]}
with RowsFile("rows.jsonl", identity) as rows:
    for item in islice(items, rows.done, None):       # what an interrupted run of the same identity has dealt with already
        if wanted(item): rows.write(row) else rows.counts.drop("no image of it was found", item["id"])
        rows.dealt()                                   # after each source item, written or not
    rows.finish()                                      # gives the file its name, and writes rows.jsonl.report.json beside it
"""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType

from .. import __version__
from ..data.aside import write_json
from ..data.locks import take
from ..data.row_checks import answer_problem
from ..data.samples import Sample, parse_row
from ..errors import NO_ROOM, InputError
from .counts import Counts

__all__ = ["Counts", "RowsFile", "check_row", "file_identity"]

EVERY = 2.0  # seconds between two records of how far the run has come


def file_identity(path: str) -> dict:
    """What tells a file from a changed one: absolute path, size in bytes, time of change. InputError if it is no file."""
    if not os.path.isfile(path):
        raise InputError(f"{path} is no file; give the benchmark's file.")
    status = os.stat(path)
    return {"path": os.path.abspath(path), "bytes": status.st_size, "changed": status.st_mtime_ns}


def check_row(row: dict, source: str, image_folder: str = os.curdir) -> Sample:
    """The row as training and evaluation read it; no image is looked at.

    Raises:
        InputError: `kivqa check` would find a problem in it: a field of another kind, a text that isn't Unicode, no question, an answer that can't score 1 under the row's reward method.
    """
    sample = parse_row(row, image_folder=image_folder, reward_method="", source=source)
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{source}: it holds half of a surrogate pair (\\ud800 to \\udfff).") from None
    if not sample.question:
        raise InputError(f"{source}: it asks nothing.")
    problem = answer_problem(sample)
    if problem is not None:
        raise InputError(f"{source}: {problem[1]}; {problem[2]}.")
    return sample


class RowsFile:
    """Rows on their way to a jsonl file. A context manager; an error leaves what was written so far for the next run, an InputError of the caller's removes it.

    Attributes:
        counts: what was counted so far, by an interrupted run too.
        done: source items that an interrupted run of the same identity has dealt with; the caller skips them.
    """

    def __init__(self, path: str, identity: dict):
        """Opens `path`.part, and goes on behind what an interrupted run has recorded there if its identity is the same; else starts anew.

        Args:
            path: the final name; written over by `finish`.
            identity: JSON values, all that the rows depend on: flags, and `file_identity` of every input.

        Raises:
            InputError: the file can't be written, or another run is writing it.
        """
        self.path, self._identity = path, json.loads(json.dumps({"version": __version__, **identity}))
        self._aside, self._record = f"{path}.part", f"{path}.part.json"
        self.counts, self.done, self._bytes = Counts(), 0, 0
        self._safe = 0  # what the next run would take for `done`
        self._recorded = time.monotonic()
        self._full = False
        if os.path.isdir(path):
            raise InputError(f"--output {path} is a folder; name a file.")
        try:
            self._file = open(self._aside, "ab")
            self._lock()
            self._take_up()
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, row: dict) -> None:
        """Adds a row."""
        line = json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._bytes += len(line)
        self.counts.written += 1

    def dealt(self, items: int = 1) -> None:
        """Says that so many more source items are dealt with, whatever became of them; records the progress every two seconds."""
        self.done += items
        self.counts.read += items
        if time.monotonic() - self._recorded >= EVERY:
            self.record()

    def record(self) -> None:
        """Records the progress now: a run killed after this goes on from here."""
        state = {"identity": self._identity, "done": self.done, "bytes": self._bytes, "counts": self.counts.to_dict()}
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            write_json(self._record, state)
        except OSError as error:
            raise self._unwritable(error) from error
        self._safe, self._recorded = self.done, time.monotonic()
        if sys.stderr.isatty():
            print(
                f"{self.done:,} items read, {self.counts.written:,} rows", end="\033[K\r", file=sys.stderr, flush=True
            )

    def written(self) -> Iterator[dict]:
        """The rows written so far, those of an interrupted run among them."""
        self._file.flush()
        with open(self._aside, encoding="utf-8") as file:
            yield from map(json.loads, file)

    def finish(self) -> list[str]:
        """Gives the file its name, writes what was counted to `path`.report.json, and returns both as lines for the terminal.

        Raises:
            InputError: there is no row; says what was dropped. Or the disk is full.
        """
        if not self.counts.written:
            raise InputError("\n".join([f"{self.path}: there is no row to write.", *self.counts.lines()]))
        report = f"{self.path}.report.json"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            write_json(report, {"output": self.path, **self._identity, **self.counts.to_dict()})
            os.replace(self._aside, self.path)
            self._file.close()
            self._remove(self._record)
        except OSError as error:
            raise self._unwritable(error) from error
        return [f"{self.path}: {self.counts.written:,} rows of {self.counts.read:,} items", *self.counts.lines()]

    def __enter__(self) -> "RowsFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if sys.stderr.isatty():
            print(end="\033[K", file=sys.stderr, flush=True)  # the line of the progress
        if isinstance(error, InputError) and not self._full:  # the same input would fail again
            self._remove(self._aside)
            self._remove(self._record)
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise

    def _lock(self) -> None:
        if not take(self._file, self._aside):
            self._file.close()
            raise InputError(f"{self._aside} is being written by another run; wait for it, or name another --output.")

    def _take_up(self) -> None:
        """The state of the interrupted run, if there is one of this identity; what it wrote after its last record is cut off."""
        state = {}
        if os.path.exists(self._record):
            with open(self._record, encoding="utf-8") as file:
                state = json.load(file)
        if state.get("identity") == self._identity and os.path.getsize(self._aside) >= state["bytes"]:
            self.done, self._bytes, self.counts = state["done"], state["bytes"], Counts.from_dict(state["counts"])
            self._safe = self.done
            print(f"{self._aside}: going on after {self.done:,} items", file=sys.stderr)
        else:
            self._remove(self._record)
        os.ftruncate(self._file.fileno(), self._bytes)

    def _remove(self, path: str) -> None:
        if os.path.exists(path):
            os.remove(path)

    def _unwritable(self, error: OSError) -> InputError:
        self._full = error.errno in (*NO_ROOM, errno.EIO)
        if self._full:
            return InputError(
                f"--output {self.path} cannot be written further ({error.strerror}); make room and start the same command again, it goes on after {self._safe:,} items."
            )
        return InputError(
            f"--output {self.path} cannot be written ({error.strerror}); name a file in a folder that is there."
        )
