"""Detection data in COCO's form, OVDEval's among them: an object with `images`, `annotations` (boxes [x, y, width, height] in pixels) and `categories`.

An image of OVDEval names what is asked of it: `text` (labels that are there) and `neg_text` (hard negatives). Boxes marked `iscrowd` outline groups of objects; they are left out,
and a label that has no other box in an image isn't asked for there.
"""

import argparse
import json
import os
from functools import partial
from typing import Any

from ..data.samples import IMAGE_MARKER
from ..errors import InputError
from .items import (
    add_item_flags,
    check_item_flags,
    checked,
    four_numbers,
    gather,
    item_id,
    read_file,
    relative_image,
    size_of,
    write_rows,
)

METHODS = ("od_ap", "od_ap50", "odLength", "weighted_sum")
LABELS = ("auto", "all", "present")


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--annotations", required=True, help="JSON file, instances_val2017.json for example")
    flags.add_argument(
        "--labels",
        choices=LABELS,
        default="auto",
        help="what a question asks for. auto: each image's own `text` and `neg_text` if the file has negatives, else as all; all: every category of the file; present: what is in "
        "the image (images without boxes are left out). Default: %(default)s",
    )
    flags.add_argument(
        "--reward_method", choices=METHODS, default="od_ap", help="how answers are scored (default: %(default)s)"
    )
    add_item_flags(flags)


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes the rows, and says how many. Raises InputError for a file, an image or an annotation that can't be used."""
    check_item_flags(flags)
    path, data = flags.annotations, read_file(flags.annotations)
    parts = [data.get(name) for name in ("images", "annotations", "categories")] if isinstance(data, dict) else []
    if not parts or not all(isinstance(part, list) and all(isinstance(one, dict) for one in part) for part in parts):
        raise InputError(
            f"{path} isn't of COCO's form; wanted is an object with lists images, annotations, categories."
        )
    images, annotations, categories = parts
    names = _categories(categories, path)
    by_image: dict[Any, list[tuple[str, dict]]] = {image: [] for image in _ids(images, "images", path)}
    for number, annotation in enumerate(annotations):
        image = annotation.get("image_id")
        if not isinstance(image, int | str) or image not in by_image:
            raise InputError(
                f"{path} annotations[{number}]: `image_id` is {image!r}, and no image has it; remove it, or add the image."
            )
        by_image[image].append((f"annotations[{number}]", annotation))
    if flags.labels == "auto":  # texts without negatives would give away what is there
        labels = "own" if any(image.get("neg_text") for image in images) else "all"
    else:
        labels = flags.labels
    makers = (
        partial(_row, image, number, by_image[image["id"]], names, labels, flags)
        for number, image in enumerate(images)
        if labels != "present" or not all(one.get("iscrowd") for _, one in by_image[image["id"]])
    )
    return write_rows(flags.output, *gather(makers, path=path, skip_bad=flags.skip_bad))


def _row(
    image: dict, number: int, annotations: list[tuple[str, dict]], names: dict, labels: str, flags: argparse.Namespace
) -> dict:
    source = f"{os.path.basename(flags.annotations)} images[{number}]"
    detections = [(one, _detection(one, names, f"{source}, {place}")) for place, one in annotations]
    found = [detection for one, detection in detections if not one.get("iscrowd")]
    crowds = [detection["label"] for one, detection in detections if one.get("iscrowd")]
    answer = json.dumps(found, ensure_ascii=False) if found else "None"
    asked = ", ".join(f'"{label}"' for label in _asked(image, found, crowds, names, labels, source))
    row = {
        "id": item_id(image, number, flags.split, source),
        "image": relative_image(image.get("file_name"), "file_name", flags.image_root, source),
        "conversations": [
            {"from": "human", "value": f"{IMAGE_MARKER}Detect all objects of these kinds in the image: {asked}."},
            {"from": "gpt", "value": f"<answer>{answer}</answer>"},
        ],
        "accu_reward_method": flags.reward_method,
        "split": flags.split,
    }
    return checked(row, size_of(image, source), flags.image_root, source)


def _detection(annotation: dict, names: dict, source: str) -> dict:
    """A detection as answers hold it, in pixels to two decimals, as COCO's."""
    x, y, width, height = four_numbers(annotation.get("bbox"), "bbox", "[x, y, width, height] in pixels", source)
    category = annotation.get("category_id")
    if not isinstance(category, int | str) or category not in names:
        raise InputError(f"{source}: `category_id` is {category!r}, and no category has it; add the category.")
    return {"bbox_2d": [round(edge, 2) for edge in (x, y, x + width, y + height)], "label": names[category]}


def _asked(image: dict, found: list[dict], crowds: list[str], names: dict, labels: str, source: str) -> list[str]:
    """The labels that a question names, each once: those of the image's own boxes always, those that only a crowd has never."""
    own = [image.get(name) or [] for name in ("text", "neg_text")]
    if not all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in own):
        raise InputError(f"{source}: `text` or `neg_text` is no list of texts; correct it, or remove both.")
    present = [detection["label"] for detection in found]
    if labels == "present":
        chosen = present
    elif labels == "own":
        chosen = sorted({*own[0], *own[1], *present})  # in the file's order, what is there would come first
    else:
        chosen = list(names.values())
    unknown = set(crowds) - set(present)
    asked = dict.fromkeys(" ".join(label.split()) for label in chosen if label.strip() and label not in unknown)
    if not asked:
        raise InputError(f"{source}: there is no label to ask for; remove the image.")
    return list(asked)


def _categories(categories: list[dict], path: str) -> dict[Any, str]:
    """id: name."""
    ids = _ids(categories, "categories", path)
    for number, category in enumerate(categories):
        name = category.get("name")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{path} categories[{number}]: `name` is {name!r}; wanted is a text.")
    return {id: category["name"].strip() for id, category in zip(ids, categories, strict=True)}


def _ids(parts: list[dict], name: str, path: str) -> list[Any]:
    """The `id` of each part; InputError if one has none or shares it."""
    seen: dict[Any, int] = {}
    for number, part in enumerate(parts):
        id = part.get("id")
        if not isinstance(id, int | str):
            raise InputError(f"{path} {name}[{number}]: `id` is {id!r}; wanted is a number or text.")
        if seen.setdefault(id, number) != number:
            raise InputError(
                f"{path} {name}[{number}]: `id` {id!r} is that of {name}[{seen[id]}] too; boxes could not be told apart."
            )
    return list(seen)
