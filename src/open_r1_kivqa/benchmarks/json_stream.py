"""The items of one huge JSON value, one after the other: memory holds one item at a time, however large the file."""

import codecs
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import ijson

from ..data.lines import parse_line
from ..errors import InputError

LARGEST = 256 * 2**20  # bytes of one item; more means that the items lie deeper than the first level
HEAD = 16 * 2**20  # bytes in which the end of the first line is looked for
CHUNK = 2**18  # bytes read at a time
BLANK = b" \t\r\n"
MARK = "(right here) ------^"  # below the place in the parser's own messages


class Item(NamedTuple):
    """One item: `name` is its key in an object, else its place counted from 0; `place` names file and item in messages."""

    name: str
    value: Any
    place: str


def items(path: str, *, largest: int = LARGEST) -> Iterator[Item]:
    """The items of a file that holds one JSON object (its keys and values) or one list, or an object a line (jsonl).

    Which of them it is shows in the file, not in its name, but for a single line that could be either: there the ending .jsonl decides. A key that an object gives several
    times comes as often.

    Args:
        path: UTF-8, with or without a byte order mark.
        largest: bytes that one item may take.

    Raises:
        InputError: no such file, compressed, another encoding, no object or list; or while the items are read: the file ends in the middle, isn't JSON from some byte on, or
            has an item larger than `largest`. Says at which byte, and after which item.
    """
    kind, skip = _look(path)  # here and not in the generator, so that a wrong file is refused at once
    return _lines(path, skip, largest) if kind == "lines" else _values(path, kind, skip, largest)


def is_object(path: str) -> bool:
    """Whether the items have keys: the file holds one object. InputError as for `items`."""
    return _look(path)[0] == "object"


def _look(path: str) -> tuple[str, int]:
    """(object, list or lines; bytes before the JSON)."""
    if not os.path.isfile(path):
        reason = "is a folder" if os.path.isdir(path) else "does not exist"
        raise InputError(f"{path} {reason}; give the path of a JSON file.")
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file that you may read.") from error
    if head.startswith(b"\x1f\x8b"):
        raise InputError(f"{path} is compressed; unpack it first: gunzip -k {path}")
    if head.startswith((b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        raise InputError(f"{path} is an archive; unpack it and give the JSON file in it.")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path} is UTF-16; convert it with iconv -f UTF-16 -t UTF-8.")
    skip = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    text = head[skip:].lstrip(BLANK)
    if not text:
        raise InputError(f"{path} is empty; give the file with its content.")
    if text.startswith(b"["):
        return "list", skip
    if not text.startswith(b"{"):
        raise InputError(f"{path} begins with {text[:40]!r}; wanted is JSON: an object or list of items, or jsonl.")
    return ("lines" if _is_jsonl(path, text) else "object"), skip


def _is_jsonl(path: str, text: bytes) -> bool:
    """Whether what opens with `{` is one object a line: its first line is one, and another follows."""
    line, _, rest = text.partition(b"\n")
    if not rest.strip(BLANK):  # a single line, or one that is longer than the head
        return path.endswith(".jsonl")
    try:
        parse_line(line, path)
    except InputError:
        return False
    return True


def _lines(path: str, skip: int, largest: int) -> Iterator[Item]:
    with open(path, "rb") as file:
        file.seek(skip)
        number = 0
        while line := file.readline(largest + 1):
            number += 1
            place = f"{path}:{number}"
            if len(line) > largest:
                raise InputError(f"{place}: the line is longer than {largest:,} bytes; wanted is one item a line.")
            if not line.strip(BLANK):
                continue
            try:
                value = parse_line(line, place)
            except InputError as error:
                if file.tell() == os.path.getsize(path) and not line.endswith(b"\n"):
                    raise InputError(
                        f"{path} ends in the middle of line {number:,}, at byte {file.tell():,}; download the rest of it."
                    ) from None
                raise InputError(f"{error} (The line ends at byte {file.tell():,}.)") from None
            yield Item(str(number - 1), value, place)


def _values(path: str, kind: str, skip: int, largest: int) -> Iterator[Item]:
    with open(path, "rb") as file:
        file.seek(skip)
        source = _Watched(file, path, largest)
        found = (
            ijson.kvitems(source, "", use_float=True, buf_size=CHUNK)
            if kind == "object"
            else enumerate(ijson.items(source, "item", use_float=True, buf_size=CHUNK))
        )
        last, number = "", 0
        while True:
            try:
                name, value = next(found)
            except StopIteration:
                return
            except ijson.JSONError as error:
                raise InputError(_what_is_wrong(path, source, number, last, error)) from None
            last = name = str(name)
            number += 1
            source.since = source.position
            yield Item(name, value, f"{path}[{name!r}]" if kind == "object" else f"{path}[{name}]")


class _Watched:
    """A file that counts what was read of it, and since when no item was complete."""

    def __init__(self, file: BinaryIO, path: str, largest: int):
        self._file, self._path, self._largest = file, path, largest
        self.position = self.since = file.tell()

    def read(self, size: int = -1) -> bytes:
        if self.position - self.since > self._largest:
            raise InputError(
                f"{self._path}: no item is complete in the {self._largest:,} bytes after byte {self.since:,}; wanted is an object or list whose values are the items. If they lie deeper, take them out with jq."
            )
        data = self._file.read(size)
        self.position += len(data)
        return data


def _what_is_wrong(path: str, source: _Watched, number: int, last: str, error: ijson.JSONError) -> str:
    """The parser's own message shows a few bytes around the place, but doesn't say where that is."""
    message = error.args[0]
    message = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    items = f"{number:,} complete item{'s' if number > 1 else ''}"
    after = f"after {items}, the last of them {last[:120]!r}" if number else "in the first item"
    # Cut inside of `null` or a number, it is a lexical error to the parser.
    cut = source.position == os.path.getsize(path) and _last_byte(path) not in b"}]" and "garbage" not in message
    if cut or "premature EOF" in message:
        return f"{path} ends in the middle, at byte {source.position:,}, {after}; compare its size with the one it should have, and download the rest."
    if "overflow" in message:
        remedy = "it holds a number of too many digits; write it as a text"
    else:
        remedy = "download the file again, or correct it there"
    reason, *around = (
        line.replace(MARK, "").strip() for line in message.splitlines()[:2]
    )  # the bytes before and after the place
    start = max(source.position - CHUNK, 0)
    return f"{path} is not JSON between bytes {start:,} and {source.position:,}, {after} ({' '.join([reason, *map(repr, around)])}); {remedy}."


def _last_byte(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
