"""Wiki-R1's published training set (arXiv 2603.05256) as rows: questions of InfoSeek and Encyclopedic-VQA with their retrieved candidates, merged in one JSON file.

Its inner keys are not documented. `EXPECTED` says which are looked for; --map gives others, and an item without a field that is needed ends the conversion with what was found in it.

The file's name: merge_infoseek_train_filtered_balance_sample20k_top5_and_evqa_train_sample20k_top5_w_I2T.json
"""

import argparse
import os
from functools import partial
from itertools import islice
from typing import Any

from ..data.image_files import ImageFiles
from ..data.jsonl import split_paths
from ..errors import InputError
from . import evqa, infoseek
from .articles import add_article_flags
from .converted import Counts, RowsFile, check_row, file_identity
from .entities import Entities, add_evidence_flags, conversation
from .field_map import FieldMap, add_map_flag, described
from .infoseek_convert import own_answer
from .json_stream import Item, items
from .seen import SeenKeys

# field: key that is looked for
EXPECTED = {
    "question": "question",  # needed: a text
    "answer": "answer",  # needed: a text, a list of texts, a number, {"range": [low, high]} or a list of it; of Encyclopedic-VQA "a|b" and "a&&b", as in its csv
    "image_id": "image_id",  # needed: OVEN's, iNaturalist's or Landmarks'
    "entity": "entity",  # needed: the article's url, title, key or Wikidata id; a list, or "a|b", for questions about several
    "candidates": "candidates",  # needed: a list of articles or passages (url, title, key), best first; or of pairs or objects with one of them; or an object with them as keys
    "candidate": "url",  # where an object among the candidates says which article it is
    "answer_eval": "answer_eval",  # InfoSeek's aliases or range, which then go before `answer`
    "evidence": "evidence",  # keys of passages; without it evidence is searched in the entity's article
    "question_type": "question_type",
    "data_id": "data_id",
    "dataset": "dataset",  # a text with "infoseek" or "evqa" ("encyclopedic") in it
}
NEEDED = ("question", "answer", "image_id", "entity", "candidates")
DATASETS = {"infoseek": "infoseek", "evqa": "evqa", "encyclopedic": "evqa"}  # part of the name: method
LOOKED_AT = 100  # items in which the needed fields are looked for before anything is written


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--input", required=True, help="the merged JSON file (a list, an object, or an object a line)")
    add_map_flag(flags, EXPECTED)
    add_article_flags(flags)
    add_evidence_flags(flags)
    flags.add_argument(
        "--image_roots",
        required=True,
        help="folders of the images (OVEN, iNaturalist, Landmarks), separated by ':'; they are looked through at any depth",
    )
    flags.add_argument(
        "--inat_json",
        default="",
        help="iNaturalist 2021's JSON file that says which file an image id is (train.json); several separated by ':'",
    )
    flags.add_argument("--id2path", help="JSON object of image ids and paths: oven_id2path.json")
    flags.add_argument(
        "--infoseek_prefixes",
        default="oven_,infoseek_",
        help="where no `dataset` is given, a row is InfoSeek's if its image id or data_id begins with one of these, else Encyclopedic-VQA's (default: %(default)s)",
    )
    flags.add_argument(
        "--candidate_section",
        choices=("best", "first"),
        default="best",
        help="which passage stands for a candidate that is an article: the one that fits the question best (--section_scorer), or the first. Default: %(default)s",
    )
    flags.add_argument("--split", default="train", help="name of the rows' split (default: %(default)s)")


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes flags.output, and says what became of the items. Raises InputError for what can't be used."""
    if not flags.knowledge_base:
        raise InputError(
            "Candidates are articles of a knowledge base; make one with `kivqa convert kb` of final_related_KB_reflectiVA_v2.json and give it as --knowledge_base."
        )
    fields = FieldMap(EXPECTED, flags.map)
    _check(flags.input, fields)
    maker, seen = _Maker(flags, fields), SeenKeys()
    name = os.path.basename(flags.output).removesuffix(".jsonl")
    with RowsFile(flags.output, maker.identity) as rows:
        done = rows.done
        for number, item in enumerate(items(flags.input)):
            own = fields.get(item.value, "data_id")
            id = str(own) if isinstance(own, str | int) and str(own).strip() else f"{name}-{number}"
            new = seen.add(id)
            if number < done:
                continue
            if not new:
                rows.counts.drop("data_id given before", f"{item.place}: {id}")
            elif row := maker.row(item, id, rows.counts):
                rows.write(row)
            rows.dealt()
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {maker.images.folder}"]


def _check(path: str, fields: FieldMap) -> None:
    """InputError if one of the needed fields is in none of the first items."""
    first = list(islice(items(path), LOOKED_AT))
    if not first:
        raise InputError(f"{path} holds no item; give the file with its content.")
    lacking = [ours for ours in NEEDED if all(fields.get(item.value, ours) is None for item in first)]
    if lacking:
        raise fields.refuse(first[0].value, lacking, first[0].place)


class _Maker:
    """Makes rows of items."""

    def __init__(self, flags: argparse.Namespace, fields: FieldMap):
        self._fields, self._split = fields, flags.split
        self._articles = Entities(flags)
        self.images = ImageFiles.scan(
            split_paths(flags.image_roots), id2path=flags.id2path, inat_json=split_paths(flags.inat_json)
        )
        self._prefixes = tuple(part.strip() for part in flags.infoseek_prefixes.split(",") if part.strip())
        evidence = self._articles.evidence
        if flags.candidate_section == "best":
            self._section = evidence.best_section
        else:
            self._section = lambda key, question: evidence.first_section(key)
        self.identity = {
            "benchmark": "wiki-r1",
            "input": file_identity(flags.input),
            "map": fields.keys,
            "image_folders": self.images.folder,
            "images": self.images.fingerprint,
            "articles": self._articles.identity,
            "infoseek_prefixes": self._prefixes,
            "candidate_section": flags.candidate_section,
            "split": flags.split,
        }

    def row(self, item: Item, id: str, counts: Counts) -> dict | None:
        """The row of an item; says in `counts` why there is none, and what is odd about it."""
        of = partial(self._fields.get, item.value)
        lacking = [ours for ours in ("question", "answer", "image_id") if of(ours) in (None, "", [])]
        if lacking:
            counts.drop(f"without {', '.join(lacking)}", f"{item.place}: {described(item.value)[:200]}")
            return None
        question, image = str(of("question")), str(of("image_id"))
        method = _method(of("dataset"), image, id, self._prefixes)
        counts.note(f"rows of {method}")
        datasets = ("oven",) if method == "infoseek" else ("inaturalist", "oven")  # id2path may have any id
        path = next(filter(None, (self.images.find(image, dataset) for dataset in datasets)), None)
        if path is None:
            counts.drop("its image was not found", image)
            return None
        answers = _answers(of("answer_eval") or of("answer"), method)
        if not answers:
            counts.drop("the answer is of no known form", f"{item.place}: {described(of('answer'))[:200]}")
            return None
        if method == "evqa" and isinstance(answers, list):
            shown = answers[0].replace("&&", ", ")
        else:
            shown = own_answer({name: of(name) for name in ("answer", "answer_eval")})
        row = {
            "id": id,
            "image": path,
            "conversations": conversation(question, shown),
            "answers": answers,
            "question_type": _question_type(of("question_type"), answers, method),
            "split": self._split,
            "accu_reward_method": method,
            "data_id": id,
            "image_id": image,
        }
        if isinstance(answers, dict):
            row["answer_type"] = "numerical"
        self._add_evidence(row, of("entity"), of("evidence"), question, counts)
        candidates = self._candidates(of("candidates"), question, counts)
        if candidates:
            row["candidates"] = candidates
        else:
            counts.note("without candidates", item.place)
        try:
            check_row(row, item.place)
        except InputError as error:
            counts.drop("the row could not be used", error)
            return None
        return row

    def _add_evidence(self, row: dict, entity: Any, given: Any, question: str, counts: Counts) -> None:
        """The file's own evidence goes first, as far as the knowledge base has it."""
        entities = entity if isinstance(entity, list) else str(entity or "").split("|")
        names = [str(name).strip() for name in entities if isinstance(name, str | int) and str(name).strip()]
        answers = row["answers"]
        if row["accu_reward_method"] == "evqa" and isinstance(answers, list):  # in a text a list's items stand apart
            answers = [part for text in answers for part in text.split("&&")]
        self._articles.add(row, names, question, answers, counts, several=True)
        keys = [key for key in (given if isinstance(given, list) else [given]) if isinstance(key, str)]
        known = list(dict.fromkeys(key for key in keys if self._is_passage(key)))
        unknown = [key for key in keys if key not in known]
        if unknown:
            counts.note("evidence of the file that is no passage of the knowledge base", unknown[0])
        if known:
            row["evidence"] = known
            row.pop("evidence_source", None)

    def _candidates(self, given: Any, question: str, counts: Counts) -> list[str]:
        """Keys of passages, best first, each once."""
        passages, unknown = [], []
        for candidate in given if isinstance(given, list | dict) else []:  # an object: its keys
            name = self._fields.get(candidate, "candidate") if isinstance(candidate, dict) else candidate
            if isinstance(name, list):  # a pair of article and score
                name = next((part for part in name if isinstance(part, str)), None)
            if isinstance(name, str) and self._is_passage(name):  # a title's form would end at the "#"
                passages.append(name)
            elif keys := self._articles.matches(name) if isinstance(name, str) else []:
                passages.append(self._section(keys[0], question))
            else:
                unknown.append(described(candidate)[:100])
        if unknown:
            counts.note("candidates that the knowledge base lacks", unknown[0])
        return list(dict.fromkeys(filter(None, passages)))

    def _is_passage(self, key: str) -> bool:
        return "#" in key and not self._articles.kb.has_article(key) and key in self._articles.kb


def _method(dataset: Any, image: str, id: str, prefixes: tuple[str, ...]) -> str:
    """How the row is scored: by the dataset that it names, else by the ids."""
    name = dataset.lower() if isinstance(dataset, str) else ""
    named = next((method for part, method in DATASETS.items() if part in name), None)
    return named or ("infoseek" if image.startswith(prefixes) or id.startswith(prefixes) else "evqa")


def _answers(value: Any, method: str) -> list[str] | dict:
    """Accepted answers, or a range; [] for what is neither."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict) or (method == "infoseek" and isinstance(first, int | float)):
        try:
            return {"range": sorted(infoseek.bounds(value))}
        except InputError:
            return []
    texts = value if isinstance(value, list) else [value]
    texts = [str(text) for text in texts if isinstance(text, str | int | float)]
    if method == "evqa":
        texts = [part for text in texts for part in evqa.alternatives(text)]
    return list(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _question_type(given: Any, answers: list[str] | dict, method: str) -> str:
    """The file's, else what the answers show: a range, or a list of Encyclopedic-VQA's."""
    if isinstance(given, str) and given:
        return given
    if isinstance(answers, dict):
        return "Numerical"
    return evqa.LIST_TYPE if method == "evqa" and any("&&" in text for text in answers) else ""
