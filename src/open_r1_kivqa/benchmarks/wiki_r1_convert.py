"""Wiki-R1's published training set (arXiv 2603.05256) as rows: questions of InfoSeek and Encyclopedic-VQA with their retrieved candidates, merged in one JSON file.

Its inner keys are not documented. `EXPECTED` says which are looked for; --map gives others, and an item without a field that is needed ends the conversion with what was found in it.

The file's name: merge_infoseek_train_filtered_balance_sample20k_top5_and_evqa_train_sample20k_top5_w_I2T.json
"""

import argparse
import os
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
from .json_stream import items
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
    articles = Entities(flags)
    images = ImageFiles.scan(
        split_paths(flags.image_roots), id2path=flags.id2path, inat_json=split_paths(flags.inat_json)
    )
    prefixes = tuple(part.strip() for part in flags.infoseek_prefixes.split(",") if part.strip())
    identity = {
        "benchmark": "wiki-r1",
        "input": file_identity(flags.input),
        "map": fields.keys,
        "image_folders": images.folder,
        "images": images.fingerprint,
        "articles": articles.identity,
        "infoseek_prefixes": prefixes,
        "candidate_section": flags.candidate_section,
        "split": flags.split,
    }
    name, seen = os.path.basename(flags.output).removesuffix(".jsonl"), SeenKeys()
    with RowsFile(flags.output, identity) as rows:
        done = rows.done
        for number, item in enumerate(items(flags.input)):
            own = fields.get(item.value, "data_id")
            id = str(own) if isinstance(own, str | int) and str(own).strip() else f"{name}-{number}"
            new = seen.add(id)
            if number < done:
                continue
            if not new:
                rows.counts.drop("data_id given before", f"{item.place}: {id}")
            elif row := _row(item.value, item.place, id, fields, articles, images, prefixes, rows.counts, flags):
                rows.write(row)
            rows.dealt()
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {images.folder}"]


def _check(path: str, fields: FieldMap) -> None:
    """InputError if one of the needed fields is in none of the first items."""
    first = list(islice(items(path), LOOKED_AT))
    if not first:
        raise InputError(f"{path} holds no item; give the file with its content.")
    lacking = [ours for ours in NEEDED if all(fields.get(item.value, ours) is None for item in first)]
    if lacking:
        raise fields.refuse(first[0].value, lacking, first[0].place)


def _row(
    item: Any,
    place: str,
    id: str,
    fields: FieldMap,
    articles: Entities,
    images: ImageFiles,
    prefixes: tuple[str, ...],
    counts: Counts,
    flags: argparse.Namespace,
) -> dict | None:
    """The row of an item; says in `counts` why there is none, and what is odd about it."""
    lacking = [ours for ours in ("question", "answer", "image_id") if fields.get(item, ours) in (None, "", [])]
    if lacking:
        counts.drop(f"without {', '.join(lacking)}", f"{place}: {described(item)[:200]}")
        return None
    question, image = str(fields.get(item, "question")), str(fields.get(item, "image_id"))
    method = _method(fields.get(item, "dataset"), image, id, prefixes)
    counts.note(f"rows of {method}")
    datasets = ("oven",) if method == "infoseek" else ("inaturalist", "oven")  # id2path may have any id
    path = next(filter(None, (images.find(image, dataset) for dataset in datasets)), None)
    if path is None:
        counts.drop("its image was not found", image)
        return None
    answers = _answers(fields.get(item, "answer_eval") or fields.get(item, "answer"), method)
    if not answers:
        counts.drop("the answer is of no known form", f"{place}: {described(fields.get(item, 'answer'))[:200]}")
        return None
    kind = fields.get(item, "question_type")
    if not isinstance(kind, str) or not kind:
        is_list = method == "evqa" and isinstance(answers, list) and any("&&" in text for text in answers)
        kind = "multi_answer" if is_list else "Numerical" if isinstance(answers, dict) else ""
    if method == "evqa" and isinstance(answers, list):
        shown = answers[0].replace("&&", ", ")
    else:
        shown = own_answer({name: fields.get(item, name) for name in ("answer", "answer_eval")})
    row = {
        "id": id,
        "image": path,
        "conversations": conversation(question, shown),
        "answers": answers,
        "question_type": kind,
        "split": flags.split,
        "accu_reward_method": method,
        "data_id": id,
        "image_id": image,
    }
    if isinstance(answers, dict):
        row["answer_type"] = "numerical"
    _add_evidence(row, item, question, fields, articles, counts)
    candidates = _candidates(item, place, question, fields, articles, counts, flags.candidate_section)
    if candidates:
        row["candidates"] = candidates
    try:
        check_row(row, place)
    except InputError as error:
        counts.drop("the row could not be used", error)
        return None
    return row


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


def _add_evidence(row: dict, item: Any, question: str, fields: FieldMap, articles: Entities, counts: Counts) -> None:
    """The file's own evidence goes first, as far as the knowledge base has it."""
    entity, given = fields.get(item, "entity"), fields.get(item, "evidence")
    entities = entity if isinstance(entity, list) else str(entity or "").split("|")
    names = [str(name).strip() for name in entities if isinstance(name, str | int) and str(name).strip()]
    answers = row["answers"]
    if row["accu_reward_method"] == "evqa" and isinstance(answers, list):  # the items of a list stand apart in a text
        answers = [part for text in answers for part in text.split("&&")]
    articles.add(row, names, question, answers, counts, several=True)
    keys = [key for key in (given if isinstance(given, list) else [given]) if isinstance(key, str)]
    known = list(dict.fromkeys(key for key in keys if "#" in key and key in articles.kb))
    if len(known) < len(keys):
        counts.note(
            "evidence of the file that is no passage of the knowledge base",
            next(key for key in keys if key not in known),
        )
    if known:
        row["evidence"] = known
        row.pop("evidence_source", None)


def _candidates(
    item: Any, place: str, question: str, fields: FieldMap, articles: Entities, counts: Counts, section: str
) -> list[str]:
    """Keys of passages, best first, each once."""
    given, passages, unknown = fields.get(item, "candidates"), [], []
    for candidate in given if isinstance(given, list | dict) else []:  # an object: its keys
        name = candidate
        if isinstance(name, dict):
            name = fields.get(name, "candidate")
        if isinstance(name, list):  # a pair of article and score
            name = next((part for part in name if isinstance(part, str)), None)
        if not isinstance(name, str):
            unknown.append(described(candidate)[:100])
        elif "#" in name and not articles.kb.has_article(name) and name in articles.kb:
            passages.append(name)
        elif keys := articles.matches(name):
            evidence = articles.evidence
            found = evidence.best_section(keys[0], question) if section == "best" else evidence.first_section(keys[0])
            passages.extend([found] if found else [])
        else:
            unknown.append(name[:100])
    if unknown:
        counts.note("candidates that the knowledge base lacks", unknown[0])
    if not passages:
        counts.note("without candidates", place)
    return list(dict.fromkeys(passages))
