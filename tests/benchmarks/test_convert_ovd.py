import json

import pytest

from open_r1_kivqa.benchmarks.convert_cli import main
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.methods import METHODS, score


def box(image, category, bbox, **fields):
    return {"id": 0, "image_id": image, "category_id": category, "bbox": bbox, "iscrowd": 0, "area": 1, **fields}


def data(**changes):
    """Two images of 100 x 80 pixels: a cat and a dog; nothing."""
    return {
        "images": [
            {"id": 1, "file_name": "a.jpg", "width": 100, "height": 80},
            {"id": 2, "file_name": "b.jpg", "width": 100, "height": 80},
        ],
        "annotations": [box(1, 10, [0, 0, 10.1, 20.2]), box(1, 20, [50, 40, 30, 30])],
        "categories": [{"id": 10, "name": "cat"}, {"id": 20, "name": "dog"}, {"id": 30, "name": "red  bird"}],
        **changes,
    }


def converted(tmp_path, content, *flags):
    (tmp_path / "val.json").write_text(json.dumps(content))
    output = tmp_path / "val.jsonl"
    assert main(["ovd", "--annotations", str(tmp_path / "val.json"), "--output", str(output), *flags]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def refused(tmp_path, content, *flags):
    with pytest.raises(InputError) as error:
        converted(tmp_path, content, *flags)
    assert not list(tmp_path.glob("*.jsonl*"))
    return str(error.value)


def question(row):
    return row["conversations"][0]["value"].removeprefix("<image>Detect all objects of these kinds in the image: ")


def answer(row):
    return row["conversations"][1]["value"].removeprefix("<answer>").removesuffix("</answer>")


def test_an_image_becomes_a_row(tmp_path):
    first, second = converted(tmp_path, data())
    detections = [{"bbox_2d": [0, 0, 10.1, 20.2], "label": "cat"}, {"bbox_2d": [50, 40, 80, 70], "label": "dog"}]
    assert json.loads(answer(first)) == detections
    assert question(first) == '"cat", "dog", "red bird".'
    assert first | {"conversations": None} == {
        "id": "val-1",
        "image": "a.jpg",
        "conversations": None,
        "accu_reward_method": "od_ap",
        "split": "val",
    }
    assert answer(second) == "None" and question(second) == question(first)


@pytest.mark.parametrize("method", ["od_ap", "od_ap50", "odLength", "weighted_sum"])
def test_the_rows_own_answer_is_right(tmp_path, method):
    for row in converted(tmp_path, data(), "--reward_method", method):
        sample = parse_row(row, image_folder="x", reward_method="", source="x:1")
        assert sample.reward_method in METHODS and score(answer(row), sample) == 1.0


def test_only_what_is_there_may_be_asked_for(tmp_path):
    (row,) = converted(tmp_path, data(), "--labels", "present")
    assert question(row) == '"cat", "dog".'


def own_texts():
    content = data()
    content["images"][0] |= {"text": ["dog", "cat"], "neg_text": ["big dog", "cat"]}
    content["images"][1] |= {"text": [], "neg_text": ["zebra"]}
    return content


def test_an_image_of_ovdeval_is_asked_for_its_own_labels_in_an_order_that_tells_nothing(tmp_path):
    first, second = converted(tmp_path, own_texts())
    assert question(first) == '"big dog", "cat", "dog".' and question(second) == '"zebra".'
    assert answer(second) == "None"
    assert question(converted(tmp_path, own_texts(), "--labels", "all")[0]) == '"cat", "dog", "red bird".'


def test_texts_without_negatives_are_not_given_away(tmp_path):
    content = own_texts()
    for image in content["images"]:
        del image["neg_text"]
    assert question(converted(tmp_path, content)[0]) == '"cat", "dog", "red bird".'


def test_a_missing_text_is_asked_for_if_the_image_has_its_box(tmp_path):
    content = own_texts()
    content["images"][0]["text"] = ["cat"]
    assert question(converted(tmp_path, content)[0]) == '"big dog", "cat", "dog".'


def test_crowds_are_neither_expected_nor_asked_for(tmp_path):
    content = data()
    content["annotations"] += [box(1, 10, [0, 0, 90, 70], iscrowd=1), box(2, 20, [0, 0, 90, 70], iscrowd=1)]
    first, second = converted(tmp_path, content)
    assert len(json.loads(answer(first))) == 2 and answer(second) == "None"
    assert question(first) == '"cat", "dog", "red bird".' and question(second) == '"cat", "red bird".'
    assert [row["id"] for row in converted(tmp_path, content, "--labels", "present")] == ["val-1"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"annotations": [box(1, 10, [0, 0, -5, 5])]}, "val.json images[0]: the box [0, 0, -5, 5] of the reference is"),
        ({"annotations": [box(1, 10, [0, 0, 0, 5])]}, "reversed or empty"),
        ({"annotations": [box(1, 10, [60, 0, 60, 5])]}, "lies outside its image of 100 x 80 pixels"),
        ({"annotations": [box(1, 10, [0, 0, 5])]}, "images[0], annotations[0]: `bbox` is [0, 0, 5]; wanted are four"),
        ({"annotations": [box(1, 10, None)]}, "`bbox` is missing"),
        ({"annotations": [box(1, 99, [0, 0, 5, 5])]}, "`category_id` is 99, and no category has it"),
        ({"annotations": [box(9, 10, [0, 0, 5, 5])]}, "annotations[0]: `image_id` is 9, and no image has it"),
        ({"annotations": [box([], 10, [0, 0, 5, 5])]}, "`image_id` is []"),
        ({"categories": [{"id": 10, "name": ""}]}, "categories[0]: `name` is ''"),
        ({"categories": [{"id": 10, "name": "a"}, {"id": 10, "name": "b"}]}, "`id` 10 is that of categories[0] too"),
        ({"categories": []}, "no category has it"),
        ({"categories": [], "annotations": []}, "there is no label to ask for"),
        ({"images": [{"file_name": "a.jpg"}]}, "images[0]: `id` is None"),
        ({"images": [{"id": 1}], "annotations": []}, "images[0]: `file_name` is missing"),
        ({"images": [], "annotations": []}, "no item is left"),
        ({"images": {}}, "isn't of COCO's form"),
        ({"images": [1]}, "isn't of COCO's form"),
    ],
)
def test_what_cannot_be_used(tmp_path, change, message):
    assert message in refused(tmp_path, data(**change))


def test_texts_of_another_kind(tmp_path):
    content = own_texts()
    content["images"][0]["text"] = "cat"
    assert "`text` or `neg_text` is no list of texts" in refused(tmp_path, content)
    assert [row["id"] for row in converted(tmp_path, content, "--skip_bad")] == ["val-2"]


def test_a_list_is_no_coco_file(tmp_path):
    assert "isn't of COCO's form" in refused(tmp_path, [1, 2])
