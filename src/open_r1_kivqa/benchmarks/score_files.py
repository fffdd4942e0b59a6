"""Files of scoring: predictions matched with the questions they answer, and verdicts written for each question.

A line of predictions is `{"data_id": …, "prediction": "text"}`. Ids are kept as digests of 16 bytes and texts are read when they are scored, so that millions of questions fit in modest memory.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..data.cache import content_hash
from ..data.lines import JsonLines
from ..data.samples import row_id
from ..errors import InputError

EXAMPLES = 5  # ids that a message names
WANTED = 'a prediction is one line as {"data_id": "infoseek_val_00000000", "prediction": "answer"}'


def same(id: str) -> str:
    return id


class Predictions:
    """The predictions of a jsonl file, looked through when opened.

    Args:
        path: jsonl file.
        canonical: gives the form in which ids are compared; raises ValueError for what is no id.

    Raises:
        InputError: no such file, another format, or a line that is no prediction; names it.
    """

    def __init__(self, path: str, canonical: Callable[[str], str] = same):
        self.path = path
        self._canonical = canonical
        self._lines = JsonLines(path)
        self.digests = digests(self.id(i) for i in range(len(self._lines)))

    def __len__(self) -> int:
        return len(self._lines)

    def id(self, i: int) -> str:
        """The `data_id` of line `i`."""
        return self._read(i)[0]

    def text(self, i: int) -> str:
        """The prediction of line `i`."""
        return self._read(i)[1]

    def _read(self, i: int) -> tuple[str, str]:
        source = self._lines.source(i)
        try:
            row = self._lines.record(i)
        except InputError as error:
            if i == len(self) - 1 and not self._lines.raw(i).rstrip().endswith(b"}"):
                raise InputError(
                    f"{source}: the last line is cut off, so the file was not written to its end; make the predictions again, or go on where they stopped."
                ) from error
            raise
        if not isinstance(row, dict) or not {"data_id", "prediction"} <= row.keys():
            given = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise InputError(f"{source}: this line has {given or 'nothing'}; {WANTED}.")
        if not isinstance(row["prediction"], str):
            raise InputError(
                f'{source}: `prediction` is {json.dumps(row["prediction"])[:60]}; write a text, "" where there is no answer.'
            )
        id = row_id(row, "data_id", source)
        try:
            return self._canonical(id), row["prediction"]
        except ValueError:
            raise InputError(f"{source}: data_id {id!r} is no row of the csv; wanted is its number, from 0.") from None


class Matching:
    """Which prediction belongs to which question.

    An id that stands n times among the references (`several`) takes n predictions; but where no id has more than one prediction, its question counts once.

    Args:
        predictions: as read.
        ids: gives the references' ids, in the order in which they are scored; called again to name some.
        official: count as InfoSeek's official code does: predictions of unknown ids are passed over, each of several predictions of one id counts, and questions without a prediction don't count. Otherwise
            the first two are errors, and the last count as wrong.
        several: ids may stand among the references several times (several images of one question).

    Raises:
        InputError: an id stands twice among the references, and not `several`; a prediction of an unknown id, or more than one of an id; or no prediction that belongs to a question.
    """

    def __init__(
        self, predictions: Predictions, ids: Callable[[], Iterable[str]], *, official: bool, several: bool = False
    ):
        self._predictions, self._ids, self.official = predictions, ids, official
        wanted = digests(ids())
        earlier = _earlier(wanted)
        is_once = len(np.unique(predictions.digests)) == len(predictions)
        self._counts = earlier == 0 if is_once else np.ones(len(wanted), dtype=bool)  # of each question whether it does
        self.has_shared_ids = bool(earlier.any())
        if self.has_shared_ids and not several:
            again = int(earlier.argmax())
            raise InputError(
                f"data_id {self._names([again])[0]!r} stands twice among the references, the second time as question {again + 1:,}; remove one."
            )
        order = np.argsort(predictions.digests, kind="stable")
        place = np.searchsorted(predictions.digests[order], wanted) + earlier
        found = (place < len(order)) & self._counts
        found[found] = predictions.digests[order[place[found]]] == wanted[found]
        self.lines = np.full(len(wanted), -1, dtype=np.int64)  # of each question the line of its prediction
        self.lines[found] = order[place[found]]
        left = np.ones(len(predictions), dtype=bool)
        left[self.lines[found]] = False
        left = np.flatnonzero(left)
        is_known = np.isin(predictions.digests[left], wanted)
        self.unknown, self.repeated = left[~is_known], left[is_known]
        self._further: dict[int, list[int]] = {}  # question: lines of its repeated predictions
        if not official and len(left):
            raise InputError(self._problems())
        if not found.any():
            raise InputError(
                f"{predictions.path}: no prediction belongs to any of the {len(wanted):,} questions (the first has the id {self._names([0])[0]!r}, the first prediction {predictions.id(0)!r}); give the predictions on these references."
            )
        if len(self.repeated):
            sorted_questions = np.argsort(wanted, kind="stable")
            places = np.searchsorted(wanted[sorted_questions], predictions.digests[self.repeated])
            for line, place in zip(self.repeated.tolist(), places.tolist(), strict=True):
                self._further.setdefault(int(sorted_questions[place]), []).append(line)

    def of(self, i: int) -> list[str | None]:
        """The predictions that count for question `i`: one, or None for a missing one that counts as wrong; with `official` any number."""
        line = int(self.lines[i])
        if line < 0:
            return [None] if self._counts[i] and not self.official else []
        return [self._predictions.text(line) for line in (line, *self._further.get(i, []))]

    def coverage(self) -> dict[str, Any]:
        """`questions`, `answered`, and how many were `missing`, `unknown` and `repeated`, each with the first few ids as `…_examples`."""
        missing = np.flatnonzero((self.lines < 0) & self._counts)
        questions = int(self._counts.sum())
        numbers = {"questions": questions, "answered": questions - len(missing), "missing": len(missing)}
        numbers |= {"unknown": len(self.unknown), "repeated": len(self.repeated)}
        return numbers | {
            "missing_examples": self._names(missing[:EXAMPLES].tolist()),
            "unknown_examples": self._given(self.unknown),
            "repeated_examples": self._given(self.repeated),
        }

    def _problems(self) -> str:
        told = [
            f"{len(lines):,} of {len(self._predictions):,} predictions {what} ({listed(self._given(lines), len(lines))})"
            for lines, what in ((self.unknown, "belong to no question"), (self.repeated, "are further ones of an id"))
            if len(lines)
        ]
        return (
            f"{self._predictions.path}: {'; '.join(told)}. Give one prediction a question, made on these references; --official counts as InfoSeek's official code does "
            "(unknown ids are passed over, each repetition counts, questions without a prediction don't)."
        )

    def _given(self, lines: np.ndarray) -> list[str]:
        return [self._predictions.id(line) for line in lines[:EXAMPLES].tolist()]

    def _names(self, places: list[int]) -> list[str]:
        """The ids of the questions at these places, in ascending order."""
        wanted = set(places)
        last = max(places, default=-1)
        return [id for i, id in enumerate(islice(self._ids(), last + 1)) if i in wanted]


class Verdicts:
    """The verdicts of --per_sample: one object a line, written aside and renamed when all are there. With no path, nothing is written.

    Raises:
        InputError: the file can't be written.
    """

    def __init__(self, path: str | None):
        self._path, self._aside, self._file = path, Path(f"{path}.part"), None
        if path is None:
            return
        if os.path.exists(path) and not os.path.isfile(path):  # a folder; a device, which the new file would replace
            raise InputError(f"--per_sample {path} is no file; name one, which is written anew.")
        try:
            self._file = open(self._aside, "w", encoding="utf-8")
        except OSError as error:
            raise self._error(error) from error

    def __enter__(self) -> "Verdicts":
        return self

    def write(self, verdict: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(verdict, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._error(error) from error

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
            if error is None:
                os.replace(self._aside, self._path)
        except OSError as problem:
            raise self._error(problem) from problem
        finally:
            self._aside.unlink(missing_ok=True)

    def _error(self, error: OSError) -> InputError:
        return InputError(
            f"--per_sample {self._path} cannot be written ({error.strerror}); name a file in a folder that is there."
        )


def digests(ids: Iterable[str]) -> np.ndarray:
    """(ids,) of 16 bytes each: equal for equal ids, and for no others."""
    return np.fromiter((hashlib.blake2b(id.encode(), digest_size=16).digest() for id in ids), dtype="S16")


def csv_row(id: str) -> str:
    """The number of a csv row in its plain form; ValueError if it is none."""
    if not (id.isascii() and id.strip().isdigit()):
        raise ValueError(id)
    return str(int(id))


def described(path: str) -> dict[str, str]:
    """A file for the output: its path and the sha256 of its content."""
    return {"path": path, "sha256": content_hash(path)}


def listed(ids: list[str], count: int) -> str:
    """The first few of `count` ids, for a message."""
    return ", ".join(map(repr, ids)) + (", …" if count > len(ids) else "")


def _earlier(values: np.ndarray) -> np.ndarray:
    """Of each value how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    starts = np.ones(len(values), dtype=bool)
    starts[1:] = values[order[1:]] != values[order[:-1]]
    group = np.maximum.accumulate(np.where(starts, np.arange(len(values)), 0))
    out = np.empty(len(values), dtype=np.int64)
    out[order] = np.arange(len(values)) - group
    return out
