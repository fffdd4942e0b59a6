"""Every answer of the models on disk, so that a run that was killed goes on without asking again.

A folder holds one file a process, `answers-HOST-PID-RANDOM.jsonl`, one answer a line, whole lines appended as they come. All files are read at the start; in memory stays only where each answer lies.
"""

import hashlib
import json
import os
import re
import socket
import uuid
from pathlib import Path
from typing import Any

from ..endpoint import Reply
from ..errors import InputError

ANSWER = re.compile(rb'\{"key": "([0-9a-f]{32})", ')  # how a line begins; the rest is parsed when it is asked for


class AnswerFiles:
    """Answers in `folder` by key.

    Raises:
        InputError: the folder can't be made, read or written, or a whole line is no answer.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--cache {folder} cannot be made ({error.strerror}): give another folder.") from error
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise InputError(f"--cache {folder} cannot be read and written: give another folder.")
        name = f"answers-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._own = self.folder / name
        self._paths: list[Path] = sorted(self.folder.glob("answers-*.jsonl"))
        self._places: dict[bytes, tuple[int, int]] = {}  # key -> file, offset
        for number, path in enumerate(self._paths):
            self._index(number, path)
        self._paths.append(self._own)
        self._file = None
        self._size = 0

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: bytes) -> Reply | None:
        """The answer of this key; None if there is none. InputError if it was damaged."""
        place = self._places.get(key)
        if place is None:
            return None
        number, offset = place
        with open(self._paths[number], "rb") as file:
            file.seek(offset)
            line = file.readline()
        try:
            return Reply(**json.loads(line)["reply"])
        except (ValueError, LookupError, TypeError):
            raise InputError(
                f"--cache: {self._paths[number]} holds a damaged answer {offset:,} bytes from its start; delete its line or the file."
            ) from None

    def add(self, key: bytes, reply: Reply, told: dict[str, Any]) -> None:
        """Append an answer. `told`: what people may want to know of it.

        Raises:
            InputError: the disk does not take it; what lies there already stays usable.
        """
        data = json.dumps({"key": key.hex(), **told, "reply": reply._asdict()}).encode() + b"\n"
        try:
            if self._file is None:
                self._file = open(self._own, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
            written = self._file.write(data)
        except OSError as error:
            raise InputError(self._full(error.strerror)) from error
        if written != len(data):
            raise InputError(self._full("the disk is full"))
        self._places[key] = (len(self._paths) - 1, self._size)
        self._size += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _full(self, reason: str) -> str:
        return f"--cache: {self._own} takes no more answers ({reason}): make room and run the same command again, it goes on where it stopped."

    def _index(self, number: int, path: Path) -> None:
        """A last line without an end was cut off by a kill, or is being written, and is left out."""
        offset = 0
        with open(path, "rb") as file:
            for line_number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                match = ANSWER.match(line)
                if match is None:
                    raise InputError(f"--cache: {path}:{line_number} is no answer; delete the line or the file.")
                self._places[bytes.fromhex(match[1].decode())] = (number, offset)
                offset += len(line)


def request_key(model: str, messages: list[dict], fields: dict[str, Any], attempt: int) -> bytes:
    """16 bytes, the same for the same request in every process. The address is left out: servers move.

    Args:
        messages: with pictures named by content, not by path.
        attempt: tells requests apart that are to be answered anew.
    """
    request = json.dumps({"model": model, "messages": messages, "fields": fields, "attempt": attempt}, sort_keys=True)
    return hashlib.sha256(request.encode()).digest()[:16]
