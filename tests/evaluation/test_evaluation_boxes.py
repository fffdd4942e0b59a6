import json

import pytest
from evaluation_rows import sample

from open_r1_kivqa.evaluation.boxes import box_measures, box_record, verdict
from open_r1_kivqa.rewards.methods import score

ONE = sample("1", answer="<answer>[0, 0, 100, 100]</answer>", accu_reward_method="iou")
CAT = {"bbox_2d": [0, 0, 10, 10], "label": "cat"}
DOG = {"bbox_2d": [20, 20, 40, 40], "label": "dog"}


def listed(*detections, **fields):
    return sample("1", answer=json.dumps(detections), accu_reward_method="od_ap", **fields)


def test_one_box_is_right_above_an_iou_of_a_half():
    assert [verdict(value, ONE) for value in (0.0, 0.5, 0.5001, 1.0, None)] == [0.0, 0.0, 1.0, 1.0, None]
    assert verdict(0.4, listed(CAT)) == 0.4
    assert verdict(0.4, sample("1", answer="yes")) == 0.4


def test_the_record_of_one_box_is_in_original_pixels():
    record = box_record("It is [0, 0, 500, 400], or [1, 1, 2, 2].", ONE, (0.2, 0.2))
    assert record == {
        "boxes": [{"box": [0.0, 0.0, 100.0, 80.0], "label": ""}],
        "expected": [{"box": [0.0, 0.0, 100.0, 100.0], "label": ""}],
        "iou": pytest.approx(0.8),
    }
    assert record["iou"] == score("[0, 0, 500, 400]", ONE, (0.2, 0.2))


def test_an_answer_without_box_names_none():
    for answer in (None, "", "left of the tree", "[1, 2, 3]"):
        record = box_record(answer, ONE, (1.0, 1.0))
        assert record["boxes"] == [] and record["iou"] == 0.0
    assert box_record("[0, 0, 1, 1]", sample("1", answer="Paris", accu_reward_method="iou"), (1.0, 1.0)) == {
        "boxes": [{"box": [0.0, 0.0, 1.0, 1.0], "label": ""}],
        "expected": [],
        "iou": None,
    }


def test_the_record_of_a_list():
    record = box_record(json.dumps([CAT, {"bbox_2d": [0, 0, 1, 1]}]), listed(CAT, DOG), (2.0, 3.0))
    assert record == {
        "boxes": [{"box": [0.0, 0.0, 20.0, 30.0], "label": "cat"}, {"box": [0.0, 0.0, 2.0, 3.0], "label": ""}],
        "expected": [
            {"box": [0.0, 0.0, 10.0, 10.0], "label": "cat"},
            {"box": [20.0, 20.0, 40.0, 40.0], "label": "dog"},
        ],
    }
    assert box_record("cats", listed(CAT), (1.0, 1.0))["boxes"] == []
    assert box_record("None", sample("1", answer="None", accu_reward_method="od_ap"), (1.0, 1.0)) == {
        "boxes": [],
        "expected": [],
    }


def records(*answers, strict=True):
    """One record an answer, each expecting CAT and DOG."""
    return [
        {"answer_strict": answer if strict else None} | box_record(answer, listed(CAT, DOG), (1.0, 1.0))
        for answer in answers
    ]


def test_dataset_figures():
    right, half = json.dumps([CAT, DOG]), json.dumps([CAT])
    assert box_measures(records(right, right)) == {"AP": 1.0, "AP50": 1.0, "AP_strict": 1.0}
    # cats: both found. dogs: recall 1/2 at precision 1, so 51 of the 101 recalls (0 to .5) have precision 1
    assert box_measures(records(right, half))["AP"] == pytest.approx((1 + 51 / 101) / 2)
    assert box_measures(records("?", None))["AP"] == 0.0


def test_strict_figures_take_answers_without_the_form_as_nothing():
    right = json.dumps([CAT, DOG])
    figures = box_measures(records(right) + records(right, strict=False))
    assert figures["AP"] == 1.0 and figures["AP_strict"] == pytest.approx(51 / 101)


def test_only_rows_with_lists_have_an_average_precision():
    assert box_measures([]) == {}
    assert box_measures([{"answer_strict": "x"}, {"answer_strict": "x"} | box_record("x", ONE, (1.0, 1.0))]) == {}
    nothing = {"answer_strict": "None", "boxes": [], "expected": []}
    assert box_measures([nothing]) == {"AP": None, "AP50": None, "AP_strict": None}
