"""Verdicts of a judge in a folder, for later runs, and for people who want to see what the judge called right."""

import json
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from open_r1_kivqa.errors import InputError


class VerdictFiles:
    """Verdicts in `folder`, one json object a line: `key`, `correct`, and what else is told of it.

    Every process writes a file of its own, `verdicts-HOST-PID-RANDOM.jsonl`, whole lines at once, and reads all files when it starts. So any number of processes and machines may share the folder.

    Raises:
        InputError: the folder can't be made, or can't be written to.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--judge_cache {folder} cannot be made ({error.strerror}): give another folder."
            ) from error
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise InputError(f"--judge_cache {folder} cannot be read and written: give another folder.")
        name = f"verdicts-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self.own: Path | None = self.folder / name

    def read(self) -> dict[str, bool]:
        """Whether the answer was right, by key. A last line without an end was cut off by a kill, or is being written, and is left out.

        Raises:
            InputError: another line is no verdict.
        """
        verdicts = {}
        for path in sorted(self.folder.glob("verdicts-*.jsonl")):
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break
                    key, correct = _read_line(line)
                    if not isinstance(key, str) or not isinstance(correct, bool):
                        raise InputError(f"--judge_cache: {path}:{number} is no verdict; delete the line or the file.")
                    verdicts[key] = correct
        return verdicts

    def add(self, verdicts: Sequence[dict]) -> None:
        """Append. If the disk does not take it, say so once and write no more: training goes on without."""
        if self.own is None or not verdicts:
            return
        data = "".join(json.dumps(verdict) + "\n" for verdict in verdicts).encode()
        try:
            with open(self.own, "ab", buffering=0) as file:
                problem = None if file.write(data) == len(data) else "the disk is full"
        except OSError as error:
            problem = error.strerror
        if problem:
            told = f"WARNING: --judge_cache: {self.own} takes no more verdicts ({problem}); they stay in memory."
            print(told, file=sys.stderr, flush=True)
            self.own = None


def _read_line(line: bytes) -> tuple[object, object]:
    try:
        verdict = json.loads(line)
        return verdict["key"], verdict["correct"]
    except (ValueError, LookupError, TypeError):
        return None, None
