"""Boxes in texts: where they stand, what they measure, how well one covers another; the method `iou` and the reward `format_rec`.

A box is (x1, y1, x2, y2): its left, upper, right and lower edge in pixels of the row's (first) image, x to the right and y downwards, so its area is (x2 - x1) * (y2 - y1). Rows
hold such boxes. A model writes coordinates in a frame of its own; `scale_boxes` turns them into pixels before any method looks at an answer. No function raises, whatever the text.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..data.samples import Sample
from .extraction import completion_text, strict_answer
from .format import has_format

Box = tuple[float, float, float, float]

FARTHEST = 1e9  # no image is so large; what a product of two such numbers is, a float still holds
LONGEST_NUMBER = 400  # characters
BOX_KEYS = ("bbox_2d", "bbox", "box")  # the first one there counts
TOLERANCE = 1.5  # pixels that a reference may reach beyond its image: RefCOCO's boxes in VLM-R1's files end 1 pixel after their last one

_NUMBER = r"\s*+([-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?)\s*+"
BOX = re.compile(
    rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]"  # [x1, y1, x2, y2]
    rf"|\({_NUMBER},{_NUMBER}\)\s*+,\s*+\({_NUMBER},{_NUMBER}\)"  # (x1,y1),(x2,y2), as Qwen2-VL writes them
)
# Without a limit on digits, and with line ends inside of texts, as models write them.
DECODER = json.JSONDecoder(parse_int=float, strict=False)
JSON_START = re.compile(r'\[\s*+[{\]]|\{\s*+"')  # a list of objects, an empty list, or an object
FENCE_OPEN, FENCE_CLOSE = re.compile(r"\s*+```(?:json)?", re.IGNORECASE), "```"
NOTHING = re.compile(
    r"none|null|nothing|no (?:objects?|targets?|detections?|boxes)(?: (?:detected|found|present|visible))?"
)


@dataclass(frozen=True)
class Found:
    """A box that stands in a text at text[start:end], brackets included."""

    box: Box
    start: int
    end: int


def find_boxes(text: str) -> list[Found]:
    """Every group of four numbers that is written `[x1, y1, x2, y2]` or `(x1,y1),(x2,y2)`, in order; numbers may have a sign, decimals and an exponent.

    Not boxes: groups with another count of numbers, with nan or inf, with a number beyond `FARTHEST`. The order of the edges isn't looked at: a box may be reversed.
    """
    return list(_each_box(text))


def first_box(text: str) -> Box | None:
    """The first box of `find_boxes`; None if there is none."""
    return next((found.box for found in _each_box(text)), None)


def _each_box(text: str) -> Iterator[Found]:
    for match in BOX.finditer(text):
        numbers = [group for group in match.groups() if group is not None]
        if max(map(len, numbers)) <= LONGEST_NUMBER:
            box = tuple(map(float, numbers))
            if all(abs(number) <= FARTHEST for number in box):
                yield Found(box, match.start(), match.end())


def scale_boxes(text: str, scale: tuple[float, float], *, whole: bool = False) -> str:
    """The text with the numbers of each of its boxes multiplied: x by scale[0], y by scale[1]. What else stands in it stays, and so does a box that would leave `FARTHEST`.

    Args:
        scale: (1.0, 1.0) leaves the text as it is, unless `whole`.
        whole: round to whole numbers (halves to the even one), as models write coordinates.
    """
    if tuple(scale) == (1.0, 1.0) and not whole:
        return text
    parts, end = [], 0
    for found in find_boxes(text):
        box = [number * scale[i % 2] for i, number in enumerate(found.box)]
        if all(abs(number) <= FARTHEST for number in box):
            written = [repr(number) for number in (_whole(box, found.box) if whole else box)]
            form = "[{}, {}, {}, {}]" if text[found.start] == "[" else "({},{}),({},{})"
            parts += [text[end : found.start], form.format(*written)]
            end = found.end
    return "".join([*parts, text[end:]])


def _whole(box: list[float], unscaled: Box) -> list[int]:
    """The box in whole numbers; one that has something in it keeps at least 1 on each side."""
    rounded = [round(number) for number in box]
    if is_box(unscaled):
        rounded[2:] = [max(rounded[2], rounded[0] + 1), max(rounded[3], rounded[1] + 1)]
    return rounded


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, in [0, 1]; 0.0 if one is reversed or empty, or holds nan. Edges are lines between pixels: [5, 5, 6, 6] is one pixel."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if not (is_box(a) and is_box(b) and width > 0 and height > 0):
        return 0.0
    common = width * height
    return min(1.0, common / (area(a) + area(b) - common))


def area(box: Box) -> float:
    """Square pixels of a box that is_box."""
    return (box[2] - box[0]) * (box[3] - box[1])


def is_box(box: Box) -> bool:
    """Whether the edges are finite and in order, with something in between."""
    return all(map(math.isfinite, box)) and box[0] < box[2] and box[1] < box[3]


def reference_box(sample: Sample) -> Box | None:
    """The first box of the row's first reference; None if it has none."""
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    return first_box(sample.answers[0])


def iou_score(answer: str, sample: Sample) -> float | None:
    """The method `iou` (VLM-R1's for referring expressions): IoU of the answer's first box with the reference's first box, in [0, 1]; 0.0 without a box, None if the row has none.

    Both in original pixels. Further boxes of the answer don't count, so naming several gains nothing.
    """
    expected = reference_box(sample)
    if expected is None:
        return None
    found = first_box(answer)
    return 0.0 if found is None else iou(found, expected)


def json_items(text: str) -> list[Any] | None:
    """What a text lists in JSON: the members of its first list of objects, or its first object alone; [] if it says that there is nothing. None without either.

    The JSON may stand in a fence, closed or not, and between other text; cut off or broken, it is no JSON. Of a key given twice the last counts. Numbers come as floats.
    """
    if says_nothing(text):
        return []
    start = JSON_START.search(text)
    if start is None:
        return None
    value = read_json(text, start.start())
    return [value] if isinstance(value, dict) else value


def says_nothing(text: str) -> bool:
    """Whether the text as a whole means an empty list in words: "None", "no objects found" and the like, in a fence or not."""
    return len(text) < 100 and bool(NOTHING.fullmatch(unfenced(text).strip(" \t\r\n.!'\"").casefold()))


def unfenced(text: str) -> str:
    """The text without the ``` or ```json that it begins with and the ``` that it ends with."""
    opened = FENCE_OPEN.match(text)
    return text[opened.end() :].rstrip().removesuffix(FENCE_CLOSE) if opened else text


def read_json(text: str, start: int = 0, *, alone: bool = False) -> Any:
    """The JSON value at text[start:], with all numbers as floats; None if there is none, or, with `alone`, if more than white space follows it."""
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):  # no JSON; nested beyond Python's stack
        return None
    return None if alone and text[end:].strip() else value


def box_of(item: Any) -> Box | None:
    """The box of one detection, `{"bbox_2d": [x1, y1, x2, y2], …}` (or "bbox", or "box"); None if it has none of four numbers within `FARTHEST`."""
    if not isinstance(item, dict):
        return None
    value = next((item[key] for key in BOX_KEYS if key in item), None)
    return four_numbers(value)


def four_numbers(value: Any) -> Box | None:
    """A list of four numbers within `FARTHEST` as a box; None for anything else."""
    if not isinstance(value, list) or len(value) != 4 or not all(isinstance(number, float) for number in value):
        return None
    return tuple(value) if all(abs(number) <= FARTHEST for number in value) else None


def has_box_format(text: str) -> bool:
    """Whether a completion has the form `has_format`, and its answer is JSON and nothing else, bare or in a ```json fence, with one box or more, each of four finite numbers.

    Forms of the JSON: `[x1, y1, x2, y2]`, `{"bbox_2d": [x1, y1, x2, y2], …}`, or a list of either.
    """
    if not has_format(text):
        return False
    answer = unfenced(strict_answer(text) or "").strip()
    value = read_json(answer, alone=True)
    if four_numbers(value) is not None or box_of(value) is not None:
        return True
    return isinstance(value, list) and bool(value) and all(box_of(one) or four_numbers(one) for one in value)


def box_format_reward(prompts: list, completions: list[Any], **kwargs) -> list[float]:
    """The reward `format_rec`: 1.0 for a completion of the form `has_box_format`, else 0.0; one number a completion."""
    return [float(has_box_format(completion_text(completion))) for completion in completions]


def box_problem(sample: Sample, sizes: list[tuple[int, int]]) -> tuple[str, str] | None:
    """(message, remedy) if the reference of a row of a box method can't be meant: no box, no list of detections, reversed, or outside the row's first image. None if all is well.

    Args:
        sizes: (width, height) in pixels of the row's images; only the first counts. Empty: boxes are not compared with the image.
    """
    reference = "" if isinstance(sample.answers, dict) or not sample.answers else sample.answers[0]
    shown = repr(reference[:60])
    if sample.reward_method == "iou":
        boxes = [found.box for found in find_boxes(reference)]
        if not boxes:
            message = f"the reference {shown} of a row of the method 'iou' has no box of four finite numbers"
            return message, "write [x1, y1, x2, y2] in pixels of the original image"
    else:
        items = json_items(reference)
        form = 'write [{"bbox_2d": [x1, y1, x2, y2], "label": "name"}] in pixels of the original image, or None if there is nothing'
        if items is None:
            return (
                f"the reference {shown} of a row of the method {sample.reward_method!r} is no list of detections",
                form,
            )
        boxes = [box_of(item) for item in items]
        if None in boxes:
            place = boxes.index(None) + 1
            return f"detection {place} of the reference {shown} has no box of four finite numbers", form
    for box in boxes:
        edges = "[" + ", ".join(f"{number:g}" for number in box) + "]"
        if not is_box(box):
            return (
                f"the box {edges} of the reference is reversed or empty",
                "write [x1, y1, x2, y2] with x1 < x2 and y1 < y2",
            )
        width, height = sizes[0] if sizes else (math.inf, math.inf)
        if min(box[:2]) < -TOLERANCE or box[2] > width + TOLERANCE or box[3] > height + TOLERANCE:
            where = f"its image of {width} x {height} pixels" if sizes else "any image"
            message = f"the box {edges} of the reference lies outside {where}"
            return (
                message,
                "give pixels of the original image: not of a resized one, not thousandths, not [x, y, width, height]",
            )
    return None
