"""Lists of labelled boxes: reading them from answers, and scoring them against the row's own list.

An answer is a list of `{"bbox_2d": [x1, y1, x2, y2], "label": text}`, bare, in a ```json fence or between other text, or one such object; "None", `[]` and the like say that there
is nothing. Labels are compared without regard to case and spaces. A detection without a label is one of its own kind: it matches references without a label and no others.

All methods: nothing expected and nothing found is 1; nothing expected, and something found or an answer that is no list, is 0; so is nothing found where something is expected. None
if the row's reference is no list. Answers give no confidence, so all detections count as equally sure, in the order of the answer.
"""

import contextlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.samples import Sample
from .boxes import Box, box_of, is_box, json_items

MAX_DETECTIONS = 100  # of an image and label; COCO's maxDets
MATCH = 0.5  # IoU from which `weighted_sum` takes two boxes for the same
POSITION, COMPLETENESS = 0.7, 0.3  # weights of `weighted_sum`


@dataclass(frozen=True)
class Detection:
    """A box in pixels with its label, "" if it has none."""

    box: Box
    label: str

    @property
    def kind(self) -> str:
        """The label as it is compared: without case, spaces reduced."""
        return " ".join(self.label.casefold().split())


def parse_detections(text: str) -> list[Detection] | None:
    """The detections that a text lists, in order; [] if it says that there is nothing, None if it is no list of detections.

    Members without a box of four finite numbers are left out; if no member has one, the text is no list of detections. A label that is no text counts as none.
    """
    items = json_items(text)
    if items is None:
        return None
    boxes = [(box_of(item), item) for item in items]
    found = [Detection(box, _label(item)) for box, item in boxes if box is not None]
    return found if found or not items else None


def _label(item: dict) -> str:
    label = item.get("label")
    return label.strip() if isinstance(label, str) else ""


def expected_detections(sample: Sample) -> list[Detection] | None:
    """The row's own detections, from its first reference; None if it is no list of detections."""
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    return parse_detections(sample.answers[0])


def od_ap(answer: str, sample: Sample) -> float | None:
    """The method `od_ap`: COCO's AP, averaged over the IoU thresholds .5, .55, … .95 and then over the labels of the reference, of this one image; in [0, 1].

    Source: VLM-R1's `od_ap` reward and pycocotools' COCOeval. As COCO counts, detections after the last right one cost nothing, nor do those of labels that the reference lacks: a
    policy can learn to list much. `odLength` charges for it.
    """
    return _average_precision(answer, sample, "AP")


def od_ap50(answer: str, sample: Sample) -> float | None:
    """The method `od_ap50`: as `od_ap`, at the single IoU threshold .5."""
    return _average_precision(answer, sample, "AP50")


def od_length(answer: str, sample: Sample) -> float | None:
    """The method `odLength`: `od_ap`, times expected / found where more detections are found than expected; in [0, 1]. Source: VLM-R1's `odLength` reward. All count, whatever their label."""
    score = od_ap(answer, sample)
    if not score:
        return score
    found, expected = len(parse_detections(answer)), len(expected_detections(sample))
    return score * (1.0 if found <= expected else expected / found)


def weighted_sum(answer: str, sample: Sample) -> float | None:
    """The method `weighted_sum`: 0.7 * position + 0.3 * completeness, in [0, 1].

    Found and expected boxes of the same label are matched one to one, the pair of highest IoU first (of equal pairs the one that the answer names first), down to an IoU of 0.5.

    position      the sum of the matches' IoUs, divided by the number expected;
    completeness  1 - (share of the expected that is unmatched + share of the found that is unmatched) / 2.

    Boxes too many take at most 0.15. Source: VLM-R1's `weighted_sum` reward with its default weights (that of the label is 0). There, matching ignored labels, so boxes with swapped labels scored.
    """
    expected = expected_detections(sample)
    if expected is None:
        return None
    found = parse_detections(answer)
    if not found or not expected:
        return _one_is_empty(found, expected)
    matched = _match(found, expected)
    position = sum(matched) / len(expected)
    unmatched = (1 - len(matched) / len(expected)) + (1 - len(matched) / len(found))
    return POSITION * position + COMPLETENESS * (1 - unmatched / 2)


def _one_is_empty(found: list[Detection] | None, expected: list[Detection]) -> float:
    return float(found == [] and not expected)


def _match(found: list[Detection], expected: list[Detection]) -> list[float]:
    """IoUs of the pairs that `weighted_sum` matches."""
    matched, named = [], _by_kind(found)
    for kind, boxes in _by_kind(expected).items():
        overlaps = pairwise_iou(np.array(named.get(kind, [])).reshape(-1, 4), np.array(boxes))
        rows, columns = np.nonzero(overlaps >= MATCH)
        order = np.argsort(-overlaps[rows, columns], kind="stable")
        free_rows, free_columns = set(rows.tolist()), set(columns.tolist())
        for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if row in free_rows and column in free_columns:
                free_rows.remove(row)
                free_columns.remove(column)
                matched.append(float(overlaps[row, column]))
    return matched


def _by_kind(detections: list[Detection]) -> dict[str, list[Box]]:
    boxes: dict[str, list[Box]] = {}
    for detection in detections:
        boxes.setdefault(detection.kind, []).append(detection.box)
    return boxes


def pairwise_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) boxes to their (n, m) IoUs, as `boxes.iou` gives them."""
    sizes = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = np.prod(np.maximum(sizes, 0.0), axis=2)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1) for boxes in (a, b)]
    union = areas[0][:, None] + areas[1][None, :] - common
    proper = (areas[0] > 0)[:, None] & (areas[1] > 0)[None, :]
    return np.minimum(np.divide(common, union, out=np.zeros_like(common), where=proper), 1.0)


def _average_precision(answer: str, sample: Sample, measure: str) -> float | None:
    expected = expected_detections(sample)
    if expected is None:
        return None
    found = parse_detections(answer)
    if not found or not expected:
        return _one_is_empty(found, expected)
    return coco_ap([(found, expected)])[measure]


def coco_ap(images: Sequence[tuple[list[Detection], list[Detection]]]) -> dict[str, float | None]:
    """COCO's "AP" (IoU .5 to .95) and "AP50" over many images, by pycocotools' COCOeval; in [0, 1], None if nothing is expected in any image.

    An image without expected boxes still counts: what is found there is wrong. Since all detections are equally sure, they are ranked in the order of the images, and in an image in
    the order of the answer; of an image and label only the first 100 count (COCO's maxDets).

    Args:
        images: (found, expected) for each image.
    """
    labels = {kind: i for i, kind in enumerate(sorted({one.kind for _, expected in images for one in expected}))}
    if not labels:
        return {"AP": None, "AP50": None}
    references = [_annotation(image, one, labels) for image, (_, expected) in enumerate(images) for one in expected]
    detections = []
    for image, (found, _) in enumerate(images):
        counts = Counter()
        for one in found:
            kind = one.kind
            counts[kind] += 1
            if kind in labels and counts[kind] <= MAX_DETECTIONS:
                detections.append(_annotation(image, one, labels))
    precision = _evaluate(references, detections, len(images), len(labels))
    # COCOeval divides by a hair too much, so that a perfect answer would be a hair below 1.
    return {"AP": round(float(precision.mean()), 12), "AP50": round(float(precision[0].mean()), 12)}


def _annotation(image: int, detection: Detection, labels: dict[str, int]) -> dict:
    """COCO's form of a box: [x, y, width, height]. A reversed box has no size there, or its negative sides would make a positive area."""
    x1, y1, x2, y2 = detection.box
    size = [x2 - x1, y2 - y1] if is_box(detection.box) else [0.0, 0.0]
    area = size[0] * size[1]
    return {
        "image_id": image,
        "category_id": labels[detection.kind],
        "bbox": [x1, y1, *size],
        "area": area,
        "iscrowd": 0,
    }


def _evaluate(references: list[dict], detections: list[dict], images: int, labels: int) -> np.ndarray:
    """Precisions by COCOeval, (10 IoU thresholds, 101 recalls, labels)."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def index(annotations: list[dict]) -> COCO:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(images)],
            "categories": [{"id": label} for label in range(labels)],
            "annotations": [{"id": i, "score": 1.0} | one for i, one in enumerate(annotations, 1)],
        }
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):  # both greet and report on stdout
        evaluation = COCOeval(index(references), index(detections), "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, np.inf]], ["all"]
        evaluation.params.maxDets = [MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][:, :, :, 0, 0]
