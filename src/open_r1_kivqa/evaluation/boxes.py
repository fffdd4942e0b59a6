"""What evaluation adds for rows whose answers hold boxes: their boxes in the records, the official verdict on one box, and dataset figures over all records."""

from collections.abc import Sequence

from ..data.samples import Sample
from ..rewards.boxes import first_box, iou, reference_box, scale_boxes
from ..rewards.detection import Detection, coco_ap, expected_detections, parse_detections

RIGHT_ABOVE = 0.5  # IoU; RefCOCO's Acc@0.5, as VLM-R1's evaluation compares


def verdict(score: float | None, sample: Sample) -> float | None:
    """The score of an answer as evaluation reports it: for the method `iou` 1.0 above an IoU of 0.5, else 0.0; of every other method the score itself. None stays None."""
    if score is None or sample.reward_method != "iou":
        return score
    return float(score > RIGHT_ABOVE)


def box_record(answer: str | None, sample: Sample, scale: tuple[float, float]) -> dict:
    """What a record of a row of a box method holds besides: "boxes" that the answer names, and "expected" ones, lists of {"box": [x1, y1, x2, y2], "label": text} in pixels of the
    original image; for the method `iou` also "iou" (None if the row has no box), and of all boxes only the one that counts. An answer that can't be read names none.

    Args:
        answer: as extracted (leniently); None if there is none.
        scale: what turns the answer's coordinates into original pixels.
    """
    written = scale_boxes(answer or "", scale)
    if sample.reward_method != "iou":
        found, expected = parse_detections(written), expected_detections(sample)
        return {"boxes": _rows(found or []), "expected": _rows(expected or [])}
    box, expected_box = first_box(written), reference_box(sample)
    record = {
        name: _rows([Detection(one, "")] if one else []) for name, one in (("boxes", box), ("expected", expected_box))
    }
    if expected_box is None:
        return record | {"iou": None}
    return record | {"iou": iou(box, expected_box) if box else 0.0}


def _rows(detections: list[Detection]) -> list[dict]:
    return [{"box": list(one.box), "label": one.label} for one in detections]


def box_measures(records: Sequence[dict]) -> dict[str, float | None]:
    """Figures over all records of a split and setting: "AP", "AP50" (answers read leniently) and "AP_strict", see `coco_ap`, over the rows of detection methods; {} without such rows.

    Detections are ranked in the order of the records. Where an answer hasn't the strict form, "AP_strict" takes nothing as found; where it has, both readings give the same answer.
    """
    records = [record for record in records if "boxes" in record and "iou" not in record]
    if not records:
        return {}
    found = [_detections(record["boxes"]) for record in records]
    expected = [_detections(record["expected"]) for record in records]
    lenient = coco_ap(list(zip(found, expected, strict=True)))
    in_form = [record["answer_strict"] is not None for record in records]
    if all(in_form):  # seconds saved on a large split
        strict = lenient
    else:
        kept = [boxes if has_form else [] for boxes, has_form in zip(found, in_form, strict=True)]
        strict = coco_ap(list(zip(kept, expected, strict=True)))
    return {"AP": lenient["AP"], "AP50": lenient["AP50"], "AP_strict": strict["AP"]}


def _detections(rows: list[dict]) -> list[Detection]:
    return [Detection(tuple(row["box"]), row["label"]) for row in rows]
