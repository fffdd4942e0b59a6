"""InfoSeek as EchoSight publishes it (Go2Heart/EchoSight, `train.csv` and `test.csv`): Encyclopedic-VQA's columns with a `data_id`, and "infoseek" as data set and question type.

Such a file holds no more of InfoSeek than its columns can: alternatives of an answer between `|`, the article's url, and neither question types nor InfoSeek's own splits. These are in
InfoSeek's own files, in which a question has the same `data_id`.
"""

import ast
from collections.abc import Iterator

from ..errors import InputError
from .evqa_csv import INFOSEEK, read_csv

YEARS = range(1000, 2101)  # whole numbers that are read as years


def read_csv_questions(path: str) -> Iterator[dict]:
    """The questions in the order of the file, in the fields of InfoSeek's own ones: data_id, image_id, question, answer, answer_eval (texts, or a range where the cell writes one), data_split; and
    `names`, the article's url and title.

    Raises:
        InputError: as `read_csv`; a row of another data set, or without an id or an image.
    """
    for number, row in read_csv(path, infoseek=True):
        source = f"{path} row {number}"
        if row["dataset_name"].strip().lower() != INFOSEEK:
            raise InputError(f"{source}: `dataset_name` is {row['dataset_name'][:60]!r}; wanted is {INFOSEEK}.")
        images = [part.strip() for part in row["dataset_image_ids"].split("|") if part.strip()]
        for name, value in (("data_id", row["data_id"]), ("dataset_image_ids", images), ("question", row["question"])):
            if not value or isinstance(value, str) and not value.strip():
                raise InputError(f"{source}: `{name}` is empty; download the file again.")
        texts = [part.strip() for part in row["answer"].split("|") if part.strip()]
        yield {
            "data_id": row["data_id"].strip(),
            "image_id": images[0],
            "question": row["question"],
            "answer": texts,
            "answer_eval": _range(row["answer"]) or texts,
            "data_split": row.get("encyclopedic_vqa_split", ""),
            "names": [row["wikipedia_url"].strip(), row.get("wikipedia_title", "").strip()],
        }


def is_number(texts: list[str]) -> bool:
    """Whether an answer is one number, however often, and no year."""
    numbers = {_number(text) for text in texts}
    return len(numbers) == 1 and None not in numbers and not numbers & set(YEARS)


def number_of(texts: list[str]) -> float:
    """The number of an answer that `is_number`; InputError of another one."""
    value = _number(texts[0])
    if value is None:
        raise InputError(f"the answer of a Numerical question is {texts[0][:60]!r}; wanted is a number or a range")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None


def _range(cell: str) -> list[dict] | None:
    """The range of a cell that writes InfoSeek's `{'wikidata': 1.0, 'range': [0.9, 1.1]}`, alone or in a list; None of any other."""
    if "range" not in cell:
        return None
    try:
        value = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    value = value[0] if isinstance(value, list) and value else value
    ends = value.get("range") if isinstance(value, dict) else None
    is_range = isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)
    return [value] if is_range else None
