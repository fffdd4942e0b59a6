"""A jsonl file of any size: the offsets of its lines in memory, a line read and parsed when asked for."""

import codecs
import json
import os
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..errors import InputError
from .cache import cached_arrays, content_hash
from .samples import row_id

CHUNK = 16 * 2**20  # bytes read at a time while looking for line ends
NEWLINE = 0x0A
BLANK = b" \t\r\n"
WHITE = np.frombuffer(BLANK, dtype=np.uint8)


class JsonLines:
    """The non-blank lines of a UTF-8 jsonl file.

    Holds 16 bytes a line; can be pickled (the file is opened again on the other side).

    Raises:
        InputError: no such file, not UTF-8, or another format (a JSON list, indented JSON, gzip); says how to convert it.
    """

    def __init__(self, path: str):
        self.path = os.path.abspath(path)
        if not os.path.isfile(self.path):
            reason = "is a folder" if os.path.isdir(self.path) else "does not exist"
            raise InputError(f"Data file {path} {reason}; give the path of a jsonl file.")
        status = os.stat(self.path)
        self._state = (status.st_size, status.st_mtime_ns)
        try:
            _check_format(self.path)
        except OSError as error:
            raise InputError(
                f"Data file {path} cannot be read ({error.strerror}); give a file that you have permission to read."
            ) from error
        arrays = cached_arrays(self.path, "lines-1", lambda: _find_lines(self.path))
        self._starts, self._numbers = arrays["starts"], arrays["numbers"]
        if not len(self._starts):
            raise InputError(f"Data file {path} is empty; it needs one JSON object per line.")
        self._file = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_file": None}

    def raw(self, i: int) -> bytes:
        """Line `i` (0 <= i < len) as it stands in the file, without its line end."""
        if self._file is None:
            self._file = self._open()
        start = int(self._starts[i])
        end = int(self._starts[i + 1]) if i + 1 < len(self._starts) else self._state[0]
        # Read, not mapped: pages of a mapping count as memory of this process, and a file cut short would end it.
        line = os.pread(self._file.fileno(), end - start, start)
        return line.partition(b"\n")[0].rstrip(b"\r")

    def source(self, i: int) -> str:
        """ "path:line", lines counted from 1, blank ones included."""
        return f"{self.path}:{self._numbers[i]}"

    def record(self, i: int) -> object:
        """Line `i`, parsed; `InputError` with its path and line if it is not JSON in UTF-8."""
        return parse_line(self.raw(i), self.source(i))

    def keys(self, name: str, *, required: bool = True) -> list[str]:
        """The identifying field `name` of every line, in order.

        A line that has none, or is not JSON, raises `InputError`; with `required` False it gives "".
        """
        self._check_unchanged(os.stat(self.path))
        kind = f"keys-1-{name}" if required else f"keys-1-{name}-if-any"
        return _unpack(cached_arrays(self.path, kind, lambda: _pack(self.read_keys(name, required=required))))

    def read_keys(self, name: str, *, required: bool = True) -> Iterator[str]:
        """What `keys` gives, one after the other while the file is read: nothing is remembered or kept in memory."""
        # A key that opens its line is read without parsing the line, ten times faster.
        leading = re.compile(
            rb'\s*\{\s*"%s"\s*:\s*("[^"\\\x00-\x1f]+"|-?[1-9][0-9]*|0)\s*[,}]' % re.escape(name).encode()
        )
        with open(self.path, "rb") as file:
            position = 0
            for i, start in enumerate(self._starts.tolist()):
                if start != position:
                    file.seek(start)
                line = file.readline()
                position = start + len(line)
                match = leading.match(line)
                try:
                    if match:
                        yield row_id({name: parse_line(match.group(1), self.source(i))}, name, self.source(i))
                    else:
                        yield _key_of(line, name, self.source(i))
                except InputError:
                    if required:
                        raise
                    yield ""

    def key(self, i: int, name: str) -> str:
        """The identifying field `name` of line `i`; `InputError` if it has none."""
        return _key_of(self.raw(i), name, self.source(i))

    @property
    def content_hash(self) -> str:
        """sha256 of the file."""
        return content_hash(self.path)

    def _open(self) -> BinaryIO:
        file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        self._check_unchanged(os.fstat(file.fileno()))
        return file

    def _check_unchanged(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != self._state:
            raise InputError(f"{self.path} was changed while it was in use; start again with the file at rest.")


def _key_of(line: bytes, name: str, source: str) -> str:
    row = parse_line(line, source)
    if not isinstance(row, dict):
        raise InputError(f"{source}: a line must be a JSON object.")
    return row_id(row, name, source)


def parse_line(line: bytes, source: str) -> object:
    """Parse one line of JSON; `InputError` naming `source` if it is not JSON in UTF-8."""
    try:
        value = json.loads(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:  # half a surrogate pair is JSON, but no tokenizer can encode it
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start + 1} is not UTF-8; convert the file with iconv -t UTF-8."
        ) from None
    except UnicodeEncodeError:
        raise InputError(
            f"{source}: holds half of a surrogate pair (\\ud800 to \\udfff); write the character."
        ) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source}: not JSON ({error.msg} at column {error.colno}); write one object per line."
        ) from None
    except ValueError:  # Python's guard against integers that take long to convert
        raise InputError(f"{source}: holds an integer of too many digits; write it as a text.") from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply; write one flat object per line.") from None
    return value


def _check_format(path: str) -> None:
    with open(path, "rb") as file:
        head = file.read(65536)
    if head.startswith(b"\x1f\x8b"):
        raise InputError(f"{path} is compressed; unpack it with gunzip first.")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head:
        raise InputError(f"{path} is not UTF-8 text; convert it, for example with iconv -f UTF-16 -t UTF-8.")
    if head.startswith(codecs.BOM_UTF8):
        raise InputError(f"{path} starts with a byte order mark; remove it with: sed -i '1s/^\\xEF\\xBB\\xBF//' {path}")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 text; convert the file, for example with iconv -f LATIN1 -t UTF-8."
        ) from None
    text = head.lstrip(BLANK)
    if text.startswith(b"["):
        raise InputError(
            f"{path} holds one JSON list, but jsonl is one object per line; convert it with: jq -c '.[]' {path} > rows.jsonl"
        )
    if text.startswith(b"{") and text.split(b"\n", 1)[0].strip() == b"{":
        raise InputError(
            f"{path} holds indented JSON, but jsonl is one object per line; convert it with: jq -c . {path} > rows.jsonl"
        )


def _find_lines(path: str) -> dict[str, np.ndarray]:
    """Offsets and 1-based line numbers of the lines that are not blank."""
    starts, suspects = [], []  # suspects open with white space, so may hold nothing else
    offset, lines, at_start = 0, 0, True
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            text = np.frombuffer(chunk, dtype=np.uint8)
            first = np.flatnonzero(text[:-1] == NEWLINE) + 1
            first = np.concatenate([[0], first]) if at_start else first
            suspects.extend((np.flatnonzero(np.isin(text[first], WHITE)) + lines).tolist())
            starts.append(first.astype(np.int64) + offset)
            lines += len(first)
            offset += len(chunk)
            at_start = chunk.endswith(b"\n")
        starts = np.concatenate(starts) if starts else np.zeros(0, dtype=np.int64)
        keep = np.ones(len(starts), dtype=bool)
        for line in suspects:
            file.seek(starts[line])
            keep[line] = bool(file.readline().strip(BLANK))
    return {"starts": starts[keep], "numbers": np.flatnonzero(keep) + 1}


def _pack(keys: Iterator[str]) -> dict[str, np.ndarray]:
    """Texts as one array of bytes and their lengths: any length, no pickle."""
    encoded = [key.encode("utf-8") for key in keys]
    lengths = np.fromiter((len(key) for key in encoded), dtype=np.int64, count=len(encoded))
    return {"bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8), "lengths": lengths}


def _unpack(arrays: dict[str, np.ndarray]) -> list[str]:
    joined = arrays["bytes"].tobytes()
    ends = np.cumsum(arrays["lengths"]).tolist()
    return [joined[start:end].decode("utf-8") for start, end in zip([0, *ends], ends, strict=False)]
