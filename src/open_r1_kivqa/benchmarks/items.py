"""What `rec` and `ovd` share, whose files are small: their flags, reading JSON, naming bad items, making ids unique, checking rows, writing them."""

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from ..data.aside import written_aside
from ..data.images import image_size
from ..data.samples import parse_row, row_id
from ..errors import InputError
from ..rewards.boxes import box_problem

EXAMPLES = 10  # bad items that an error names


def add_item_flags(flags: argparse.ArgumentParser) -> None:
    """The flags that both commands have."""
    flags.add_argument("--split", help="name of the rows' split (default: the output's name without .jsonl)")
    flags.add_argument(
        "--image_root",
        help="folder of the images; if given, each must be there and have the size that the benchmark says",
    )
    flags.add_argument("--skip_bad", action="store_true", help="leave out items that cannot be used, and say how many")


def check_item_flags(flags: argparse.Namespace) -> None:
    """Fills in `split`; InputError if the image folder is none."""
    if flags.image_root and not os.path.isdir(flags.image_root):
        raise InputError(f"--image_root {flags.image_root} is no folder; give the one that the images lie in.")
    flags.split = flags.split or os.path.basename(flags.output).removesuffix(".jsonl")


def read_file(path: str) -> Any:
    """The JSON value that a file holds; InputError with line and column if it holds none."""
    if not os.path.isfile(path):
        raise InputError(f"{path} is no file; give the benchmark's JSON file.")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file that you may read.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start + 1}); give the JSON file, unpacked.") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}); give one JSON value a file. Files of one object a line (jsonl) hold rows already: see `kivqa check`."
        ) from None
    except (ValueError, RecursionError) as error:  # an integer of too many digits; nested too deeply
        raise InputError(f"{path}: not JSON that Python reads ({error}); download the file again.") from None


def gather(makers: Iterable[Callable[[], dict]], *, path: str, skip_bad: bool) -> tuple[list[dict], int]:
    """Rows from functions that make one each or raise InputError, and how many raised.

    Ids given before get "-2", "-3", … behind them, in the order of the rows.

    Args:
        path: the file that the items are from, for messages.
        skip_bad: leave items out that raise.

    Raises:
        InputError: an item raised, and not `skip_bad`: says of the first few what is wrong; or no item is left.
    """
    rows, errors = [], []
    for make in makers:
        try:
            rows.append(make())
        except InputError as error:
            errors.append(str(error))
    if errors and not skip_bad:
        more = f"\n… and {len(errors) - EXAMPLES:,} more" if len(errors) > EXAMPLES else ""
        raise InputError(
            f"{path}: {len(errors):,} of {len(rows) + len(errors):,} items cannot be used; correct them, or leave them out with --skip_bad.\n"
            + "\n".join(errors[:EXAMPLES])
            + more
        )
    if not rows:
        raise InputError(f"{path}: no item is left to write; {errors[0] if errors else 'it holds none'}")
    _make_unique(rows)
    return rows, len(errors)


def _make_unique(rows: list[dict]) -> None:
    taken, given, last = {row["id"] for row in rows}, set(), Counter()
    for row in rows:
        name = row["id"]
        if name in given:
            last[name] = next(number for number in count(max(2, last[name] + 1)) if f"{name}-{number}" not in taken)
            row["id"] = f"{name}-{last[name]}"
            taken.add(row["id"])
        given.add(name)


def item_id(item: dict, number: int, prefix: str, source: str) -> str:
    """`prefix`-id of an item by its `id`, or by its place in the file (from 0) if it has none."""
    return f"{prefix}-{row_id(item, 'id', source) if item.get('id') is not None else number}"


def four_numbers(value: Any, name: str, wanted: str, source: str) -> list[float]:
    """A JSON list of four finite numbers as floats; InputError if it is something else."""
    numbers = value if isinstance(value, list) and len(value) == 4 else []
    if len(numbers) != 4 or not all(_is_finite(number) for number in numbers):
        raise InputError(f"{source}: `{name}` is {_short(value)}; wanted are four numbers, {wanted}.")
    return [float(number) for number in numbers]


def size_of(item: dict, source: str) -> tuple[int, int] | None:
    """(width, height) that an item gives for its image; None if it gives none."""
    size = item.get("width"), item.get("height")
    if size == (None, None):
        return None
    if not all(isinstance(edge, int) and not isinstance(edge, bool) and edge > 0 for edge in size):
        raise InputError(f"{source}: `width` and `height` are {size[0]!r} and {size[1]!r}; wanted are whole pixels.")
    return size


def relative_image(value: Any, name: str, image_root: str | None, source: str) -> str:
    """The path of an image as rows hold it: below the image folder. An absolute path must lie in `image_root`."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{source}: `{name}` is {_short(value)}; wanted is the path of an image.")
    if not os.path.isabs(value):
        return value
    path = os.path.relpath(value, image_root) if image_root else ".."
    if path.startswith(".."):
        raise InputError(f"{source}: image {value} is an absolute path; give the folder it lies in as --image_root.")
    return path


def checked(row: dict, size: tuple[int, int] | None, image_root: str | None, source: str) -> dict:
    """The row, if training and evaluation can use it: fields, and boxes inside the image.

    Args:
        size: (width, height) that the benchmark gives for the image; None if it gives none.
        image_root: the image folder; if given, the image must be there and have that size.
    """
    sample = parse_row(row, image_folder=image_root or os.curdir, reward_method="", source=source)
    if image_root:
        found = image_size(sample.images[0])
        if size is not None and found != size:
            raise InputError(
                f"{source}: image {sample.images[0]} has {found[0]} x {found[1]} pixels and not {size[0]} x {size[1]}; its boxes would lie elsewhere. Give the benchmark's own images."
            )
        size = found
    problem = box_problem(sample, [size] if size else [])
    if problem is not None:
        raise InputError(f"{source}: {problem[0]}; {problem[1]}.")
    return row


def write_rows(path: str, rows: list[dict], left_out: int) -> list[str]:
    """One row a line; says how many, and how many items were left out. InputError where that can't be."""
    try:
        with written_aside(path) as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(
            f"--output {path} cannot be written ({error.strerror}); name a file in a folder that is there."
        ) from error
    return [f"{path}: {len(rows):,} rows" + (f"; {left_out:,} bad items left out" if left_out else "")]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _short(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
