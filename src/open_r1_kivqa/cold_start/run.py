"""All rows of a run: many at a time, their outcomes taken in the rows' order, the kept ones written."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..data.jsonl import Rows
from ..data.locks import take
from ..data.samples import Sample
from ..errors import InputError
from .bridge import Bridge, Outcome

MOST_AHEAD = 20_000  # outcomes held back for one slow row before others wait for it


async def bridge_rows(
    rows: Rows,
    numbers: Sequence[int],
    bridge: Bridge,
    workers: int,
    *,
    take: Callable[[Sample, Outcome], None],
    step: Callable[[str], None],
) -> None:
    """Takes the rows at these places through the bridge, `workers` of them at a time; hands the kind of each outcome to `step` as soon as it is there, and the outcome to `take` in the order of `numbers`.

    Raises:
        InputError: as `Bridge.row`; what was answered until then lies on disk.
    """
    left = iter(enumerate(numbers))
    finished: dict[int, tuple[Sample, Outcome]] = {}
    taken = 0

    async def work():
        nonlocal taken
        for place, number in left:
            while place - taken > MOST_AHEAD:
                await asyncio.sleep(0.1)
            sample = rows[number]
            outcome = await bridge.row(sample)
            step(outcome.kind)
            finished[place] = sample, outcome
            while taken in finished:
                take(*finished.pop(taken))
                taken += 1

    tasks = [asyncio.create_task(work()) for _ in range(min(workers, len(numbers)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RowWriter:
    """Writes rows aside, and puts the file in place when all is done.

    Args:
        path: the output, in a folder that is there.
        image_folder: the folder that images are named from, if it isn't each row's own; see `common_folder`.
    """

    def __init__(self, path: str, image_folder: str | None):
        self.path, self.image_folder = Path(path), image_folder
        self._aside, self._placed = Path(f"{path}.part"), False
        try:
            self._file = open(self._aside, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            self._lock()
            self._file.truncate(0)
        except OSError as error:
            raise self._problem(error) from error

    def _lock(self) -> None:
        if not take(self._file, self._aside):
            self._file.close()
            raise InputError(
                f"--output {self.path} is being written by another run: wait for it, or name another file."
            )

    def write(self, row: dict, images: tuple[str, ...]) -> None:
        if self.image_folder is not None:
            names = [os.path.relpath(path, self.image_folder) for path in images]
            row = {**row, "image": names[0] if isinstance(row["image"], str) else names}
        try:
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._problem(error) from error

    def put_in_place(self) -> None:
        try:
            self._file.flush()
            os.replace(self._aside, self.path)  # still locked, so no other run can have begun to write
            self._placed = True
        except OSError as error:
            raise self._problem(error) from error

    def close(self) -> None:
        """Removes what was not put in place."""
        if not self._placed:
            self._aside.unlink(missing_ok=True)
        self._file.close()

    def _problem(self, error: OSError) -> InputError:
        return InputError(
            f"--output {self.path} cannot be written ({error.strerror}): make room or name another file; the answers are kept, and the same command goes on."
        )


def common_folder(folders: Sequence[str]) -> str | None:
    """The folder that holds all image folders, where rows of several are written to one file; None if it is one folder, from which rows name their images already."""
    distinct = {os.path.abspath(folder) for folder in folders}
    return os.path.commonpath(distinct) if len(distinct) > 1 else None
