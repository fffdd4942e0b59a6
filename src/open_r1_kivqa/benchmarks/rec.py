"""RefCOCO, RefCOCO+, RefCOCOg and LISA-Grounding as VLM-R1 processed them (`rec_jsons_processed`): a JSON list with an expression, its image and its box in each item.

Of an item are read: `image`, `problem` (the question), `solution` ([x1, y1, x2, y2] in pixels of the original image), `id`, `width` and `height`, and of items without `problem`
the expression alone, `normal_caption`. `normalized_solution` (thousandths of the image) only serves to notice a `solution` that is none in pixels.
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

THOUSAND = (1000, 1000)


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--input", required=True, help="JSON file, refcoco_val.json for example")
    add_item_flags(flags)


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes the rows, and says how many. Raises InputError for a file or an item that can't be used."""
    check_item_flags(flags)
    items = read_file(flags.input)
    if isinstance(items, dict) and "annotations" in items:
        raise InputError(f"{flags.input} holds COCO annotations; convert it with `kivqa convert ovd --annotations`.")
    if not isinstance(items, list):
        raise InputError(f"{flags.input} holds no JSON list; give a file of VLM-R1's rec_jsons_processed.")
    makers = (partial(_row, item, number, flags) for number, item in enumerate(items))
    return write_rows(flags.output, *gather(makers, path=flags.input, skip_bad=flags.skip_bad))


def _row(item: Any, number: int, flags: argparse.Namespace) -> dict:
    source = f"{os.path.basename(flags.input)}[{number}]"
    if not isinstance(item, dict):
        raise InputError(f"{source}: {str(item)[:60]!r} is no object.")
    row = {
        "id": item_id(item, number, flags.split, source),
        "image": relative_image(item.get("image"), "image", flags.image_root, source),
        "conversations": box_turns(item, source),
        "accu_reward_method": "iou",
        "split": flags.split,
    }
    return checked(row, size_of(item, source), flags.image_root, source)


def box_turns(item: dict, source: str) -> list[dict]:
    """The turns of a row: question and box. InputError for an item that has none, or one in thousandths of the image."""
    box = four_numbers(item.get("solution"), "solution", "[x1, y1, x2, y2] in pixels of the original image", source)
    thousandths = item.get("normalized_solution")
    if size_of(item, source) != THOUSAND and thousandths is not None and box == thousandths:
        raise InputError(
            f"{source}: `solution` is the same as `normalized_solution`, so in thousandths of the image; wanted are pixels of the original image."
        )
    return [
        {"from": "human", "value": IMAGE_MARKER + _question(item, source)},
        {"from": "gpt", "value": f"<answer>{json.dumps({'bbox_2d': box})}</answer>"},
    ]


def _question(item: dict, source: str) -> str:
    problem, caption = item.get("problem"), item.get("normal_caption")
    if problem is None and isinstance(caption, str) and caption.strip():
        return f"Give the box of what this describes: {caption.strip()}"
    if not isinstance(problem, str) or not problem.replace(IMAGE_MARKER, "").strip():
        raise InputError(f"{source}: `problem` is {problem!r}; wanted is the question as a text.")
    return problem.replace(IMAGE_MARKER, "").strip()
