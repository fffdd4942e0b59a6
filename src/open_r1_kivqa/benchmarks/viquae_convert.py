"""ViQuAE's questions (Lerner et al. 2022; `train.jsonl`, `validation.jsonl`, `test.jsonl` of PaulLerner/viquae_dataset) as rows.

Of a question are read `id`, `input` (its text), `output` (the accepted answers), `image` (a file name) and `wikidata_id` (what the image shows). The benchmark names no passage, so
evidence is searched in the article of a knowledge base (evidence.py).
"""

import argparse
import os

from ..data.image_files import ImageFiles
from ..data.jsonl import split_paths
from ..data.samples import row_id
from ..errors import InputError
from .articles import add_article_flags, check_article_flags
from .converted import Counts, RowsFile, check_row, file_identity
from .entities import Entities, add_evidence_flags, check_evidence_flags, conversation
from .field_map import FieldMap, add_map_flag
from .json_stream import Item, items
from .seen import SeenKeys
from .viquae_files import answers_of

FIELDS = {"id": "id", "question": "input", "output": "output", "image": "image", "entity": "wikidata_id"}
NEEDED = ("id", "question", "output")


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--input", required=True, help="jsonl file: train.jsonl, validation.jsonl or test.jsonl")
    flags.add_argument(
        "--image_roots", required=True, help="folder of the unpacked images, or several separated by ':'"
    )
    add_article_flags(flags)
    add_evidence_flags(flags)
    add_map_flag(flags, FIELDS)
    flags.add_argument("--split", help="name of the rows' split (default: the input's name without its ending)")


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes the rows, and says what became of the questions. Raises InputError for what can't be used."""
    check_article_flags(flags)
    check_evidence_flags(flags)
    fields = FieldMap(FIELDS, flags.map)
    questions = items(flags.input)
    entities = Entities(flags) if flags.knowledge_base else None
    images = ImageFiles.scan(split_paths(flags.image_roots))
    split = flags.split or os.path.splitext(os.path.basename(flags.input))[0]
    identity = {
        "benchmark": "viquae",
        "input": file_identity(flags.input),
        "image_folders": images.folder,
        "images": images.fingerprint,
        "articles": entities and entities.identity,
        "map": fields.keys,
        "split": split,
    }
    name, seen = os.path.basename(flags.output).removesuffix(".jsonl"), SeenKeys()
    with RowsFile(flags.output, identity) as rows:
        done = rows.done
        for number, item in enumerate(questions):
            id = _id(item, fields)
            new = seen.add(id)
            if number < done:
                continue
            if not new:
                rows.counts.drop("id given before", id)
            elif row := _row(item, id, name, split, fields, images, entities, rows.counts):
                rows.write(row)
            rows.dealt()
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {images.folder}"]


def _id(item: Item, fields: FieldMap) -> str:
    """The question's id; InputError for an item that lacks a needed field."""
    lacking = [field for field in NEEDED if fields.get(item.value, field) is None]
    if lacking:
        raise fields.refuse(item.value, lacking, item.place)
    return row_id({"id": fields.get(item.value, "id")}, "id", item.place)


def _row(
    item: Item,
    id: str,
    name: str,
    split: str,
    fields: FieldMap,
    images: ImageFiles,
    entities: Entities | None,
    counts: Counts,
) -> dict | None:
    question, file, entity = (fields.get(item.value, field) for field in ("question", "image", "entity"))
    answers = answers_of(fields.get(item.value, "output"), item.place)
    if not isinstance(file, str) or not file:
        counts.drop("it names no image", id)
        return None
    paths = images.find_all(file)
    if not paths:
        counts.drop("its image was not found", file)
        return None
    if len(paths) > 1:
        counts.note("an image that several files have; the first one is taken", f"{file}: {' '.join(paths[:3])}")
    row = {
        "id": f"{name}-{id}",
        "image": paths[0],
        "conversations": conversation(str(question), _first(item.value, fields, answers)),
        "answers": answers,
        "split": split,
        "accu_reward_method": "viquae",
        "data_id": id,
    }
    if not isinstance(entity, str) or not entity:
        counts.note("it names no entity", id)
    elif entities is None:
        row["entity"] = entity
    else:
        entities.add(row, [entity], str(question), answers, counts)
    try:
        check_row(row, item.place)
    except InputError as error:
        counts.drop("the row could not be used", error)
        return None
    return row


def _first(item: object, fields: FieldMap, answers: list[str]) -> str:
    """The original answer of the question's author, of which the others are aliases; without one the first of these."""
    output = fields.get(item, "output")
    original = output.get("original_answer") if isinstance(output, dict) else None
    return original if isinstance(original, str) and original in answers else answers[0]
