"""InfoSeek's own files, read line by line: the questions with their references (`infoseek_val.jsonl`) and the file of question types (`infoseek_val_qtype.jsonl`).

A line of the first holds `data_id`, `image_id` (OVEN's), `question`, `answer`, `answer_eval` and `data_split`; one of the second `data_id` and `question_type`.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..data.lines import JsonLines
from ..data.samples import is_number, row_id
from ..errors import InputError
from .infoseek import QUESTION_TYPES

FIELDS = ("data_id", "image_id", "question", "answer_eval", "data_split")
TYPES = {name.lower(): name for name in QUESTION_TYPES}  # the official code compares lower-case letters


def read_references(path: str, *, needs: Sequence[str] = FIELDS) -> Iterator[dict]:
    """The questions in the order of the file, each as its line has it, `data_id` always as a text. Nothing is kept in memory.

    Args:
        needs: fields that every line must have. `answer_eval` is not in the file of the test split.

    Raises:
        InputError: no such file, another format, or a line that lacks a field or has one of another form.
    """
    lines = JsonLines(path)
    for i in range(len(lines)):
        source = lines.source(i)
        row = lines.record(i)
        if not isinstance(row, dict):
            raise InputError(f"{source}: a line must be a JSON object; give a file of InfoSeek, as infoseek_val.jsonl.")
        for name in needs:
            if name not in row:
                raise InputError(
                    f"{source}: `{name}` is missing; wanted is a file of questions as infoseek_val.jsonl, with {', '.join(needs)} in every line. This line has {', '.join(map(str, row)) or 'nothing'}."
                )
            if name == "answer_eval":
                _check_answers(row[name], source)
            elif name != "data_id" and not (isinstance(row[name], str) and row[name].strip()):
                raise InputError(f"{source}: `{name}` is {_short(row[name])}; wanted is a text.")
        if "data_split" in needs:
            row["data_split"] = sys.intern(row["data_split"])  # a handful of names, once each in memory
        row["data_id"] = row_id(row, "data_id", source)
        yield row


def read_question_types(path: str) -> dict[str, str]:
    """`data_id` → "String", "Time" or "Numerical" of every line.

    Raises:
        InputError: no such file, another format, an unknown question type, or an id given twice.
    """
    lines = JsonLines(path)
    types: dict[str, str] = {}
    for i in range(len(lines)):
        source = lines.source(i)
        row = lines.record(i)
        if not isinstance(row, dict) or not {"data_id", "question_type"} <= row.keys():
            raise InputError(
                f"{source}: wanted is a line with data_id and question_type, as in infoseek_val_qtype.jsonl."
            )
        id = row_id(row, "data_id", source)
        if id in types:
            raise InputError(f"{source}: data_id {id!r} has a question type in an earlier line; remove one of the two.")
        types[id] = question_type(row["question_type"], source)
    return types


def question_type(value: Any, source: str) -> str:
    """A question type as `infoseek.QUESTION_TYPES` spells it; case does not matter. InputError, opening with `source`, for another one."""
    if not isinstance(value, str) or value.lower() not in TYPES:
        raise InputError(f"{source}: question_type {_short(value)} is none of {', '.join(QUESTION_TYPES)}.")
    return TYPES[value.lower()]


def check_reference(answer_eval: Any, type: str, source: str) -> None:
    """InputError if `answer_eval`, of a form that `read_references` lets through, is no reference for a question of this type."""
    first = answer_eval[0] if isinstance(answer_eval, list) else answer_eval
    if type == "Numerical" and isinstance(first, str):
        raise InputError(
            f'{source}: `answer_eval` of a Numerical question is {_short(answer_eval)}; wanted is a range, as [{{"wikidata": 1.0, "range": [0.9, 1.1]}}]. Do references and question types belong together?'
        )
    if type != "Numerical" and not (isinstance(answer_eval, list) and isinstance(first, str)):
        raise InputError(
            f"{source}: `answer_eval` of a {type} question is {_short(answer_eval)}; wanted is a list of texts. Do references and question types belong together?"
        )


def _check_answers(value: Any, source: str) -> None:
    """A list of texts; or a range, alone or in a list; or a number."""
    parts = value if isinstance(value, list) else [value]
    texts = isinstance(value, list) and all(isinstance(part, str) for part in parts)
    if not parts or not (texts or (is_number(parts[0]) or _is_range(parts[0]))):
        raise InputError(
            f'{source}: `answer_eval` is {_short(value)}; wanted is a list of texts, or a range as [{{"wikidata": 1.0, "range": [0.9, 1.1]}}].'
        )


def _is_range(value: Any) -> bool:
    bounds = value.get("range") if isinstance(value, dict) else None
    return isinstance(bounds, list) and len(bounds) >= 2 and all(map(is_number, bounds))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
