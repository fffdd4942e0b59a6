"""The files that VLM-R1's users list as their data: jsonl files, JSON lists, and yaml files that name such files with a part to take of each."""

import math
import os
import random
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import yaml

from ..errors import InputError
from .json_stream import items

STRATEGIES = ("first", "end", "random")
FOLDER_KEYS = ("image_folder", "data_root", "data_folder")  # of an entry; VLM-R1's forks name it differently


@dataclass(frozen=True)
class Part:
    """A file of items and what to take of it: `strategy` is "all", or as in "first:1000", "end:20%", "random:999" (VLM-R1's `sampling_strategy`)."""

    path: str
    image_folder: str
    method: str | None
    strategy: str

    def chosen(self, seed: int) -> Collection[int]:
        """Places of the items to take, counted from 0. A random choice is of all items without repetition, and the same for a seed."""
        how, _, amount = self.strategy.partition(":")
        if how == "all":
            return range(sys.maxsize)
        number = sum(1 for _ in items(self.path))
        wanted = math.ceil(int(amount[:-1]) * number / 100) if amount.endswith("%") else int(amount)
        wanted = min(wanted, number)
        if how == "random":
            return set(random.Random(f"{seed} {os.path.basename(self.path)}").sample(range(number), wanted))
        return range(wanted) if how == "first" else range(number - wanted, number)


def list_parts(paths: Sequence[str], image_folders: Sequence[str], methods: Sequence[str]) -> list[Part]:
    """The files in their order, those that a yaml file names in its place.

    Args:
        paths: .jsonl, .json, .yaml or .yml.
        image_folders, methods: one for each of `paths`, or one for all; may be empty.

    Raises:
        InputError: the numbers don't match, a file doesn't exist or has another ending, or a yaml file has another form.
    """
    if not paths:
        raise InputError("--input names no file; give VLM-R1's jsonl, json or yaml files, separated by ':'.")
    folders = _for_each(image_folders, paths, "--image_folders", "")
    named = _for_each(methods, paths, "--reward_method", None)
    parts = []
    for path, folder, method in zip(paths, folders, named, strict=True):
        if not os.path.isfile(path):
            raise InputError(f"{path} is no file; give VLM-R1's jsonl, json or yaml file.")
        ending = os.path.splitext(path)[1].lower()
        if ending in (".yaml", ".yml"):
            parts += _yaml_parts(path, folder, method)
        elif ending in (".json", ".jsonl"):
            parts.append(Part(path, folder, method, "all"))
        else:
            raise InputError(
                f"{path} ends in none of .jsonl, .json, .yaml; give it the ending that says what it holds."
            )
    return parts


def _for_each(values: Sequence, paths: Sequence[str], flag: str, default: str | None) -> list:
    if len(values) not in (0, 1, len(paths)):
        raise InputError(
            f"{flag} names {len(values)} for {len(paths)} file(s); give one for each, in their order, or a single one for all."
        )
    return list(values) if len(values) == len(paths) else [*(values or [default])] * len(paths)


def _yaml_parts(path: str, folder: str, method: str | None) -> list[Part]:
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no yaml file in UTF-8 ({' '.join(str(error).split())}); correct it.") from None
    entries = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(
            f"{path} has no list `datasets`; wanted is as VLM-R1's: datasets: [{{json_path: a.json, sampling_strategy: first:1000}}]."
        )
    return [
        _entry(entry, f"{path} datasets[{number}]", os.path.dirname(path), folder, method)
        for number, entry in enumerate(entries)
    ]


def _entry(entry: object, source: str, beside: str, folder: str, method: str | None) -> Part:
    path = entry.get("json_path") if isinstance(entry, dict) else None
    if not isinstance(path, str):
        raise InputError(f"{source} names no `json_path`; wanted is the path of a .json or .jsonl file.")
    if os.path.splitext(path)[1].lower() not in (".json", ".jsonl"):
        raise InputError(
            f"{source}: {path} ends neither in .json nor in .jsonl; give it the ending that says what it holds."
        )
    path = _existing(path, beside, os.path.isfile, f"{source}: `json_path`")
    own = next((entry[key] for key in FOLDER_KEYS if entry.get(key)), None)
    if own is not None:
        folder = _existing(str(own), beside, os.path.isdir, f"{source}: the image folder")
    strategy = str(entry.get("sampling_strategy") or "all")
    how, colon, amount = strategy.partition(":")
    digits = amount.removesuffix("%")
    if strategy != "all" and (how not in STRATEGIES or not colon or not digits.isdecimal() or not int(digits)):
        raise InputError(
            f"{source}: `sampling_strategy` is {strategy!r}; wanted is all, or first:1000, end:1000, random:1000, random:20%."
        )
    return Part(path, folder, method, strategy)


def _existing(path: str, beside: str, exists, name: str) -> str:
    """The path as it is, or from the folder of the yaml file."""
    for place in (path, os.path.join(beside, path)):
        if exists(place):
            return place
    raise InputError(f"{name} {path} does not exist, neither here nor beside the yaml file; correct it.")
