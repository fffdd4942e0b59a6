"""What `kivqa score` scores: questions with their references, the rule that gives a verdict, and the scores of all verdicts.

A target has a `name`, the `rule` and the `judge` in words, and the `files` its questions come from. `ids` gives the questions' ids and `questions` the questions, id first, both in the order of the files and
as often as asked. `verdicts` judges a batch of them, `missing` one without a prediction; `counted` is what a verdict leaves
behind for `summarise`, which takes how often each came up. Of the questions nothing is kept.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import InputError
from . import evqa, infoseek, viquae
from .evqa_csv import read_csv
from .infoseek_files import check_reference, question_type, read_question_types, read_references
from .judges import NO_JUDGE, Judge, Pair
from .score_files import csv_row, same
from .viquae_files import read_references as read_viquae

Verdict = dict[str, Any]
NEEDED = ("data_id", "answer_eval", "data_split")  # of InfoSeek's questions


class InfoSeek:
    """InfoSeek's questions, with their types from a file of their own or from the lines' `question_type`."""

    name = "InfoSeek"
    rule = (
        "InfoSeek's (infoseek_eval.py): String and Time equal an alias after normalisation, Numerical lies in the range"
    )
    judge = "none; InfoSeek has no judge"
    several = False
    canonical = staticmethod(same)

    def __init__(self, references: str, question_types: str | None):
        self._references = references
        self._types = None if question_types is None else read_question_types(question_types)
        self.files = {"references": [references]} | ({"question_types": [question_types]} if question_types else {})

    def ids(self) -> Iterator[str]:
        return (row["data_id"] for row in read_references(self._references, needs=NEEDED))

    def questions(self) -> Iterator[tuple[str, dict, str]]:
        """(id, line, question type) of each."""
        for row in read_references(self._references, needs=NEEDED):
            id = row["data_id"]
            source = f"{self._references}, data_id {id!r}"
            kind = self._type(row, source)
            check_reference(row["answer_eval"], kind, source)
            yield id, row, kind

    def missing(self, question: tuple[str, dict, str]) -> Verdict:
        return {"correct": False}

    def verdicts(self, batch: Sequence[tuple[tuple[str, dict, str], str]]) -> list[Verdict]:
        return [
            {"correct": infoseek.score(prediction, row["answer_eval"], kind)} for (_, row, kind), prediction in batch
        ]

    def counted(self, question: tuple[str, dict, str], verdict: Verdict) -> tuple[str, str, bool]:
        _, row, kind = question
        return row["data_split"], kind, verdict["correct"]

    def summarise(self, counted: Counter[tuple[str, str, bool]]) -> dict:
        return infoseek.summarise(counted.elements())

    def _type(self, row: dict, source: str) -> str:
        if self._types is None:
            if "question_type" not in row:
                raise InputError(
                    f"{source}: the line has no question_type; give the file of types, infoseek_val_qtype.jsonl, as --question_types."
                )
            return question_type(row["question_type"], source)
        if row["data_id"] not in self._types:
            raise InputError(f"{source}: --question_types has no type of it; give the types of the same split.")
        return self._types[row["data_id"]]


class Evqa:
    """Encyclopedic-VQA's questions: the rows of a csv file, by their numbers."""

    name = "Encyclopedic-VQA"
    rule = "Encyclopedic-VQA's (evaluation_utils.py): equal to one of the answers after normalisation, lists by intersection over union of at least 0.5; else the judge"
    several = False
    canonical = staticmethod(csv_row)

    def __init__(self, references: str, judge: Judge | None):
        self._references, self._judge = references, judge
        self._pairs = 0
        self.judge = NO_JUDGE if judge is None else judge.name
        self.files = {"references": [references]}

    def ids(self) -> Iterator[str]:
        for number, row in read_csv(self._references):
            self._is_exact("", number, row)  # refuses an empty reference before a judge is asked
            yield str(number)

    def questions(self) -> Iterator[tuple[int, dict]]:
        """(row number, columns) of each."""
        return read_csv(self._references)

    def missing(self, question: tuple[int, dict]) -> Verdict:
        return {"correct": False, "by": None}

    def verdicts(self, batch: Sequence[tuple[tuple[int, dict], str]]) -> list[Verdict]:
        found, asked = [], []
        for (number, row), prediction in batch:
            text, answer, kind = row["question"], row["answer"], row["question_type"]
            is_exact = self._is_exact(prediction, number, row)
            found.append({"correct": is_exact, "by": "exact match" if is_exact else None})
            asked.append([] if is_exact else evqa.judge_inputs(text, prediction, answer, kind))
        if self._judge is not None:
            ask(self._judge, found, asked, right={"correct": True, "by": "judge"})
            self._pairs += sum(map(len, asked))
        return found

    def counted(self, question: tuple[int, dict], verdict: Verdict) -> tuple[str, bool, bool]:
        return question[1]["question_type"], verdict["correct"], verdict["by"] == "exact match"

    def summarise(self, counted: Counter[tuple[str, bool, bool]]) -> dict:
        """`evqa.summarise`, with the share of questions right by exact match beside each score, and what the judge was asked."""
        scores = evqa.summarise((kind, correct) for kind, correct, _ in counted.elements())
        exact = evqa.summarise((kind, is_exact) for kind, _, is_exact in counted.elements())
        for part, alone in ((scores["all"], exact["all"]), (scores["single_hop"], exact["single_hop"])):
            part["exact"] = alone["score"]
        for kind, part in scores["types"].items():
            part["exact"] = exact["types"][kind]["score"]
        return scores | judged(self._judge, self._pairs)

    def _is_exact(self, prediction: str, number: int, row: dict) -> bool:
        try:
            return evqa.exact(prediction, row["answer"], row["question_type"])
        except InputError as error:
            raise InputError(f"{self._references} row {number}: {error}") from error


class Viquae:
    """ViQuAE's questions."""

    name = "ViQuAE"
    rule = "ViQuAE's (SQuAD's): exact match and F1 of the words after normalisation, the best over all aliases"
    judge = "none; ViQuAE has no judge"
    several = False
    canonical = staticmethod(same)

    def __init__(self, references: str):
        self._references = references
        self.files = {"references": [references]}

    def ids(self) -> Iterator[str]:
        return (row["id"] for row in read_viquae(self._references))

    def questions(self) -> Iterator[tuple[str, list[str]]]:
        """(id, accepted answers) of each."""
        return ((row["id"], row["answers"]) for row in read_viquae(self._references))

    def missing(self, question: tuple[str, list[str]]) -> Verdict:
        return {"correct": False, "f1": 0.0}

    def verdicts(self, batch: Sequence[tuple[tuple[str, list[str]], str]]) -> list[Verdict]:
        return [
            {"correct": bool(viquae.exact_match(prediction, answers)), "f1": viquae.f1(prediction, answers)}
            for (_, answers), prediction in batch
        ]

    def counted(self, question: tuple[str, list[str]], verdict: Verdict) -> tuple[float, float]:
        return float(verdict["correct"]), verdict["f1"]

    def summarise(self, counted: Counter[tuple[float, float]]) -> dict:
        return viquae.summarise(counted.elements())


def ask(judge: Judge, verdicts: list[Verdict], asked: list[list[Pair]], right: Verdict) -> None:
    """Puts `right` into those verdicts of whose pairs the judge finds one equivalent. It is asked about all pairs at once."""
    answers = iter(judge([pair for pairs in asked for pair in pairs]) if any(asked) else [])
    for verdict, pairs in zip(verdicts, asked, strict=True):
        if any([next(answers) for _ in pairs]):
            verdict |= right


def judged(judge: Judge | None, pairs: int) -> dict:
    """What a judge was asked: pairs of candidate and reference, candidates that it saw cut, replies that were no verdict."""
    if judge is None:
        return {}
    counts = Counter(pairs=pairs, cut=judge.cut, unclear=getattr(judge, "unclear", 0))
    return {"judged": dict(counts)}
