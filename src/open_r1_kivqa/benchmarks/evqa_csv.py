"""Encyclopedic-VQA's csv files (`train.csv`, `val.csv`, `test.csv`), and EchoSight's of InfoSeek in the same columns, read row by row and checked."""

import csv
import os
from collections.abc import Iterator

from ..errors import InputError
from .evqa import QUESTION_TYPES

COLUMNS = (
    "question",
    "answer",
    "dataset_image_ids",
    "dataset_name",
    "dataset_category_id",
    "question_type",
    "wikipedia_url",
    "wikipedia_title",
    "evidence",
    "evidence_section_id",
    "evidence_section_title",
    "encyclopedic_vqa_split",
    "question_original",
    "wikipedia_url_used_in_train",
)
INFOSEEK = "infoseek"  # data set and question type of all rows that EchoSight made of InfoSeek's
INFOSEEK_COLUMNS = (
    "data_id",
    "question",
    "answer",
    "dataset_image_ids",
    "dataset_name",
    "question_type",
    "wikipedia_url",
)
SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars"}
LONGEST_FIELD = (
    2**30
)  # characters; Python's own limit of 131,072 is for the whole process, and an evidence may be longer

csv.field_size_limit(LONGEST_FIELD)


def read_csv(path: str, *, infoseek: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """(number, columns as text) of each row; numbers count from 0 without the header, and are what prediction files call the row.

    The columns may stand in any order, and others beside them are passed on as they are. A byte order mark is skipped. Opens the file at the first row.

    Args:
        infoseek: the file is EchoSight's of InfoSeek: it has a `data_id`, and not all of Encyclopedic-VQA's columns are needed.

    Raises:
        InputError: no such file, not UTF-8, compressed; a column is missing or named twice; fields are separated by something else than commas; a row with more or fewer fields than the
            header, or a quote that is never closed (a file cut short); a question type that the benchmark doesn't have; the file is of the other benchmark. Says which row and line.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path} is no file; give Encyclopedic-VQA's csv file, train.csv for example.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from _rows(path, csv.reader(file, strict=True), infoseek)
    except UnicodeDecodeError as error:
        with open(path, "rb") as file:
            compressed = file.read(4).startswith((b"PK\x03\x04", b"\x1f\x8b"))
        remedy = "unpack it first" if compressed else "give the csv file as it was downloaded"
        raise InputError(f"{path} is not UTF-8 ({error.reason} at byte {error.start + 1}); {remedy}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file that you may read.") from error


def _rows(path: str, reader, infoseek: bool) -> Iterator[tuple[int, dict[str, str]]]:
    number, line = -1, 1
    try:
        header = next(reader, None)
        _check_header(path, header, INFOSEEK_COLUMNS if infoseek else COLUMNS)
        line = reader.line_num + 1
        for fields in reader:
            if fields:  # else a blank line
                number += 1
                row = _row(header, fields, f"{path} row {number} (line {line})")
                _check_type(row["question_type"], infoseek, f"{path} row {number} (line {line})")
                yield number, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path} row {number + 1} (line {line}): {error}; a quote is not closed or not doubled. Download the file again, it may have been cut short."
        ) from None


def _check_header(path: str, header: list[str] | None, wanted: tuple[str, ...]) -> None:
    if not header:
        raise InputError(f"{path} is empty; give Encyclopedic-VQA's csv file, train.csv for example.")
    missing = [name for name in wanted if name not in header]
    for mark, name in SEPARATORS.items():
        if missing and len(set(",".join(header).split(mark)) & set(COLUMNS)) > 1:
            raise InputError(
                f"{path}: its columns are separated by {name}; wanted are commas, as in the published file."
            )
    if missing:
        raise InputError(
            f"{path}: it has no column {', '.join(missing)}; its columns are {_list(header)}. Wanted are {', '.join(wanted)}, in any order."
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: its header names {', '.join(twice)} twice; give every column its own name.")


def _row(header: list[str], fields: list[str], source: str) -> dict[str, str]:
    if len(fields) != len(header):
        raise InputError(
            f"{source} has {len(fields)} fields and the header {len(header)}; download the file again, it may have been cut short."
        )
    return dict(zip(header, fields, strict=True))


def _check_type(kind: str, infoseek: bool, source: str) -> None:
    if infoseek and kind in QUESTION_TYPES:
        raise InputError(
            f"{source}: `question_type` is {kind!r}, one of Encyclopedic-VQA's; convert its files by `kivqa convert evqa`."
        )
    if not infoseek and kind == INFOSEEK:
        raise InputError(
            f"{source}: `question_type` is {kind!r}: the file is InfoSeek in Encyclopedic-VQA's columns, as EchoSight publishes it; convert it by `kivqa convert infoseek`, and score its rows by `kivqa score rows` or `kivqa score infoseek`."
        )
    if kind not in ((INFOSEEK,) if infoseek else QUESTION_TYPES):
        known = INFOSEEK if infoseek else ", ".join(QUESTION_TYPES)
        raise InputError(
            f"{source}: `question_type` is {kind[:60]!r}; the benchmark has {known}. Correct it, or take the row out."
        )


def _list(header: list[str]) -> str:
    text = ", ".join(header)
    return text if len(text) <= 300 else f"{text[:300]}…"
