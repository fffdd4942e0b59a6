"""The data files of a run as they are, faults included: every line with its place, and a sample or the reason why there is none."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..errors import InputError
from .lines import JsonLines, parse_line
from .report import Problem
from .samples import Sample, parse_row


@dataclass(frozen=True)
class Source:
    """One data file of a run, with the image folder and the reward method of its rows. `skip_images`: the folder is missing, so that nothing need be said of each image."""

    path: str
    image_folder: str = ""
    reward_method: str = "default"
    skip_images: bool = False


@dataclass
class Row:
    """A line as read: its place, the sample (None if it cannot be used) and what is wrong with it."""

    number: int  # among all rows of the run
    source: Source
    path: str
    line: int
    id: str | None = None
    sample: Sample | None = None
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: str, message: str, remedy: str) -> None:
        self.problems.append(Problem(kind, message, remedy, self.path, self.line, self.id, self.number))

    @property
    def images(self) -> tuple[str, ...]:
        """Paths of the images that can be looked at; a missing folder was reported once and for all."""
        return () if self.sample is None or self.source.skip_images else self.sample.images


def pair_sources(data_file_paths: list[str], image_folders: list[str], reward_methods: list[str]) -> list[Source]:
    """One `Source` a file; a single folder or method serves all files.

    Raises:
        InputError: the numbers don't match, or no file is given.
    """
    number = len(data_file_paths)
    if not number:
        raise InputError(
            "No data file was given; set --data_file_paths to one or several jsonl files, separated by ':'."
        )
    for flag, values in (("--image_folders", image_folders), ("--reward_method", reward_methods)):
        if len(values) not in (0, 1, number):
            raise InputError(
                f"{flag} names {len(values)} for {number} data file(s); give one for each file, in their order, or a single one for all."
            )
    folders, methods = image_folders or [""], reward_methods or ["default"]
    folders = folders * number if len(folders) == 1 else folders
    methods = methods * number if len(methods) == 1 else methods
    return [
        Source(path, os.path.abspath(folder) if folder else "", method)
        for path, folder, method in zip(data_file_paths, folders, methods, strict=True)
    ]


def open_sources(sources: list[Source]) -> tuple[list[tuple[Source, JsonLines]], list[Problem]]:
    """The files that can be read, and what is wrong with the others and with the image folders."""
    files, problems = [], []
    for source in sources:
        if source.image_folder and not os.path.isdir(source.image_folder):
            problems.append(
                Problem(
                    "image_folder",
                    f"its image folder {source.image_folder} does not exist",
                    "correct --image_folders",
                    source.path,
                )
            )
            source = replace(source, skip_images=True)
        try:
            files.append((source, JsonLines(source.path)))
        except InputError as error:
            message, remedy = split_remedy(str(error))
            names = f"{re.escape(source.path)}|{re.escape(os.path.abspath(source.path))}"
            told = re.match(rf"(?:Data file )?(?:{names})(?::(\d+):)? (.*)", message, re.DOTALL)
            line = None if told[1] is None else int(told[1])
            problems.append(Problem(_kind(told[2], FILE_KINDS), told[2], remedy, source.path, line))
    return files, problems


def read_rows(files: list[tuple[Source, JsonLines]]) -> Iterator[Row]:
    """Every line of the files, parsed; a line that cannot be used comes with its problem and without a sample."""
    number = 0
    for source, lines in files:
        for i in range(len(lines)):
            place = lines.source(i)
            path, _, line = place.rpartition(":")
            row = Row(number, source, path, int(line))
            raw = lines.raw(i)
            try:
                record = parse_line(raw, place)
                row.id = _id(record)
                row.sample = parse_row(
                    record, image_folder=source.image_folder, reward_method=source.reward_method, source=place
                )
            except InputError as error:
                message, remedy = split_remedy(str(error).removeprefix(f"{place}: "))
                row.add(_kind(message, ROW_KINDS), message, remedy)
            yield row
            number += 1


# How the messages of lines.py and samples.py begin, and what kind of problem that is.
FILE_KINDS = {
    r"does not exist|is a folder|cannot be read": "file_missing",
    r"is empty": "file_empty",
    r"starts with a byte order mark|(is )?not UTF-8": "encoding",
    r"holds (one JSON list|indented JSON)|is compressed": "not_jsonl",
}
ROW_KINDS = {
    r"not JSON|nested too deeply|holds an integer of too many digits|a row is a JSON object": "json",
    r"byte \d+ is not UTF-8|holds half of a surrogate": "encoding",
    r"`id`": "id_missing",
    r"\d+ <image> marker": "image_markers",
    r"image .* lies outside": "image_outside",
    r"`image`|the row has an image but": "image_field",
    r"turn \d+ is empty": "turn_empty",
    r"turn \d+|`conversations`|the prompt|a system turn": "conversations",
    r"`answers`": "answers_field",
    r"`evidence`|`candidates`": "passage_keys",
    r"`\w+` is": "field",
}


def _kind(message: str, kinds: dict[str, str]) -> str:
    return next((kind for pattern, kind in kinds.items() if re.match(pattern, message)), "other")


def split_remedy(text: str) -> tuple[str, str]:
    """An error's text as (what is wrong, what to do): the house writes them as "wrong; do"."""
    message, mark, remedy = text.rpartition("; ")
    return (message, remedy) if mark else (text, "")


def _id(record: object) -> str | None:
    """The id of a line that may be unusable otherwise."""
    id = record.get("id") if isinstance(record, dict) else None
    return str(id) if isinstance(id, int | str) and not isinstance(id, bool) and str(id).strip() else None
