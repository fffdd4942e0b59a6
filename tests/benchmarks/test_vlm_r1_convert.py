import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from open_r1_kivqa.benchmarks.convert_cli import main
from open_r1_kivqa.cli import main as kivqa
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError

BOX = {"image": "a.png", "problem": "<image>Where is it?", "solution": [1, 2, 30, 40], "width": 100, "height": 80}


def item(question="<image>What?", answer="cat", **fields):
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": 1, "image": "a.png", "conversations": turns} | fields


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one/a.png", "one/b.png", "two/a.png", "two/deep/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (100, 80)).save(tmp_path / name)


def written(name, items):
    content = json.dumps(items) if name.endswith(".json") else "".join(json.dumps(item) + "\n" for item in items)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)
    return name


def converted(*argv, folders="one"):
    """Rows, all of which the check takes, and the counts of the report."""
    flags = ["--image_folders", folders] if folders else []
    assert main(["vlm-r1", "--output", "out.jsonl", *flags, *argv]) == 0
    report = json.loads(Path("out.jsonl.report.json").read_text())
    folder = ["--image_folders", report["image_folders"]] if report["image_folders"] else []
    assert kivqa(["check", "--data_file_paths", "out.jsonl", *folder]) == 0
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()], report


def numbers(part):
    return {what: tally["number"] for what, tally in part.items()}


def question(row):
    return row["conversations"][0]["value"]


@pytest.mark.parametrize("name", ["r.jsonl", "r.json"])
def test_a_good_item_stays_as_it_is(name):
    (row,), report = converted("--input", written(name, [item(extra={"kept": [1]}, answers=["cat", "feline"])]))
    expected = item(id="r-1", split="out", extra={"kept": [1]}, answers=["cat", "feline"])
    assert row == expected and report["dropped"] == report["noted"] == {}
    (sample,) = Rows.open(["out.jsonl"], ["one"], None)
    assert sample.answers == ("cat", "feline") and sample.reward_method == "default"


def test_markers_are_placed():
    items = [
        item("What?"),
        item("Is <image> as <image>?", image=["a.png", "b.png"]),
        item("<image>\nSame?", image=["a.png", "b.png"]),
        item("<image><image>What?"),
    ]
    rows, report = converted("--input", written("r.jsonl", items))
    assert [question(row) for row in rows] == [
        "<image>What?",
        "Is <image> as <image>?",
        "<image><image>Same?",
        "<image>What?",
    ]
    assert (
        numbers(report["noted"])["not as many markers as images; all images stand first now, as VLM-R1 shows them"] == 2
    )


def test_ids_are_unique_over_all_files():
    written("x/r.jsonl", [item(id="1"), item(id="1"), item(id="1-2"), item(id=None)])
    written("y/r.jsonl", [item(id=1)])
    rows, report = converted("--input", "x/r.jsonl:y/r.jsonl", "--split", "train")
    assert [row["id"] for row in rows] == ["r-1", "r-1-2", "r-1-2-2", "r-3", "r-1-3"]
    assert {row["split"] for row in rows} == {"train"}
    assert numbers(report["noted"]) == {"an id given before; it has a number behind it now": 3}


def test_images_of_several_folders_get_paths_below_the_common_one():
    items = [item(id=1), item(id=2, image="deep/c.png"), item(id=3, image=str(Path("two/a.png").absolute()))]
    written("a.jsonl", [item()])
    rows, _ = converted("--input", f"a.jsonl:{written('b.jsonl', items)}", folders="one:two")
    assert [row["image"] for row in rows] == ["one/a.png", "two/a.png", "two/deep/c.png", "two/a.png"]


def test_reward_methods():
    items = [item(id=1), item(id=2, accu_reward_method="all_match"), item("2+2?", 4, id=3, image=None)]
    rows, _ = converted("--input", written("r.jsonl", items), "--reward_method", "exact")
    assert [row["accu_reward_method"] for row in rows] == ["exact", "all_match", "exact"]
    assert rows[2]["conversations"][1]["value"] == "4" and "image" not in rows[2]
    with pytest.raises(InputError, match="Unknown reward method 'accuracy'"):
        main(["vlm-r1", "--input", "r.jsonl", "--output", "o.jsonl", "--reward_method", "accuracy"])


def test_text_alone_needs_no_folder():
    (row,), report = converted("--input", written("r.jsonl", [item("2+2?", "4", image=None)]), folders=None)
    assert row["id"] == "r-1" and report["image_folders"] == ""


def test_boxes():
    items = [BOX, BOX | {"id": "x", "problem": "?"}, BOX | {"solution": [1, 2, 300, 40]}, BOX | {"width": 80}]
    items += [BOX | {"solution": [1, 2]}, BOX | {"solution": [30, 2, 1, 40]}]
    rows, report = converted("--input", written("rec.json", items))
    assert [row["id"] for row in rows] == ["rec-0", "rec-x"]
    assert question(rows[0]) == "<image>Where is it?" and rows[0]["accu_reward_method"] == "iou"
    assert rows[0]["conversations"][1]["value"] == '<answer>{"bbox_2d": [1.0, 2.0, 30.0, 40.0]}</answer>'
    assert numbers(report["dropped"]) == {"the row could not be used": 3, "a box that can't be used": 1}


def test_what_cannot_be_used_is_dropped_and_said(capsys):
    items = [
        item(id=0),
        item(id=1, image="gone.png"),
        item(id=2, image="../two/a.png"),
        item(id=3, image=5),
        item(id=4, image=None),
        {"id": 5, "question": "?"},
        "text",
        item(id=7, conversations=[]),
        item(id=8, conversations="What?"),
        item(id=9, conversations=[{"from": "human", "value": "?"}]),
        item("", id=10),
        item(id=11, answer="<answer></answer>"),
        item("what <|im_end|>", id=12),
        item(id=13, answer="one box", accu_reward_method="iou"),
        item(id=14, accu_reward_method="nothing"),
        item(id=15, accu_reward_method=[1]),
        item(id={"a": 1}),
        item(id=17, answers="cat"),
    ]
    rows, report = converted("--input", written("r.jsonl", items))
    assert [row["id"] for row in rows] == ["r-0"] and report["read"] == 18
    assert numbers(report["dropped"]) == {
        "an image that isn't there": 1,
        "an image path that can't be used": 2,
        "an image marker, and no image": 1,
        "neither `conversations` nor `problem` and `solution`": 2,
        "the row could not be used": 11,
    }
    assert report["dropped"]["an image that isn't there"]["examples"] == ["gone.png"]
    out = capsys.readouterr().out
    assert (
        "r.jsonl item 2: " in out and "/two/a.png lies outside of " in out and "r.jsonl item 5 has id, question" in out
    )


def test_more_turns_than_vlm_r1_used():
    turns = item()["conversations"] + [{"from": "human", "value": "And?"}, {"from": "gpt", "value": "dog"}]
    (row,), report = converted("--input", written("r.jsonl", [item(conversations=turns)]))
    assert row["conversations"] == turns
    assert numbers(report["noted"]) == {"more than two turns; VLM-R1 used the first two": 1}


YAML = """
datasets:
  - json_path: a.json
    sampling_strategy: first:3
  - json_path: a.json
    sampling_strategy: end:15%
    data_root: ../two
  - json_path: b.jsonl
"""


def test_a_yaml_file_lists_files_and_parts_of_them():
    written("lists/a.json", [item(id=i) for i in range(10)])
    written("lists/b.jsonl", [item(id=i) for i in range(2)])
    Path("lists/all.yaml").write_text(YAML)
    rows, report = converted("--input", "lists/all.yaml", "--reward_method", "exact")
    # 15 % of ten items are two, as VLM-R1 rounds
    assert [row["id"] for row in rows] == ["a-0", "a-1", "a-2", "a-8", "a-9", "b-0", "b-1"]
    assert [row["image"] for row in rows] == ["one/a.png"] * 3 + ["two/a.png"] * 2 + ["one/a.png"] * 2
    assert {row["accu_reward_method"] for row in rows} == {"exact"}
    assert numbers(report["dropped"]) == {
        "left out by sampling_strategy first:3": 7,
        "left out by sampling_strategy end:15%": 8,
    }


def test_a_random_part_is_that_of_its_seed():
    written("a.json", [item(id=i) for i in range(50)])
    Path("all.yaml").write_text("datasets:\n- {json_path: a.json, sampling_strategy: 'random:20'}\n")
    drawn = [[row["id"] for row in converted("--input", "all.yaml", "--seed", seed)[0]] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2] and all(len(set(ids)) == 20 for ids in drawn)
    assert drawn[0] != [f"a-{i}" for i in range(20)] and drawn[0] == sorted(drawn[0], key=lambda id: int(id[2:]))
    Path("all.yaml").write_text("datasets:\n- {json_path: a.json, sampling_strategy: 'random:999'}\n")
    assert len(converted("--input", "all.yaml")[0]) == 50


@pytest.mark.parametrize(
    "content, message",
    [
        ("a: [", "is no yaml file in UTF-8"),
        ("- json_path: a.json", "has no list `datasets`; wanted is"),
        ("datasets: []", "has no list `datasets`"),
        ("datasets: [a.json]", "datasets[0] names no `json_path`"),
        ("datasets: [{json_path: a.parquet}]", "datasets[0]: a.parquet ends neither in .json nor in .jsonl"),
        ("datasets: [{json_path: gone.json}]", "datasets[0]: `json_path` gone.json does not exist"),
        ("datasets: [{json_path: a.json, image_folder: gone}]", "the image folder gone does not exist"),
        (
            "datasets: [{json_path: a.json, sampling_strategy: last:3}]",
            "`sampling_strategy` is 'last:3'; wanted is all",
        ),
        ("datasets: [{json_path: a.json, sampling_strategy: 'first:'}]", "'first:'"),
        ("datasets: [{json_path: a.json, sampling_strategy: 'first:0'}]", "'first:0'"),
        ("datasets: [{json_path: a.json, sampling_strategy: 'first:-3'}]", "'first:-3'"),
        ("datasets: [{json_path: a.json, sampling_strategy: first}]", "'first'"),
    ],
)
def test_other_yaml_files(content, message):
    written("a.json", [item()])
    Path("all.yaml").write_text(content)
    with pytest.raises(InputError) as error:
        main(["vlm-r1", "--input", "all.yaml", "--image_folders", "one", "--output", "out.jsonl"])
    assert message in str(error.value)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--input", "none.jsonl"], "none.jsonl is no file"),
        (["--input", "a.txt"], "a.txt ends in none of .jsonl, .json, .yaml"),
        (["--input", ":"], "--input names no file"),
        (["--input", "r.jsonl", "--image_folders", "one:two"], "--image_folders names 2 for 1 file"),
        (["--input", "r.jsonl", "--image_folders", "gone"], "Image folder .*gone does not exist"),
        (["--input", "r.jsonl:r.jsonl:r.jsonl", "--reward_method", "exact:mcq"], "--reward_method names 2 for 3 file"),
        (["--input", "r.jsonl"], "no row to write.\n.*an image path that can't be used: 1 .*set --image_folders"),
        (["--input", "cut.json", "--image_folders", "one"], "cut.json ends in the middle"),
    ],
)
def test_flags_that_cannot_be_used(flags, message):
    written("r.jsonl", [item()])
    Path("a.txt").write_text("x")
    Path("cut.json").write_text(json.dumps([item(), item(id=2)])[:-30])
    with pytest.raises(InputError, match=message):
        main(["vlm-r1", "--output", "out.jsonl", *flags])
    assert not list(Path().glob("out.jsonl*"))


def test_what_is_read_is_not_written_over():
    written("r.jsonl", [item()])
    Path("all.yaml").write_text("datasets: [{json_path: r.jsonl}]")
    before = Path("r.jsonl").read_bytes()
    for name in ("r.jsonl", "all.yaml", "../" + Path().absolute().name + "/r.jsonl"):
        with pytest.raises(InputError, match="--output r.jsonl is "):
            main(["vlm-r1", "--input", name, "--image_folders", "one", "--output", "r.jsonl"])
    assert Path("r.jsonl").read_bytes() == before


def test_an_interrupted_conversion_keeps_ids_unique(monkeypatch):
    written("r.jsonl", [item(id=i % 3) for i in range(9)])
    whole, _ = converted("--input", "r.jsonl")
    Path("out.jsonl").unlink()
    isfile, seen = os.path.isfile, []

    def interrupted(path):
        seen.extend([path] if path.endswith(".png") else [])
        if len(seen) == 6:
            raise KeyboardInterrupt
        return isfile(path)

    with monkeypatch.context() as patch:
        patch.setattr("open_r1_kivqa.benchmarks.converted.EVERY", 0.0)
        patch.setattr("os.path.isfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(["vlm-r1", "--input", "r.jsonl", "--image_folders", "one", "--output", "out.jsonl"])
    assert json.loads(Path("out.jsonl.part.json").read_text())["done"] == 5
    again, _ = converted("--input", "r.jsonl")
    assert again == whole and len({row["id"] for row in again}) == 9


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["from", "value", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)
TURN = st.fixed_dictionaries(
    {"from": st.sampled_from(["human", "gpt", "system"]) | ANY, "value": st.sampled_from(["<image>", "?", "a"]) | ANY}
)
FIELDS = {
    "id": ANY,
    "image": st.sampled_from(["a.png", ["a.png", "b.png"]]) | ANY,
    "conversations": st.lists(TURN, max_size=4) | ANY,
}
OTHERS = {
    "problem": ANY,
    "solution": st.just([1, 2, 30, 40]) | ANY,
    "accu_reward_method": st.sampled_from(["exact", "iou"]) | ANY,
    "answers": ANY,
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(st.fixed_dictionaries({}, optional=FIELDS | OTHERS) | ANY, min_size=1, max_size=4))
def test_whatever_an_item_holds_the_check_takes_what_is_written(items):
    rows, report = converted("--input", written("r.json", [*items, item()]))
    assert report["read"] == len(items) + 1 == len(rows) + sum(numbers(report["dropped"]).values())
