"""The files of an evaluation: predictions.jsonl, one greedy answer a line, and rollouts.jsonl, one row's sampled answers a line. Written by several ranks, continued after a stop.

While an evaluation runs, each rank appends to its own `<name>.rank<N>.jsonl`; at the end one rank merges them into `<name>.jsonl` in the order of the jobs, so the file
is the same however many ranks wrote it. A record is found again by its job: (setting, row id).
"""

import json
import os
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..data.aside import written_aside
from ..data.locks import Lock
from ..errors import NO_ROOM, InputError
from ..manifest import differences, read_manifest, refuse_unusable_folder

NAMES = PREDICTIONS, ROLLOUTS = "predictions", "rollouts"

Job = tuple[str, str]  # setting, row id
MEASURED = ("prediction", "split", "question_type", "entity", "correct_strict", "correct_lenient", "format", "pick")
MEASURED += ("copy", "prompt_hash", "gold_rank", "gold_position")


# What may differ between the runs that fill one folder: it changes the pace, not the answers.
PACE = ("world_size", "devices", "git.", "flags.batch_size", "flags.overwrite", "flags.conditions", "flags.server_url")
PACE += ("flags.server_api_key_env", "flags.server_concurrency", "flags.server_timeout", "flags.server_retries")


_locks: dict[str, Lock] = {}  # by folder, of the evaluations that this process does


@contextmanager
def while_there_is_room(folder: Path) -> Iterator[None]:
    """Writing into `folder`; InputError where the disk, or what a user may fill of it, is full. At the end other runs may have it (`claim`)."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise InputError(
            f"--output_dir {folder} cannot be written further ({error.strerror}); make room and start the same command again, which keeps what was answered."
        ) from error
    finally:
        lock = _locks.pop(os.path.realpath(folder), None)
        if lock is not None:
            lock.release()


def claim(folder: Path, write_manifest: Callable[[str], None], *, overwrite: bool) -> None:
    """Makes `folder` hold the manifest of this evaluation, and no predictions of another one. It is this process's until `while_there_is_room` ends.

    Args:
        write_manifest: writes this evaluation's manifest.json into the folder it is given.
        overwrite: delete the predictions of another evaluation.

    Raises:
        InputError: there are predictions of another evaluation, and not `overwrite`; names what differs. Or another evaluation is writing there now.
    """
    refuse_unusable_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    place = os.path.realpath(folder)
    if place not in _locks:
        _locks[place] = Lock(folder / ".lock", what=f"--output_dir {folder}", remedy="give another --output_dir")
    with tempfile.TemporaryDirectory() as fresh:
        write_manifest(fresh)
        if any(_files(folder)):
            try:
                recorded = read_manifest(folder)
            except InputError as error:  # without it nobody knows whose predictions these are
                if not overwrite:
                    raise InputError(
                        f"{folder} holds predictions without a manifest of what made them. Give another --output_dir, or --overwrite to start anew."
                    ) from error
                recorded = {}
            found = differences(recorded, read_manifest(fresh))
            found = [difference for difference in found if not difference[0].startswith(PACE)]
            if found and not overwrite:
                name, before, now = found[0]
                more = f" ({len(found) - 1} more differ)" if len(found) > 1 else ""
                raise InputError(
                    f"{folder} holds predictions of another evaluation: {name} was {before!r} and is {now!r}{more}. Give another --output_dir, or --overwrite to start anew."
                )
            if found:
                discard(folder)
    write_manifest(str(folder))


def read_finished(folder: Path, name: str = PREDICTIONS) -> dict[Job, dict]:
    """The records of all jobs that earlier runs finished in `folder`. A last line that was cut off (a killed run) is left out; its job is done again.

    Args:
        name: one of NAMES.
    """
    records = {}
    for path in [*sorted(folder.glob(f"{name}.rank*.jsonl")), folder / f"{name}.jsonl"]:
        if path.exists():
            for number, line in enumerate(_whole(path.read_bytes()).split(b"\n")[:-1], 1):
                try:
                    record = json.loads(line)
                    records[record["setting"], record["id"]] = record
                except (ValueError, TypeError, KeyError) as error:
                    raise InputError(
                        f"{path}:{number} is no prediction; delete the file, and its rows are answered again."
                    ) from error
    return records


def refuse_older(finished: dict[Job, dict]) -> None:
    """InputError for records of an older version, which lack what is measured now."""
    for (setting, id), record in finished.items():
        missing = [name for name in MEASURED if name not in record]
        if missing:
            raise InputError(
                f"The prediction of row {id!r} under {setting} in the output folder lacks {missing[0]!r}: it was written by an older version. Give another --output_dir, or delete the predictions there."
            )


def runs(jobs: list[Job], finished: Container[Job]) -> list[list[int]]:
    """The places of the jobs that are not finished, as [first, behind the last] of each unbroken run: short, however many jobs there are."""
    found: list[list[int]] = []
    for place, job in enumerate(jobs):
        if job in finished:
            continue
        if found and found[-1][1] == place:
            found[-1][1] = place + 1
        else:
            found.append([place, place + 1])
    return found


def jobs_of(jobs: list[Job], places: list[list[int]]) -> list[Job]:
    """The jobs in these runs, in order."""
    return [job for first, end in places for job in jobs[first:end]]


def discard(folder: Path) -> None:
    """Deletes the records in `folder`, finished and unfinished."""
    for path in _files(folder):
        path.unlink()


def _files(folder: Path) -> list[Path]:
    return [path for name in NAMES for path in [*folder.glob(f"{name}.rank*.jsonl"), *folder.glob(f"{name}.jsonl")]]


class RankFile:
    """The file one rank appends its records to. Opening it removes a last line that was cut off."""

    def __init__(self, folder: Path, rank: int, name: str = PREDICTIONS):
        self.path = folder / f"{name}.rank{rank}.jsonl"
        self.file = open(self.path, "ab")
        self.file.truncate(len(_whole(self.path.read_bytes())))

    def append(self, records: list[dict]) -> None:
        """Writes the records through to the operating system, so that killing the process loses none of them."""
        self.file.write(b"".join(_line(record) for record in records))
        self.file.flush()

    def close(self) -> None:
        """A file without records goes, as of a rank that had no share."""
        self.file.close()
        if not self.path.stat().st_size:
            self.path.unlink()


def merge(folder: Path, jobs: list[Job], name: str = PREDICTIONS) -> list[dict]:
    """Replaces the ranks' files by `<name>.jsonl` with the records of `jobs`, in that order, and returns them."""
    finished = read_finished(folder, name)
    records = [finished[job] for job in jobs]
    write_records(folder / f"{name}.jsonl", records)
    for path in folder.glob(f"{name}.rank*.jsonl"):
        path.unlink()
    return records


def write_records(path: Path, records: list[dict]) -> None:
    """One record a line, `written_aside`."""
    with written_aside(path, "wb") as file:
        file.writelines(map(_line, records))


def _line(record: dict) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _whole(content: bytes) -> bytes:
    """The content up to its last line's end."""
    return content[: content.rfind(b"\n") + 1]
