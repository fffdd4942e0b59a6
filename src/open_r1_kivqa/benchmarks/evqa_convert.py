"""Encyclopedic-VQA's csv files (Mensink et al. 2023) as rows: a question and one of its up to five images each, with the passages that hold the answer.

A row's `data_id` is the place of its question in the csv, counted from 0, whatever was dropped before it. A section's id is its index in the article of the published knowledge base, as
`kivqa convert kb` writes it.
"""

import argparse
import os
import re
from collections.abc import Iterator

from ..data.image_files import ImageFiles
from ..data.jsonl import split_paths
from ..errors import InputError
from . import evqa
from .articles import Articles, add_article_flags, check_article_flags
from .converted import Counts, RowsFile, check_row, file_identity
from .entities import conversation
from .evqa_csv import read_csv

DATASETS = ("inaturalist", "landmarks")
JOINED = re.compile(r"\||&&")
SECTION = re.compile(r"(\d+)(?:\.0)?")  # pandas writes 3 as 3.0 where others are empty

NO_EVIDENCE = "no evidence is left"


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--input", required=True, help="csv file: train.csv, val.csv or test.csv")
    flags.add_argument(
        "--image_roots",
        required=True,
        help="folders of iNaturalist 2021 and Google Landmarks v2, separated by ':'; they are looked through at any depth",
    )
    flags.add_argument(
        "--inat_json",
        default="",
        help="iNaturalist 2021's JSON file of the split that the questions are from (val.json for val.csv and test.csv), which says which file an image id is; several separated by ':'. "
        "Also read: an object of ids and file names. Without it ids are taken for file names",
    )
    flags.add_argument(
        "--images_per_question",
        choices=("first", "all"),
        default="first",
        help="first: one row a question, with the first of its images that is there, as published scores are computed; all: a row for each image. Default: %(default)s",
    )
    add_article_flags(flags)
    flags.add_argument(
        "--question_types",
        default=",".join(evqa.QUESTION_TYPES),
        help="the types to convert, separated by commas (default: %(default)s)",
    )
    flags.add_argument("--split", help="name of the rows' split (default: the csv's encyclopedic_vqa_split)")


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes the rows, and says what became of the questions. Raises InputError for what can't be used."""
    types = _types(flags.question_types)
    check_article_flags(flags)
    next(read_csv(flags.input), None)  # a wrong file is refused before the images are looked for
    articles = Articles.of(flags)
    images = ImageFiles.scan(split_paths(flags.image_roots), inat_json=split_paths(flags.inat_json))
    identity = {
        "benchmark": "evqa",
        "input": file_identity(flags.input),
        "image_folders": images.folder,
        "images": images.fingerprint,
        "images_per_question": flags.images_per_question,
        "articles": articles and articles.identity,
        "question_types": types,
        "split": flags.split,
    }
    name = os.path.basename(flags.output).removesuffix(".jsonl")
    with RowsFile(flags.output, identity) as rows:
        for number, question in read_csv(flags.input):
            if number < rows.done:
                continue
            for row in _rows(number, question, name, types, flags, images, articles, rows.counts):
                rows.write(row)
            rows.dealt()
        if articles and rows.counts.kept and rows.counts.number(NO_EVIDENCE) == rows.counts.kept:
            raise InputError(
                "\n".join(
                    [
                        f"{flags.knowledge_base} has no passage of any question; give the one that `kivqa convert kb` makes of encyclopedic_kb_wiki.json.",
                        *rows.counts.lines(),
                    ]
                )
            )
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {images.folder}"]


def _types(text: str) -> list[str]:
    types = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [name for name in types if name not in evqa.QUESTION_TYPES]
    if wrong or not types:
        raise InputError(f"--question_types {text!r} is not a choice of {','.join(evqa.QUESTION_TYPES)}.")
    return types


def _rows(
    number: int,
    question: dict[str, str],
    name: str,
    types: list[str],
    flags: argparse.Namespace,
    images: ImageFiles,
    articles: Articles | None,
    counts: Counts,
) -> Iterator[dict]:
    """The rows of one question; says in `counts` why there are none, and what is odd about it."""
    kind = question["question_type"]
    if kind not in types:
        counts.drop(f"question type {kind}, not in --question_types")
        return
    accepted = evqa.alternatives(question["answer"])
    answers = evqa.usable(accepted, kind)
    if not answers:
        counts.drop("no answer, or one of which the official normalisation leaves nothing", f"row {number}")
        return
    if len(answers) < len(accepted):
        counts.note("alternatives left out, of which the official normalisation leaves nothing", f"row {number}")
    found = _images(question, f"{flags.input} row {number}", images, counts)
    if not found:
        return
    urls = _parts(question["wikipedia_url"])
    # What the image shows; the second article of a question of two hops isn't.
    entity = _article(urls[0], articles) if urls else None
    unknown = [url for url in urls if _article(url, articles) is None]
    if unknown or not urls:
        counts.note("an article that is not in the knowledge base" if urls else "it names no article", *unknown[:1])
    evidence = _evidence(question, f"row {number}", articles, counts)
    for place, id, path in found if flags.images_per_question == "all" else found[:1]:
        row = {
            "id": f"{name}-{number}" + (f"-{place}" if place > 1 else ""),
            "image": path,
            "conversations": conversation(question["question"], answers[0].replace("&&", ", ")),
            "answers": answers,
            "question_type": kind,
            "entity": entity,
            "evidence": evidence,
            "split": flags.split or question["encyclopedic_vqa_split"],
            "accu_reward_method": "evqa",
            "data_id": number,
            "image_id": id,
        }
        try:
            check_row(row, f"row {number}")
        except InputError as error:
            counts.drop("the row could not be used", error)
            return
        yield row


def _images(question: dict[str, str], source: str, images: ImageFiles, counts: Counts) -> list[tuple[int, str, str]]:
    """(place among the question's images from 1, id, path) of those that are there."""
    dataset = question["dataset_name"].strip().lower()
    if dataset not in DATASETS:
        raise InputError(
            f"{source}: `dataset_name` is {question['dataset_name'][:60]!r}; wanted is {' or '.join(DATASETS)}."
        )
    ids = _parts(question["dataset_image_ids"])
    if not ids:
        counts.drop("it names no image", source.rpartition(" ")[2])
        return []
    files = [images.find_all(id, dataset) for id in ids]
    missing = [f"{dataset} {id}" for id, paths in zip(ids, files, strict=True) if not paths]
    several = [f"{dataset} {id}: {' '.join(paths[:3])}" for id, paths in zip(ids, files, strict=True) if len(paths) > 1]
    if len(missing) == len(ids):
        counts.drop("none of its images was found", missing[0])
    elif missing:
        counts.note("some of its images were not found", missing[0])
        if not files[0]:
            counts.note("its first image was not found; another one stands first", missing[0])
    if several:
        counts.note("an image id that several files have; the first one is taken", several[0])
    return [(place, id, paths[0]) for place, (id, paths) in enumerate(zip(ids, files, strict=True), 1) if paths]


def _evidence(question: dict[str, str], source: str, articles: Articles | None, counts: Counts) -> list[str]:
    """Keys of the passages that hold the answer, each once. Questions of the type 2_hop have two articles and a section of each."""
    urls, sections = _parts(question["wikipedia_url"]), _parts(question["evidence_section_id"])
    urls = urls * len(sections) if len(urls) == 1 else urls
    if len(urls) != len(sections) or not urls:
        counts.note("urls and section ids that don't pair up", source)
        counts.note(NO_EVIDENCE, source)
        return []
    found, wrong = [], []
    for url, section in zip(urls, sections, strict=True):
        key, index = _article(url, articles), SECTION.fullmatch(section)
        if key is not None and index is not None and (articles is None or articles.has(f"{key}#{index[1]}")):
            found.append(f"{key}#{index[1]}")
        elif key is not None:
            wrong.append(f"{key}#{section}")
    if wrong:
        counts.note("a section that its article doesn't have", wrong[0])
    if len(found) < len(urls):
        counts.note("only a part of the evidence is left" if found else NO_EVIDENCE, source)
    return list(dict.fromkeys(found))


def _article(url: str, articles: Articles | None) -> str | None:
    return articles.key(url) if articles else url


def _parts(cell: str) -> list[str]:
    return [part.strip() for part in JOINED.split(cell) if part.strip()]
