"""VLM-R1's own data as rows that `kivqa check` takes: ids unique over all files, a marker for each image, images that are there, a reward method.

Two kinds of items are read: those with `conversations` (its jsonl files), and those with `problem` and `solution` (its rec_jsons_processed, a box each), also mixed.
"""

import argparse
import os
from itertools import count
from typing import Any

from ..data.jsonl import split_paths
from ..data.samples import IMAGE_MARKER, ROLES
from ..errors import InputError
from ..rewards.methods import BOX_METHODS, check_methods
from .converted import Counts, RowsFile, check_row, file_identity
from .items import checked, item_id, size_of
from .json_stream import Item, items
from .rec import box_turns
from .vlm_r1_files import Part, list_parts

OURS = (
    "id",
    "image",
    "conversations",
    "split",
    "accu_reward_method",
)  # fields that the conversion writes; others stay as they are


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument(
        "--input",
        required=True,
        help="files separated by ':': .jsonl, .json (a list), or .yaml with `datasets`, each with a `json_path` and perhaps a `sampling_strategy` (all, first:N, end:N, random:N; N may be "
        "a share, 20%%) and an `image_folder`",
    )
    flags.add_argument(
        "--image_folders", default="", help="one for each file, separated by ':', or a single one for all"
    )
    flags.add_argument(
        "--reward_method",
        default="",
        help="one for each file, separated by ':', or a single one for all; written into rows that name none themselves (default: none is written; iou for items with a box as `solution`)",
    )
    flags.add_argument("--seed", type=int, default=42, help="which items random:N takes (default: %(default)s)")
    flags.add_argument("--split", help="name of the rows' split (default: the output's name without .jsonl)")


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes the rows, and says what became of the items. Raises InputError for what can't be used."""
    methods = [method.strip() for method in flags.reward_method.split(":") if method.strip()]
    check_methods(methods)
    parts = list_parts(split_paths(flags.input), split_paths(flags.image_folders), methods)
    if os.path.abspath(flags.output) in [os.path.abspath(part.path) for part in parts]:
        raise InputError(f"--output {flags.output} is one of the files that are read; name another file.")
    folders = sorted({os.path.abspath(part.image_folder) for part in parts if part.image_folder})
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(f"Image folder {folder} does not exist; give the folder that the rows' images lie under.")
    common = os.path.commonpath(folders) if folders else ""
    split = flags.split or os.path.basename(flags.output).removesuffix(".jsonl")
    identity = {
        "benchmark": "vlm-r1",
        "inputs": [[file_identity(part.path), part.image_folder, part.method, part.strategy] for part in parts],
        "image_folders": common,
        "seed": flags.seed,
        "split": split,
    }
    with RowsFile(flags.output, identity) as rows:
        taken, before = dict.fromkeys((row["id"] for row in rows.written()), 1), 0
        for part in parts:
            chosen = part.chosen(flags.seed)
            for number, item in enumerate(items(part.path)):
                before += 1
                if before <= rows.done:
                    continue
                if number not in chosen:
                    rows.counts.drop(f"left out by sampling_strategy {part.strategy}")
                elif (row := _row(item, number, part, common, split, rows.counts)) is not None:
                    row["id"] = _unique(row["id"], taken, rows.counts)
                    rows.write(row)
                rows.dealt()
        lines = rows.finish()
    return [*lines, f"The rows' images: --image_folders {common}"] if common else lines


def _row(item: Item, number: int, part: Part, common: str, split: str, counts: Counts) -> dict | None:
    """The row; or None, and `counts` says why."""
    source, value = f"{os.path.basename(part.path)} item {number}", item.value
    reason = "neither `conversations` nor `problem` and `solution`"
    try:
        if not isinstance(value, dict):
            raise InputError(f"{source} is {str(value)[:60]!r}")
        method = value.get("accu_reward_method") or part.method
        if "conversations" in value:
            turns, other = _turns(value["conversations"]), {key: value[key] for key in value if key not in OURS}
        elif "problem" in value and "solution" in value:
            reason = "a box that can't be used"
            turns, other, method = box_turns(value, source), {}, method or "iou"
        else:
            raise InputError(f"{source} has {', '.join(value) or 'nothing'}")
        reason = "an image path that can't be used"
        images = _images(value.get("image"), part.image_folder, common, source)
        missing = [path for path in images if not os.path.isfile(os.path.join(common, path))]
        if missing:
            counts.drop("an image that isn't there", missing[0])
            return None
        reason = "an image marker, and no image"
        turns, moved = _mark(turns, len(images), source)
        reason = "the row could not be used"
        row = {"id": item_id(value, number, os.path.splitext(os.path.basename(part.path))[0], source)}
        if images:
            row["image"] = images if len(images) > 1 else images[0]
        row |= {"conversations": turns, "split": split}
        if method:
            row["accu_reward_method"] = method
        row |= other
        if check_row(row, source, common).reward_method in BOX_METHODS and images:
            checked(row, size_of(value, source), common, source)
    except InputError as error:
        counts.drop(reason, error)
        return None
    if moved:
        counts.note("not as many markers as images; all images stand first now, as VLM-R1 shows them", source)
    if len(turns) > 2:
        counts.note("more than two turns; VLM-R1 used the first two", source)
    return row


def _turns(value: Any) -> Any:
    """The conversation as the item has it, numbers as texts, as VLM-R1 reads them; `check_row` refuses what is none."""
    if not isinstance(value, list):
        return value
    return [
        {**turn, "value": str(turn["value"])} if isinstance(turn, dict) and _is_number(turn.get("value")) else turn
        for turn in value
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _images(value: Any, folder: str, common: str, source: str) -> list[str]:
    """Paths below the common folder."""
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{source}: `image` is {str(value)[:60]!r}")
    if names and not folder:
        raise InputError(f"{source}: no image folder was given for it; set --image_folders")
    root = os.path.abspath(folder)
    paths = [os.path.normpath(os.path.join(root, name)) for name in names]
    outside = [path for path in paths if not path.startswith(root.rstrip("/") + "/")]
    if outside:
        raise InputError(f"{source}: {outside[0]} lies outside of {root}")
    return [os.path.relpath(path, common) for path in paths]


def _mark(turns: Any, images: int, source: str) -> tuple[Any, bool]:
    """The turns with a marker for each image, and whether wrong ones were taken away: then, and where there is none, all images stand before the first question."""
    human = [turn for turn in turns if _is_human(turn)] if isinstance(turns, list) else []
    markers = sum(turn["value"].count(IMAGE_MARKER) for turn in human)
    if markers == images or not human:
        return turns, False
    if not images:
        raise InputError(source)
    clean = {id(turn): {**turn, "value": turn["value"].replace(IMAGE_MARKER, "").strip()} for turn in human}
    clean[id(human[0])]["value"] = IMAGE_MARKER * images + clean[id(human[0])]["value"]
    return [clean.get(id(turn), turn) for turn in turns], markers > 0


def _is_human(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("value"), str) and ROLES.get(str(turn.get("from"))) == "user"


def _unique(id: str, taken: dict[str, int], counts: Counts) -> str:
    """The id, with "-2", "-3", … behind it where it was given before. `taken` holds the last number behind each id, 1 for none."""
    name = id
    if id in taken:
        counts.note("an id given before; it has a number behind it now", id)
        taken[id] = next(number for number in count(taken[id] + 1) if f"{id}-{number}" not in taken)
        name = f"{id}-{taken[id]}"
    taken[name] = 1
    return name
