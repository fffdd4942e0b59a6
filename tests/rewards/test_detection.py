import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.boxes import iou
from open_r1_kivqa.rewards.detection import (
    Detection,
    coco_ap,
    od_ap,
    od_ap50,
    od_length,
    pairwise_iou,
    parse_detections,
    weighted_sum,
)

METHODS = [od_ap, od_ap50, od_length, weighted_sum]
CAT, DOG = (0, 0, 10, 10), (100, 100, 140, 120)


def sample(reference, method="od_ap"):
    row = {"id": "1", "conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": reference}]}
    return parse_row(row, image_folder="", reward_method=method, source="rows.jsonl:1")


def written(*detections):
    """("cat", box) pairs as an answer; a label None is left out."""
    rows = [{"bbox_2d": list(box)} | ({} if label is None else {"label": label}) for label, box in detections]
    return json.dumps(rows)


BOTH = sample(written(("cat", CAT), ("dog", DOG)))


@pytest.mark.parametrize(
    "text, found",
    [
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "a"}]', [((1, 2, 3, 4), "a")]),
        ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": " a b "}]\n```', [((1, 2, 3, 4), "a b")]),
        ('{"bbox": [1, 2, 3, 4], "label": "a"}', [((1, 2, 3, 4), "a")]),
        ('[{"box": [1.5, 2, 3, 4]}]', [((1.5, 2, 3, 4), "")]),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": 7}]', [((1, 2, 3, 4), "")]),
        ('[{"bbox_2d": [1, 2, 3, 4], "bbox": [5, 6, 7, 8]}]', [((1, 2, 3, 4), "")]),
        ('[{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [1, 2, 3]}, 5, null]', [((1, 2, 3, 4), "")]),
        ('[{"bbox_2d": [4, 3, 2, 1]}]', [((4, 3, 2, 1), "")]),
        ("None", []),
        ("[]", []),
        ("no objects", []),
        ('[{"bbox_2d": [1, 2, 3]}]', None),
        ('[{"bbox_2d": [1, 2, NaN, 4]}]', None),
        ('[{"label": "a"}]', None),
        ("{}", None),
        ("[1, 2, 3, 4]", None),
        ("a cat", None),
        ("", None),
    ],
)
def test_reading(text, found):
    detections = parse_detections(text)
    assert (detections and [(one.box, one.label) for one in detections]) == found


@pytest.mark.parametrize("method", METHODS)
def test_nothing_there(method):
    empty = sample("None")
    assert method("None", empty) == method("[]", empty) == method("```json\n[]\n```", empty) == 1.0
    assert method("a cat", empty) == method("", empty) == 0.0  # VLM-R1 gave 1 to an answer that is no list
    assert method(written(("cat", CAT)), empty) == 0.0
    assert method("None", BOTH) == method("a cat", BOTH) == method("", BOTH) == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_right_answers(method):
    assert method(written(("cat", CAT), ("dog", DOG)), BOTH) == 1.0
    assert method(written((" DOG", DOG), ("Cat", CAT)), BOTH) == 1.0
    many = sample(written(*[(label, (i, i / 3, 2 * i + 1.7, i + 0.3)) for i in range(9) for label in "abc"]))
    assert method(many.answer, many) == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_labels_decide(method):
    assert method(written(("dog", CAT), ("cat", DOG)), BOTH) == 0.0  # swapped: 0.3 in VLM-R1's weighted_sum
    assert method(written((None, CAT), (None, DOG)), BOTH) == 0.0  # no label matches none that has one
    unlabelled = sample(written((None, CAT), (None, DOG)))
    assert method(written((None, CAT), (None, DOG)), unlabelled) == pytest.approx(1.0)
    assert method(written(("cat", CAT), ("dog", DOG)), unlabelled) == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_rows_whose_reference_is_no_list(method):
    assert method("[]", sample("Paris")) is None
    row = {"id": "1", "conversations": [{"from": "human", "value": "?"}], "answers": {"range": [1, 2]}}
    assert method("[]", parse_row(row, image_folder="", reward_method="od_ap", source="x:1")) is None


def test_average_precision_by_hand():
    """A right cat and no dog: AP 1 and 0. An IoU of 0.72 passes 5 of the 10 thresholds (.5 to .7)."""
    assert od_ap(written(("cat", CAT)), BOTH) == pytest.approx(0.5)
    assert od_ap50(written(("cat", CAT)), BOTH) == pytest.approx(0.5)
    one = sample(written(("cat", (0, 0, 100, 100))))
    assert od_ap(written(("cat", (0, 0, 72, 100))), one) == pytest.approx(0.5)
    assert od_ap50(written(("cat", (0, 0, 72, 100))), one) == pytest.approx(1.0)
    wrong_first = written(("cat", DOG), ("cat", (0, 0, 100, 100)))
    assert od_ap(wrong_first, one) == pytest.approx(0.5)  # precision 1/2 at every recall
    assert od_ap(written(("cat", (100, 0, 0, 100))), one) == 0.0  # reversed
    assert od_ap(written(("cat", (100, 100, 0, 0))), one) == 0.0  # both sides negative: their product is not


def test_what_cocos_rule_does_not_charge_for_od_length_does():
    right_first = written(("cat", CAT), ("cat", DOG), ("bird", DOG), ("fish", DOG))
    one = sample(written(("cat", CAT)))
    assert od_ap(right_first, one) == 1.0
    assert od_length(right_first, one) == 0.25
    assert od_length(written(("cat", CAT), ("dog", DOG)), BOTH) == 1.0
    assert od_length(written(("cat", CAT)), BOTH) == od_ap(
        written(("cat", CAT)), BOTH
    )  # too few is no matter of length


@pytest.mark.parametrize(
    "answer, value",
    [
        ([("cat", CAT)], 0.7 * 0.5 + 0.3 * 0.75),  # one of two, none too many
        ([("cat", CAT), ("dog", DOG), ("dog", DOG)], 0.7 + 0.3 * (1 - 1 / 6)),  # one of three too many
        ([("cat", (0, 0, 10, 6)), ("dog", DOG)], 0.7 * (0.6 + 1) / 2 + 0.3),
        ([("cat", (0, 0, 10, 4)), ("dog", DOG)], 0.7 * 0.5 + 0.3 * 0.5),  # IoU 0.4: no match
        ([("cat", (0, 0, 10, 5)), ("dog", DOG)], 0.7 * (0.5 + 1) / 2 + 0.3),  # 0.5 is one
        ([("cat", (20, 20, 30, 30))], 0.0),
    ],
)
def test_weighted_sum_by_hand(answer, value):
    assert weighted_sum(written(*answer), BOTH) == pytest.approx(value)


def test_what_a_list_of_everything_earns():
    """One right box among a hundred, and one box under four labels."""
    expected = sample(written(("cat", (10, 10, 50, 50))))
    grid = written(*[("cat", (x, y, x + 40, y + 40)) for x in range(0, 100, 10) for y in range(0, 100, 10)])
    assert weighted_sum(grid, expected) == pytest.approx(0.7 + 0.3 * (1 - 0.99 / 2))
    assert od_length(grid, expected) < 0.01
    labels = written(*[(label, (10, 10, 50, 50)) for label in ("bird", "cat", "dog", "fish")])
    assert (od_ap(labels, expected), od_length(labels, expected)) == (1.0, 0.25)
    assert weighted_sum(labels, expected) == pytest.approx(0.7 + 0.3 * (1 - 0.75 / 2))


def test_weighted_sum_matches_the_best_pair_first():
    """a-1 .6, a-2 1.0, b-2 .5, b-1 nothing: the best pair, a-2, leaves b with nothing, though a-1 and b-2 would be two pairs."""
    expected = sample(written(("cat", (0, 0, 100, 60)), ("cat", (0, 0, 100, 100))))
    answer = written(("cat", (0, 50, 100, 100)), ("cat", (0, 0, 100, 100)))
    assert weighted_sum(answer, expected) == pytest.approx(0.7 * 1.0 / 2 + 0.3 * (1 - (0.5 + 0.5) / 2))


def by_definition(images, thresholds):
    """COCO's AP from its definition: for each label and IoU threshold, rank all detections, match each to the free reference of highest IoU that reaches the threshold, make precision
    fall with recall, and average it at the recalls 0, .01, … 1."""
    labels = {one.kind for _, expected in images for one in expected}
    values = []
    for label in labels:
        number = sum(one.kind == label for _, expected in images for one in expected)
        for threshold in thresholds:
            hits = []
            for found, expected in images:
                free = [one.box for one in expected if one.kind == label]
                for box in [one.box for one in found if one.kind == label][:100]:
                    best = max(free, key=lambda other: iou(box, other), default=None)
                    hit = best is not None and iou(box, best) >= threshold
                    if hit:
                        free.remove(best)
                    hits.append(hit)
            right = np.cumsum(hits)
            recall, precision = right / number, right / np.arange(1, len(hits) + 1)
            values += [
                max((p for r, p in zip(recall, precision, strict=True) if r >= level), default=0.0)
                for level in np.linspace(0, 1, 101)
            ]
    return float(np.mean(values))


THRESHOLDS = np.linspace(0.5, 0.95, 10)
EDGE, SIDE = st.integers(0, 6), st.integers(1, 7)
BOX = st.builds(lambda x, y, width, height: (x, y, x + width, y + height), EDGE, EDGE, SIDE, SIDE)
DETECTIONS = st.lists(
    st.builds(Detection, BOX.map(lambda box: tuple(map(float, box))), st.sampled_from("abc")), max_size=6
)
IMAGES = st.lists(st.tuples(DETECTIONS, DETECTIONS), min_size=1, max_size=4)


def near_a_tie(images):
    """Whether an IoU is one of the thresholds, or a detection covers two references equally: floating point or the order may decide there."""
    for found, expected in images:
        for one in found:
            overlaps = [iou(one.box, other.box) for other in expected if other.kind == one.kind]
            if len(set(overlaps)) < len(overlaps) or any(np.isclose(overlaps, t).any() for t in THRESHOLDS):
                return True
    return False


@settings(max_examples=60, deadline=None)
@given(IMAGES)
def test_average_precision_is_that_of_the_definition(images):
    if not any(expected for _, expected in images):
        assert coco_ap(images) == {"AP": None, "AP50": None}
    elif not near_a_tie(images):
        assert coco_ap(images)["AP"] == pytest.approx(by_definition(images, THRESHOLDS), abs=1e-6)
        assert coco_ap(images)["AP50"] == pytest.approx(by_definition(images, [0.5]), abs=1e-6)


def random_images(count, seed):
    """References, and detections near them, beside them, with wrong labels and in any order."""
    rng = random.Random(seed)
    images = []
    for _ in range(count):
        expected, found = [], []
        for _ in range(rng.randrange(6)):
            x, y, w, h = rng.uniform(0, 300), rng.uniform(0, 300), rng.uniform(10, 200), rng.uniform(10, 200)
            expected.append(Detection((x, y, x + w, y + h), rng.choice("abcde")))
            for _ in range(rng.randrange(3)):
                edges = [edge + rng.uniform(-0.3, 0.3) * (w, h)[i % 2] for i, edge in enumerate((x, y, x + w, y + h))]
                found.append(Detection(tuple(edges), rng.choice([expected[-1].label] * 3 + ["z", ""])))
        rng.shuffle(found)
        images.append((found, expected))
    return images


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_over_many_images(seed):
    images = random_images(40, seed)
    value = coco_ap(images)["AP"]
    assert 0.05 < value < 0.95
    assert value == pytest.approx(by_definition(images, THRESHOLDS), abs=1e-6)


def test_average_precision_is_that_of_pycocotools_with_its_own_settings():
    """Its four ranges of areas, its loadRes and its summary, on files' form of the same boxes."""
    images = random_images(40, seed=3)
    labels = sorted({one.label for image in images for side in image for one in side})

    def annotation(image, one):
        x1, y1, x2, y2 = one.box
        box = [x1, y1, x2 - x1, y2 - y1]
        return {"image_id": image, "category_id": labels.index(one.label), "bbox": box, "area": box[2] * box[3]}

    coco = COCO()
    expected = [annotation(i, one) for i, (_, its) in enumerate(images) for one in its]
    coco.dataset = {
        "images": [{"id": i} for i in range(len(images))],
        "categories": [{"id": i, "name": label} for i, label in enumerate(labels)],
        "annotations": [one | {"id": i + 1, "iscrowd": 0} for i, one in enumerate(expected)],
    }
    coco.createIndex()
    found = [annotation(i, one) | {"score": 1.0} for i, (its, _) in enumerate(images) for one in its]
    evaluation = COCOeval(coco, coco.loadRes(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert coco_ap(images) == pytest.approx({"AP": evaluation.stats[0], "AP50": evaluation.stats[1]}, abs=1e-9)


def test_over_many_images_each_label_counts_once_and_empty_images_can_only_cost():
    cat, dog = Detection(CAT, "cat"), Detection(DOG, "dog")
    assert coco_ap([([cat], [cat]), ([cat], [cat]), ([], [dog])]) == {"AP": 0.5, "AP50": 0.5}
    assert coco_ap([([cat], []), ([cat], [cat])])["AP"] == pytest.approx(0.5)  # the wrong one ranks first
    assert coco_ap([([cat], [cat]), ([cat], [])])["AP"] == pytest.approx(1.0)
    assert coco_ap([([dog], []), ([cat], [cat])])["AP"] == pytest.approx(1.0)  # no dog is expected anywhere


def test_only_the_first_hundred_of_a_label_count():
    wrong = [("cat", (i, 200, i + 1, 201)) for i in range(100)]
    assert od_ap(written(*wrong[:99], ("cat", CAT)), sample(written(("cat", CAT)))) == pytest.approx(0.01)
    assert od_ap(written(*wrong, ("cat", CAT)), sample(written(("cat", CAT)))) == 0.0
    other = [("bird", box) for _, box in wrong]
    assert od_ap(written(*other, ("cat", CAT)), sample(written(("cat", CAT)))) == 1.0  # a label of its own


def test_averaging_prints_nothing(capsys):
    od_ap(written(("cat", CAT)), BOTH)
    assert capsys.readouterr() == ("", "")


@given(st.lists(BOX, max_size=5), st.lists(BOX, max_size=5))
def test_pairwise_iou_is_iou_of_each_pair(a, b):
    values = pairwise_iou(np.array(a, dtype=float).reshape(-1, 4), np.array(b, dtype=float).reshape(-1, 4))
    assert values == pytest.approx(np.array([[iou(one, other) for other in b] for one in a]).reshape(len(a), len(b)))


HUGE = '{"bbox_2d": [1e9, -1e9, 1e9, 1e9], "label": "cat"}'
HOSTILE = {
    "many boxes": written(*[("cat", (i, i, i + 10, i + 10)) for i in range(10_000)]),
    "many labels": written(*[(f"cat{i}", CAT) for i in range(10_000)]),
    "nested": '[{"bbox_2d": ' + "[" * 2000,
    "a label of its own": written(("cat" * 100_000, CAT)),
    "huge": f"[{HUGE}, {HUGE.replace('1e9', '9' * 9)}]",
    "long numbers": '[{"bbox_2d": [0, 0, ' + "9" * 100_000 + ', 5], "label": "cat"}]',
    "not open": "]}" * 50_000,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts(method, text):
    assert 0.0 <= method(text, BOTH) <= 1.0


TEXTS = st.text('[]{}",:0123456789.ebox_2dlabelcat` \n', max_size=80)
MEMBER = st.dictionaries(
    st.sampled_from(["bbox_2d", "bbox", "box", "label"]),
    st.none() | st.sampled_from(["cat", "dog", ""]) | st.lists(st.floats() | st.integers(-50, 150), max_size=5),
)


@settings(max_examples=100, deadline=None)
@given(st.text() | TEXTS | st.lists(MEMBER, max_size=4).map(json.dumps))
def test_no_text_raises(text):
    for method in METHODS:
        assert 0.0 <= method(text, BOTH) <= 1.0
        assert method(text, sample("None")) in (0.0, 1.0)
