"""InfoSeek's jsonl files (Chen et al. 2023) as rows: a question about the entity of an OVEN image each.

Taken as well are EchoSight's csv files of it (infoseek_csv.py), whose questions are the same.

The benchmark names the entity (in its withkb files) but no passage, so evidence is searched in the entity's article (evidence.py). The test split has neither answers nor entities: its
rows serve for predictions.
"""

import argparse
import os
import re
from typing import Any

from ..data.image_files import ImageFiles
from ..data.jsonl import split_paths
from ..data.samples import parse_row
from ..errors import InputError
from . import infoseek
from .articles import add_article_flags, check_article_flags
from .converted import Counts, RowsFile, check_row, file_identity
from .entities import Entities, add_evidence_flags, check_evidence_flags, conversation
from .infoseek_csv import is_number, number_of, read_csv_questions
from .infoseek_files import FIELDS, check_reference, read_question_types, read_references
from .seen import SeenKeys

UNANSWERED = ("data_id", "image_id", "question")  # what every line has in the file of the test split
MONTHS = "january february march april may june july august september october november december"
DATE = re.compile(
    rf"(?:(?:{'|'.join(f'{name}|{name[:3]}' for name in MONTHS.split())})\b|[\d\s,./–-]|\b(?:st|nd|rd|th|bc|bce|ad|ce|century|c|ca|of|the)\b|(?<=\d)(?:st|nd|rd|th|s)\b)+",
    re.IGNORECASE,
)
YEAR = re.compile(r"\d{3,4}|century", re.IGNORECASE)


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument(
        "--input",
        required=True,
        help="jsonl file of questions: infoseek_train.jsonl, infoseek_val.jsonl; or EchoSight's csv file of InfoSeek",
    )
    flags.add_argument(
        "--references",
        help="jsonl file with the answers and splits of a csv file's questions: infoseek_val.jsonl. Without it they are what the csv says",
    )
    flags.add_argument("--withkb", help="jsonl file with their entities: infoseek_val_withkb.jsonl")
    flags.add_argument(
        "--question_types",
        help="jsonl file with their types: infoseek_val_qtype.jsonl. Without it the form of the answer says the type",
    )
    flags.add_argument(
        "--image_roots",
        required=True,
        help="folders of OVEN's images, separated by ':'; they are looked through at any depth",
    )
    flags.add_argument(
        "--id2path", help="JSON object of image ids and paths (oven_id2path.json), where files have other names"
    )
    add_article_flags(flags)
    add_evidence_flags(flags)
    flags.add_argument("--split", help="name of the rows' split (default: each one's data_split)")


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes flags.output, and says what became of the questions. Raises InputError for what can't be used."""
    check_article_flags(flags)
    check_evidence_flags(flags)
    if flags.references and not _is_csv(flags.input):
        raise InputError("--references is for a csv file, whose answers it replaces; leave it out.")
    needs = () if _is_csv(flags.input) else _needs(flags.input)
    maker, seen = _Maker(flags), SeenKeys()
    with RowsFile(flags.output, maker.identity) as rows:
        done = rows.done
        questions = read_references(flags.input, needs=needs) if needs else read_csv_questions(flags.input)
        for number, question in enumerate(questions):
            new = seen.add(question["data_id"])
            if number < done:
                continue
            if not new:
                rows.counts.drop("data_id given before", question["data_id"])
            elif row := maker.row(question, rows.counts):
                rows.write(row)
            rows.dealt()
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {maker.images.folder}"]


def own_answer(question: dict) -> str:
    """What the benchmark gives as the answer, one of its wordings: `answer`'s first, else `answer_eval`'s."""
    for field in ("answer", "answer_eval"):
        value = question.get(field)
        value = value[0] if isinstance(value, list) and value else value
        value = value.get("wikidata") if isinstance(value, dict) else value
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.12g}"
    return ""


class _Maker:
    """Makes rows of questions, from all files but the questions' own."""

    def __init__(self, flags: argparse.Namespace):
        self._input, self._split, self._is_csv = flags.input, flags.split, _is_csv(flags.input)
        if self._is_csv:
            next(read_csv_questions(flags.input), None)  # a wrong file is refused before the images are looked for
        self._official = _official(flags.references) if flags.references else {}
        self._default_split = os.path.basename(flags.output).removesuffix(".jsonl")
        self._types = read_question_types(flags.question_types) if flags.question_types else None
        self._entities = _entities(flags.withkb) if flags.withkb else {}
        self._articles = Entities(flags) if flags.knowledge_base else None
        self.images = ImageFiles.scan(split_paths(flags.image_roots), id2path=flags.id2path)
        self.identity = {
            "benchmark": "infoseek",
            "inputs": [
                file_identity(path)
                for path in (flags.input, flags.references, flags.withkb, flags.question_types)
                if path
            ],
            "image_folders": self.images.folder,
            "images": self.images.fingerprint,
            "articles": self._articles and self._articles.identity,
            "split": flags.split,
        }

    def row(self, question: dict, counts: Counts) -> dict | None:
        """The row of a question; says in `counts` why there is none, and what is odd about it."""
        question = self._completed(question, counts) if self._is_csv else question
        id, split = question["data_id"], question.get("data_split")
        image = self._image(question["image_id"], counts)
        references = None if image is None else self._references(question, counts)
        if references is None:
            return None
        row = {"id": id, "image": image, "conversations": conversation(question["question"], own_answer(question))}
        row |= references
        self._add_entity(row, question, counts)
        row |= {
            "split": self._split or (split if isinstance(split, str) and split else self._default_split),
            "accu_reward_method": "infoseek",
            "data_id": id,
            "image_id": question["image_id"],
        }
        try:
            if references:
                check_row(row, id)
            else:  # like `kivqa check`, check_row wants an answer
                parse_row(row, image_folder=self.images.folder, reward_method="", source=id)
        except InputError as error:
            counts.drop("the row could not be used", error)
            return None
        return row

    def _completed(self, question: dict, counts: Counts) -> dict:
        """A csv file's question with InfoSeek's own answers and split, where they are given."""
        own = self._official.get(question["data_id"])
        if own is None:
            counts.note("answer and split as the csv has them (--references gives InfoSeek's own)")
            return question
        return question | dict(zip(("answer", "answer_eval", "data_split"), own, strict=True))

    def _image(self, id: str, counts: Counts) -> str | None:
        files = self.images.find_all(id, "oven")
        if not files:
            counts.drop("its image was not found", id)
        if len(files) > 1:
            counts.note("an image id that several files have; the first one is taken", f"{id}: {' '.join(files[:3])}")
        return files[0] if files else None

    def _references(self, question: dict, counts: Counts) -> dict | None:
        """The fields that hold the answer; {} for a question of the test split, None for one whose answer can't be used."""
        id, answer_eval = question["data_id"], question.get("answer_eval")
        if not answer_eval:
            counts.note("without an answer: for predictions only")
            return {}
        kind = self._type(question, counts)
        try:
            if (
                self._is_csv
                and kind == "Numerical"
                and isinstance(answer_eval, list)
                and isinstance(answer_eval[0], str)
            ):
                answer_eval = number_of(answer_eval)
                counts.note("a number without a range; 10 % on both sides are taken", id)
            check_reference(answer_eval, kind, f"{self._input}: {id}")
            answers = _answers(answer_eval, kind, id, counts)
        except InputError as error:
            counts.drop("question type and answer don't fit", error)
            return None
        if not answers:
            counts.drop("no answer is left", id)
            return None
        return {"answers": answers, "answer_type": kind.lower(), "question_type": kind}

    def _type(self, question: dict, counts: Counts) -> str:
        """The file's, else by the form of the answer: a number or range, dates or other texts."""
        if self._types is not None:
            if question["data_id"] in self._types:
                return self._types[question["data_id"]]
            counts.note("without a question type in --question_types; the answer's form says it", question["data_id"])
        answers = question["answer_eval"]
        texts = answers if isinstance(answers, list) else [answers]
        if not isinstance(texts[0], str) or self._is_csv and is_number(texts):
            return "Numerical"
        return "Time" if all(DATE.fullmatch(text.strip()) and YEAR.search(text) for text in texts) else "String"

    def _add_entity(self, row: dict, question: dict, counts: Counts) -> None:
        entity = self._entities.get(row["id"]) or (question.get("entity_id"), question.get("entity_text"))
        wikidata = entity[0] if isinstance(entity[0], str) else ""
        names = [name for name in (*entity, *question.get("names", ())) if isinstance(name, str) and name]
        if not names:
            counts.note("without an entity")
            return
        row |= {"entity_id": wikidata} if wikidata else {}
        if self._articles is None:
            row["entity"] = names[0]
        else:
            self._articles.add(row, names, question["question"], row.get("answers", []), counts)


def _is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def _official(path: str) -> dict[str, tuple]:
    """data_id: answer, answer_eval, data_split of InfoSeek's own file."""
    lines = read_references(path)
    return {line["data_id"]: (line.get("answer"), line["answer_eval"], line["data_split"]) for line in lines}


def _needs(path: str) -> tuple[str, ...]:
    """Fields that the lines must have: the test split's file has no answers."""
    first = next(read_references(path, needs=UNANSWERED))
    return FIELDS if first.get("answer_eval") else UNANSWERED


def _entities(path: str) -> dict[str, tuple[str, str]]:
    """data_id: (Wikidata id, title) of a withkb file."""
    same: dict[tuple, tuple] = {}  # one object for the thousands of questions about an entity
    entities = {}
    for line in read_references(path, needs=("data_id", "entity_id")):
        title = line.get("entity_text")
        entity = (line["entity_id"], title if isinstance(title, str) else "")
        entities[line["data_id"]] = same.setdefault(entity, entity)
    return entities


def _answers(answer_eval: Any, kind: str, id: str, counts: Counts) -> list[str] | dict:
    if kind != "Numerical":
        return list(dict.fromkeys(text for text in answer_eval if text.strip()))
    low, high = infoseek.bounds(answer_eval)
    if low > high:
        counts.note("a range whose ends are the wrong way round; they are put in order", f"{id}: {low:g} to {high:g}")
    return {"range": sorted((low, high))}
