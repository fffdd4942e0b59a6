import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.boxes import (
    FARTHEST,
    box_format_reward,
    box_problem,
    find_boxes,
    has_box_format,
    iou,
    iou_score,
    json_items,
    scale_boxes,
)


def sample(reference, method="iou"):
    row = {"id": "1", "conversations": [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": reference}]}
    return parse_row(row, image_folder="", reward_method=method, source="rows.jsonl:1")


def boxes(text):
    return [found.box for found in find_boxes(text)]


@pytest.mark.parametrize(
    "text, found",
    [
        ("[1, 2, 3, 4]", [(1, 2, 3, 4)]),
        ('{"bbox_2d": [1,2,3,4], "label": "a"}', [(1, 2, 3, 4)]),
        ("(1,2),(3,4)", [(1, 2, 3, 4)]),
        ("( 1 , 2 ) , ( 3 , 4 )", [(1, 2, 3, 4)]),
        ("[[1, 2, 3, 4], [5, 6, 7, 8]]", [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("[1.5, -2., .5, +4e1]", [(1.5, -2, 0.5, 40)]),
        ("[063,512,700,999]", [(63, 512, 700, 999)]),
        ("[\n 1,\n 2,\n 3,\n 4\n]", [(1, 2, 3, 4)]),
        ("[4, 3, 2, 1]", [(4, 3, 2, 1)]),  # reversed, but a box
        ("[1, 2, 3]", []),
        ("[1, 2, 3, 4, 5]", []),
        ("[1, 2, 3, x]", []),
        ('["1", "2", "3", "4"]', []),
        ("(1, 2, 3, 4)", []),
        ("[1 2 3 4]", []),
        ("[nan, 2, 3, 4] [NaN, 2, 3, 4] [inf, 0, 1, 1] [1, 2, Infinity, 4]", []),
        ("[1e999, 2, 3, 4]", []),
        ("[1e10, 2, 3, 4]", []),
        (f"[{'9' * 5000}, 2, 3, 4]", []),
        (f"[0.{'3' * 5000}, 2, 3, 4]", []),
        ("[٣, ٤, ٥, ٦] [１, ２, ３, ４]", []),
        ("", []),
    ],
)
def test_boxes_in_a_text(text, found):
    assert boxes(text) == found


def test_a_box_tells_where_it_stands():
    text = "at [1, 2, 3, 4] or (5,6),(7,8)!"
    assert [text[found.start : found.end] for found in find_boxes(text)] == ["[1, 2, 3, 4]", "(5,6),(7,8)"]


def test_scaling_multiplies_x_and_y_and_leaves_the_rest():
    text = 'I see 2: [{"bbox_2d": [10, 20, 30, 40.5], "label": "x [1]"}] and (1,2),(3,4), not [1, 2].'
    scaled = 'I see 2: [{"bbox_2d": [20.0, 10.0, 60.0, 20.25], "label": "x [1]"}] and (2.0,1.0),(6.0,2.0), not [1, 2].'
    assert scale_boxes(text, (2.0, 0.5)) == scaled
    assert scale_boxes(text, (1.0, 1.0)) == text


def test_whole_scaling_rounds():
    assert scale_boxes("[1.4, 2.6, 3, 4]", (1.0, 1.0), whole=True) == "[1, 3, 3, 4]"
    assert scale_boxes("[100, 50, 300, 333]", (1000 / 640, 1000 / 427), whole=True) == "[156, 117, 469, 780]"
    assert scale_boxes("(-0.4,9.6),(3,4)", (1.0, 1.0), whole=True) == "(0,10),(3,4)"


def test_scaled_json_stays_json():
    """Also of numbers that JSON doesn't know."""
    assert json.loads(scale_boxes("[007, .5, 5., +1]", (2.0, 2.0))) == [14.0, 1.0, 10.0, 2.0]


def test_a_box_that_scaling_would_push_out_of_range_stays():
    assert scale_boxes("[9e8, 0, 1, 1] [1, 1, 2, 2]", (2.0, 1.0)) == "[9e8, 0, 1, 1] [2.0, 1.0, 4.0, 2.0]"
    assert scale_boxes("[1, 2, 3, 4]", (math.inf, math.nan)) == "[1, 2, 3, 4]"


NUMBERS = st.integers(0, 4000)


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), st.tuples(*2 * (st.floats(0.05, 20),)))
def test_there_and_back_is_less_than_a_pixel_of_the_frame_away(box, scale):
    there = scale_boxes(str(list(box)), scale, whole=True)
    (back,) = boxes(scale_boxes(there, (1 / scale[0], 1 / scale[1])))
    for i in range(4):
        assert back[i] == pytest.approx(box[i], abs=0.5001 / scale[i % 2])


@pytest.mark.parametrize(
    "a, b, value",
    [
        ((0, 0, 10, 10), (0, 0, 10, 10), 1.0),
        ((5, 5, 6, 6), (5, 5, 6, 6), 1.0),  # one pixel: 0 in VLM-R1
        ((0, 0, 10, 10), (5, 0, 15, 10), 1 / 3),  # 50 of 150
        ((0, 0, 10, 10), (0, 0, 5, 5), 0.25),
        ((0, 0, 10, 10), (9, 9, 11, 11), 1 / 103),  # one pixel in common: 0 in VLM-R1
        ((0, 0, 10, 10), (10, 0, 20, 10), 0.0),  # they touch
        ((0, 0, 10, 10), (20, 20, 30, 30), 0.0),
        ((10, 0, 0, 10), (0, 0, 10, 10), 0.0),  # reversed
        ((10, 10, 0, 0), (0, 0, 10, 10), 0.0),
        ((10, 10, 0, 0), (10, 10, 0, 0), 0.0),
        ((3, 3, 3, 3), (3, 3, 3, 3), 0.0),  # empty
        ((0.5, 0.5, 1.5, 1.5), (0.5, 0.5, 1.5, 1.5), 1.0),
        ((0, 0, 1, math.nan), (0, 0, 1, 1), 0.0),
        ((0, 0, math.inf, 1), (0, 0, math.inf, 1), 0.0),
    ],
)
def test_iou(a, b, value):
    assert iou(a, b) == iou(b, a) == pytest.approx(value, abs=1e-15)


FLOATS = st.floats(-FARTHEST, FARTHEST) | st.integers(-20, 20).map(float)
BOXES = st.tuples(FLOATS, FLOATS, FLOATS, FLOATS)


@given(BOXES, BOXES)
def test_iou_lies_between_0_and_1_and_is_1_for_a_box_and_itself(a, b):
    assert 0.0 <= iou(a, b) <= 1.0
    assert iou(a, a) == float(a[0] < a[2] and a[1] < a[3] and (a[2] - a[0]) * (a[3] - a[1]) > 0)


@pytest.mark.parametrize(
    "answer, value",
    [
        ("[0, 0, 10, 10]", 1.0),
        ('{"bbox_2d": [0.0, 0.0, 10.0, 10.0], "label": "x"}', 1.0),  # floats: 0 in VLM-R1
        ("It is at (0,0),(10,10).", 1.0),
        ("[0, 0, 10, 5]", 0.5),
        ("[5, 5, 15, 15] [0, 0, 10, 10]", 25 / 175),  # the first one counts
        ("[10, 10, 0, 0]", 0.0),
        ("[0, 0, 10]", 0.0),
        ("none", 0.0),
        ("", 0.0),
    ],
)
def test_iou_as_a_method(answer, value):
    assert iou_score(answer, sample("<answer>[0, 0, 10, 10]</answer>")) == pytest.approx(value)


def test_iou_does_not_apply_without_a_reference_box():
    assert iou_score("[0, 0, 1, 1]", sample("Paris")) is None
    row = {"id": "1", "conversations": [{"from": "human", "value": "?"}], "answers": {"range": [1, 2]}}
    assert iou_score("[0, 0, 1, 1]", parse_row(row, image_folder="", reward_method="iou", source="x:1")) is None


@pytest.mark.parametrize(
    "text, items",
    [
        ('[{"a": 1}, {"b": 2}]', [{"a": 1}, {"b": 2}]),
        ('```json\n[{"a": 1}]\n```', [{"a": 1}]),
        ('```json\n[{"a": 1}]', [{"a": 1}]),  # not closed
        ('```\n{"a": 1}\n```', [{"a": 1}]),
        ('Here [see] they are: [ {"a": 1} ]. Done [1].', [{"a": 1}]),
        ('[{"a": 1}] [{"a": 2}]', [{"a": 1}]),
        ('[{"a": 1, "a": 2}]', [{"a": 2}]),
        ('[{"a": "x\ny"}]', [{"a": "x\ny"}]),  # a line end in a text
        ("[]", []),
        ("[ ]", []),
        ("```json\n[]\n```", []),
        ("None", []),
        ("none.", []),
        ("```json\nNone\n```", []),
        ("null", []),
        ("No objects", []),
        ("No objects found.", []),
        ("no targets detected", []),
        ("There might be nothing", None),
        ("None of them", None),
        ('[{"a": 1}, {"b": 2', None),  # cut off
        ('[{"a": 1,}]', None),
        ("[{'a': 1}]", None),
        ("[1, 2, 3, 4]", None),
        ("cats", None),
        ("", None),
        ('[{"a":' * 2000, None),
        ('[{"a": ' + "[" * 2000 + "]" * 2000 + "}]", None),
    ],
)
def test_lists_in_json(text, items):
    assert json_items(text) == items


def test_numbers_of_any_length_are_read():
    (item,) = json_items('[{"a": ' + "9" * 10000 + ', "b": NaN, "c": -Infinity}]')
    assert item["a"] == math.inf and math.isnan(item["b"]) and item["c"] == -math.inf


def say(answer):
    return f"<think>There.</think><answer>{answer}</answer>"


@pytest.mark.parametrize(
    "answer, right",
    [
        ("[1, 2, 3, 4]", True),
        ("[[1, 2, 3, 4]]", True),
        ('{"bbox_2d": [1, 2, 3.5, 4], "label": "x"}', True),
        ('[{"bbox_2d": [1, 2, 3, 4]}, {"bbox": [1, 2, 3, 4]}]', True),
        ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "x"}]\n```', True),
        ("\n[1, 2, 3, 4]\n", True),
        ("[0, 0, 0, 0]", True),  # the form alone
        ('[{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [1, 2, 3]}]', False),
        ('{"bbox_2d": [1, 2, NaN, 4]}', False),
        ('{"bbox_2d": [1, 2, Infinity, 4]}', False),
        ('{"bbox_2d": ["1", 2, 3, 4]}', False),
        ('{"bbox_2d": [true, 2, 3, 4]}', False),
        ('{"box": [[1, 2], [3, 4]]}', False),
        ("{}", False),
        ("[]", False),
        ("None", False),
        ("(1,2),(3,4)", False),
        ("It is [1, 2, 3, 4]", False),
        ("[1, 2, 3, 4].", False),
        ('```json\n[{"bbox_2d": [1, 2, 3, 4]}]\n``` there', False),
    ],
)
def test_format_of_boxes(answer, right):
    assert has_box_format(say(answer)) is right
    assert box_format_reward([None], [[{"role": "assistant", "content": say(answer)}]]) == [float(right)]


def test_format_of_boxes_needs_the_whole_form():
    assert not has_box_format("[1, 2, 3, 4]")
    assert not has_box_format("<answer>[1, 2, 3, 4]</answer>")
    assert not has_box_format(say("[1, 2, 3, 4]") + " so")
    assert not has_box_format(say("[1, 2, 3, 4]") * 2)
    assert has_box_format(say("[1, 2, 3, 4]") + "\n")


LIST = "<answer>{}</answer>"


@pytest.mark.parametrize(
    "method, reference, problem",
    [
        ("iou", "[0, 0, 640, 480]", None),
        ("iou", "[0, 0, 641, 481]", None),  # RefCOCO's last pixel
        ("iou", '{"bbox_2d": [1.5, 2, 3, 4]}', None),
        ("iou", "no box", "has no box"),
        ("iou", "[1, 2, NaN, 4]", "has no box"),
        ("iou", "[1, 2, 3]", "has no box"),
        ("iou", "[30, 20, 10, 40]", r"\[30, 20, 10, 40\] of the reference is reversed or empty"),
        ("iou", "[10, 20, 10, 40]", "reversed or empty"),
        ("iou", "[0, 0, 700, 480]", "lies outside its image of 640 x 480 pixels"),
        ("iou", "[0, 0, 640, 482]", "outside"),
        ("iou", "[-10, 0, 640, 480]", "outside"),
        ("od_ap", '[{"bbox_2d": [0, 0, 640, 480], "label": "a"}]', None),
        ("od_ap", "None", None),
        ("map", "[]", None),
        ("odLength", "a cat", "no list of detections"),
        ("weighted_sum", '[{"bbox_2d": [1, 2, NaN, 4], "label": "a"}]', "detection 1 .* has no box"),
        ("od_ap50", '[{"bbox_2d": [1, 2, 3, 4]}, {"label": "a"}]', "detection 2 .* has no box"),
        ("od_ap", '[{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [9, 2, 3, 4]}]', "reversed"),
        ("od_ap", '[{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [1, 2, 3, 4000]}]', "outside"),
    ],
)
def test_problems_of_references(method, reference, problem):
    found = box_problem(sample(reference, method), [(640, 480), (1, 1)])
    if problem is None:
        assert found is None
    else:
        message, remedy = found
        assert re.search(problem, message)
        assert "x1" in remedy or "pixels" in remedy


def test_without_image_sizes_boxes_may_lie_anywhere_but_left_of_it():
    assert box_problem(sample("[0, 0, 9000, 9000]"), []) is None
    assert "outside any image" in box_problem(sample("[-9, 0, 9, 9]"), [])[0]


HOSTILE = {
    "lists": "[" * 200_000,
    "objects": '[{"a":' * 50_000,
    "half boxes": "[1,1,1," * 50_000,
    "spaces": "[" + " " * 300_000 + "[" + " " * 300_000,
    "a number": "[" + "1" * 500_000 + ",1,1,1]",
    "pairs": "(1,1)," * 50_000,
    "keys": '{"' * 100_000,
    "quotes": '{"' + '\\"' * 100_000,
    "nan": '[{"bbox_2d": [NaN, NaN, NaN, NaN], "label": null}]',
    "zero bytes": "\0[{\0",
    "surrogates": '[{"bbox_2d": [1, 2, 3, 4], "label": "\\ud800"}]\ud800',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts(text):
    assert 0.0 <= iou_score(text, sample("[0, 0, 10, 10]")) <= 1.0
    assert isinstance(scale_boxes(text, (1.5, 0.5)), str)
    assert json_items(text) is None or isinstance(json_items(text), list)
    assert has_box_format(say(text)) in (True, False)
    box_problem(sample("x" + text.replace("\0", ""), "od_ap"), [(10, 10)])


@settings(max_examples=300)
@given(st.text() | st.text('[]{}(),.:"0123456789eE+-nlabox_2d` \n', max_size=60))
def test_no_text_raises(text):
    iou_score(text, sample("[0, 0, 10, 10]"))
    scaled = scale_boxes(text, (1.5, 0.5))
    assert len(find_boxes(scaled)) == len(find_boxes(text))
    json_items(text)
    has_box_format(say(text))


def test_a_tiny_box_in_whole_numbers_keeps_something_in_it():
    """One pixel of a wide photo is less than a thousandth of it; an empty box is nothing to learn."""
    assert scale_boxes("[10, 10, 11, 11]", (1000 / 6000, 1000 / 4000), whole=True) == "[2, 2, 3, 3]"
    assert scale_boxes("[5, 5, 5, 9]", (0.5, 0.5), whole=True) == "[2, 2, 2, 4]"  # empty as given
