"""Fields of files whose keys are not documented: the keys expected, others given by `--map`, and what to say when neither is there."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError

SHOWN = 60  # characters of a value that a message shows


class FieldMap:
    """Where each field of ours stands in an item of theirs."""

    def __init__(self, expected: Mapping[str, str], given: Sequence[str] = ()):
        """
        Args:
            expected: field: key, or several with dots between them: "image.id" is the value of `id` in that of `image`, "0" the first of a list.
            given: of --map, "field=key" each; go before the expected ones.

        Raises:
            InputError: a given one is not of this form, or names no field.
        """
        self.keys = dict(expected)
        for pair in given:
            ours, equals, theirs = pair.partition("=")
            if not equals or not theirs or ours not in expected:
                raise InputError(
                    f"--map {pair}: wanted is field=key, the field one of {', '.join(expected)}; --map {next(iter(expected))}=their_key for example."
                )
            self.keys[ours] = theirs

    def get(self, item: Any, ours: str) -> Any:
        """The value of a field; None if the item has none. A key that has a dot itself goes before the path."""
        theirs = self.keys[ours]
        if isinstance(item, dict) and theirs in item:
            return item[theirs]
        for key in theirs.split("."):
            if isinstance(item, dict):
                item = item.get(key)
            elif isinstance(item, list) and key.isdecimal() and int(key) < len(item):
                item = item[int(key)]
            else:
                return None
        return item

    def refuse(self, item: Any, lacking: Sequence[str], place: str) -> InputError:
        """The error for an item that lacks these fields: what was found, what was wanted, what to do."""
        wanted = ", ".join(f"{ours} (as {self.keys[ours]!r})" if ours != self.keys[ours] else ours for ours in lacking)
        return InputError(
            f"{place} lacks {wanted}. Found: {described(item)}. Say where a field stands with --map field=key, --map {lacking[0]}=their_key for example; keys inside of others with dots between them."
        )


def add_map_flag(flags: argparse.ArgumentParser, expected: Mapping[str, str]) -> None:
    """--map, with the expected keys in its help."""
    table = ", ".join(f"{ours}={theirs}" for ours, theirs in expected.items())
    flags.add_argument(
        "--map",
        nargs="+",
        default=[],
        metavar="field=key",
        help=f"keys under which the file has our fields, where they are others than these: {table}. Dots lead into objects and lists: {next(iter(expected))}=outer.inner",
    )


def described(value: Any) -> str:
    """What a value is: of an object its keys with their kinds and shortened values, of a list its length and first item."""
    if isinstance(value, dict):
        return "an object with " + (", ".join(f"{key}: {_short(part)}" for key, part in value.items()) or "no keys")
    if isinstance(value, list):
        return f"a list of {len(value):,}" + (f", the first {described(value[0])}" if value else "")
    return _short(value)


def _short(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    if value is None:
        return "null"
    text = repr(value)
    return f"{kinds[type(value)]} {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
