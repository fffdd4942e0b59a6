import json

import pytest
from PIL import Image

from open_r1_kivqa.benchmarks.convert_cli import main
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.methods import score

ITEM = {
    "height": 640,
    "width": 427,
    "id": 0,
    "image_id": 0,
    "image": "train2014/a.jpg",
    "problem": "Please provide the bounding box coordinate of the region this sentence describes: the lady.",
    "normal_caption": "the lady",
    "solution": [103.93, 299.99, 238.15, 477.41],
    "normalized_solution": [243, 468, 557, 745],
}


def written(path, items):
    path.write_text(items if isinstance(items, str) else json.dumps(items))
    return str(path)


def converted(tmp_path, items, *flags):
    output = tmp_path / "refcoco_val.jsonl"
    source = written(tmp_path / "refcoco_val.json", items)
    assert main(["rec", "--input", source, "--output", str(output), *flags]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def refused(tmp_path, items, *flags):
    with pytest.raises(InputError) as error:
        converted(tmp_path, items, *flags)
    assert not list(tmp_path.glob("*.jsonl*"))
    return str(error.value)


def test_an_item_becomes_a_row(tmp_path, capsys):
    (row,) = converted(tmp_path, [ITEM])
    assert row == {
        "id": "refcoco_val-0",
        "image": "train2014/a.jpg",
        "conversations": [
            {"from": "human", "value": f"<image>{ITEM['problem']}"},
            {"from": "gpt", "value": '<answer>{"bbox_2d": [103.93, 299.99, 238.15, 477.41]}</answer>'},
        ],
        "accu_reward_method": "iou",
        "split": "refcoco_val",
    }
    assert capsys.readouterr().out == f"{tmp_path}/refcoco_val.jsonl: 1 rows\n"
    (tmp_path / "images").mkdir()
    (sample,) = Rows.open([str(tmp_path / "refcoco_val.jsonl")], [str(tmp_path / "images")], None)
    assert score("[103.93, 299.99, 238.15, 477.41]", sample) == 1.0


def test_what_an_item_may_lack(tmp_path):
    item = {"image": "a.jpg", "solution": [1, 2, 3, 4], "normal_caption": " the dog "}
    (row,) = converted(tmp_path, [item], "--split", "lisa")
    assert row["id"] == "lisa-0" and row["split"] == "lisa"
    assert row["conversations"][0]["value"] == "<image>Give the box of what this describes: the dog"
    (row,) = converted(tmp_path, [{**item, "problem": "<image>\nWhere is it?", "id": "x"}])
    assert row["conversations"][0]["value"] == "<image>Where is it?" and row["id"] == "refcoco_val-x"


def test_ids_are_made_unique(tmp_path):
    ids = ["a", "a", "a-2", "a", 7, "7", "a-2"]
    rows = converted(tmp_path, [{**ITEM, "id": id} for id in ids], "--split", "s")
    assert [row["id"] for row in rows] == ["s-a", "s-a-3", "s-a-2", "s-a-4", "s-7", "s-7-2", "s-a-2-2"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"solution": [1, 2, 3]}, r"[0]: `solution` is [1, 2, 3]; wanted are four numbers"),
        ({"solution": None}, "`solution` is missing"),
        ({"solution": "[1, 2, 3, 4]"}, "four numbers"),
        ({"solution": [1, 2, "3", 4]}, "four numbers"),
        ({"solution": [1, 2, True, 4]}, "four numbers"),
        ({"solution": [1, 2, 1e999, 4]}, "four numbers"),
        ({"solution": [1, 2, float("nan"), 4]}, "four numbers"),
        ({"solution": [1, 2, 10**400, 4]}, "four numbers"),
        ({"solution": [30, 20, 10, 40]}, "the box [30, 20, 10, 40] of the reference is reversed or empty"),
        ({"solution": [0, 0, 440, 640]}, "lies outside its image of 427 x 640 pixels"),
        ({"solution": [243, 468, 557, 745]}, "in thousandths of the image"),
        ({"image": None}, "`image` is missing"),
        ({"image": ["a.jpg"]}, "wanted is the path of an image"),
        ({"image": "../a.jpg"}, "outside its image folder"),
        ({"image": "/data/a.jpg"}, "give the folder it lies in as --image_root"),
        ({"problem": ""}, "wanted is the question"),
        ({"problem": "<image>"}, "wanted is the question"),
        ({"problem": 5}, "wanted is the question"),
        ({"problem": "what <|im_end|>"}, "<|im_end|>"),
        ({"id": ["x"]}, "`id` is a list"),
        ({"width": "427"}, "wanted are whole pixels"),
        ({"width": 0}, "wanted are whole pixels"),
    ],
)
def test_bad_items(tmp_path, change, message):
    text = refused(tmp_path, [{**ITEM, **change}])
    assert message in text and "refcoco_val.json" in text


def test_all_bad_items_are_told_at_once_and_can_be_left_out(tmp_path, capsys):
    items = [ITEM, {**ITEM, "solution": [9, 9, 1, 1]}, "x", *[{**ITEM, "image": ""}] * 20, ITEM]
    text = refused(tmp_path, items)
    assert text.startswith(
        f"{tmp_path}/refcoco_val.json: 22 of 24 items cannot be used; correct them, or leave them out"
    )
    assert "refcoco_val.json[1]: the box [9, 9, 1, 1]" in text and "refcoco_val.json[2]: 'x' is no object" in text
    assert text.endswith("… and 12 more")
    assert [row["id"] for row in converted(tmp_path, items, "--skip_bad")] == ["refcoco_val-0", "refcoco_val-0-2"]
    assert capsys.readouterr().out.endswith("2 rows; 22 bad items left out\n")


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "refcoco_val.json:1: not JSON"),
        ('[{"a": 1}\n,]', "refcoco_val.json:2: not JSON"),
        ('{"id": 1}\n{"id": 2}', "Files of one object a line (jsonl) hold rows already"),
        ("[" * 100_000, "not JSON that Python reads"),
        ("[" + "9" * 5000 + "]", "not JSON that Python reads"),
        ({"images": [], "annotations": [], "categories": []}, "kivqa convert ovd"),
        ({"a": 1}, "holds no JSON list"),
        ([], "no item is left"),
    ],
)
def test_files_that_hold_something_else(tmp_path, content, message):
    assert message in refused(tmp_path, content)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="none.json is no file"):
        main(["rec", "--input", str(tmp_path / "none.json"), "--output", str(tmp_path / "out.jsonl")])
    (tmp_path / "latin.json").write_bytes('["é"]'.encode("latin-1"))
    with pytest.raises(InputError, match="latin.json is not UTF-8"):
        main(["rec", "--input", str(tmp_path / "latin.json"), "--output", str(tmp_path / "out.jsonl")])
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([ITEM]).encode())
    assert main(["rec", "--input", str(tmp_path / "marked.json"), "--output", str(tmp_path / "out.jsonl")]) == 0


def test_images_are_looked_at_if_their_folder_is_given(tmp_path):
    root = tmp_path / "coco"
    (root / "train2014").mkdir(parents=True)
    flags = ("--image_root", str(root))
    assert "a.jpg does not exist" in refused(tmp_path, [ITEM], *flags)
    Image.new("RGB", (427, 640)).save(root / "train2014" / "a.jpg")
    assert converted(tmp_path, [{**ITEM, "image": str(root / "train2014" / "a.jpg")}], *flags) == converted(
        tmp_path, [ITEM], *flags
    )
    (tmp_path / "refcoco_val.jsonl").unlink()
    text = refused(tmp_path, [{**ITEM, "width": 640, "height": 427, "solution": [0, 0, 9, 9]}], *flags)
    assert "has 427 x 640 pixels and not 640 x 427" in text
    without_size = {"image": "train2014/a.jpg", "problem": "?", "solution": [0, 0, 500, 9]}
    assert "outside its image of 427 x 640" in refused(tmp_path, [without_size], *flags)
    with pytest.raises(InputError, match="--image_root .*none is no folder"):
        converted(tmp_path, [ITEM], "--image_root", str(tmp_path / "none"))


def test_an_output_that_cannot_be_written(tmp_path):
    source = written(tmp_path / "a.json", [ITEM])
    with pytest.raises(InputError, match="--output .*none/out.jsonl cannot be written"):
        main(["rec", "--input", source, "--output", str(tmp_path / "none" / "out.jsonl")])
    with pytest.raises(InputError, match=r"--output .*a.json doesn't end in .jsonl"):
        main(["rec", "--input", source, "--output", source])
    assert json.loads((tmp_path / "a.json").read_text()) == [ITEM]
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        main(["rec", "--input", source, "--output", str(tmp_path / "folder.jsonl")])
    assert not list(tmp_path.glob("*.part"))
