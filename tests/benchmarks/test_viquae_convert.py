import json
import shutil

import pytest
from evqa_fixture import FLAGS

from open_r1_kivqa.benchmarks.convert_cli import main
from open_r1_kivqa.cli import main as kivqa
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.methods import score

ITEM = {
    "id": "sfq_1",
    "kilt_id": "sfq_1",
    "input": "this singer's re-issued song helped to advertise what brand?",
    "original_question": "Jackie Wilson's re-issued song helped to advertise what brand?",
    "output": {"answer": ["Levi Strauss", "Levi's", "Levis"], "original_answer": "Levi's", "provenance": []},
    "image": "512px-Jackie_Wilson.png",
    "url": "http://upload.wikimedia.org/512px-Jackie_Wilson.png",
    "wikidata_id": "Q1",
    "meta": {},
}


@pytest.fixture(autouse=True)
def images(tmp_path):
    """Two pictures whose names differ in the ending only."""
    (tmp_path / "images").mkdir()
    for flag, ending in zip(sorted(FLAGS.glob("*.jpg")), ("jpg", "png"), strict=False):
        shutil.copy(flag, tmp_path / "images" / f"512px-Jackie_Wilson.{ending}")


def converted(tmp_path, items, *more, name="test.jsonl"):
    content = json.dumps(items) if name.endswith(".json") else "".join(json.dumps(item) + "\n" for item in items)
    (tmp_path / name).write_text(content)
    output = tmp_path / "viquae_test.jsonl"
    argv = [
        "viquae",
        "--input",
        str(tmp_path / name),
        "--image_roots",
        str(tmp_path / "images"),
        "--output",
        str(output),
    ]
    assert main([*argv, *more]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def refused(tmp_path, items, *more):
    with pytest.raises(InputError) as error:
        converted(tmp_path, items, *more)
    assert not list(tmp_path.glob("viquae_test*"))
    return str(error.value)


@pytest.mark.parametrize("name", ["test.jsonl", "test.json"])
def test_a_question_becomes_a_row(tmp_path, name, capsys):
    (row,) = converted(tmp_path, [ITEM], name=name)
    assert row == {
        "id": "viquae_test-sfq_1",
        "image": "512px-Jackie_Wilson.png",
        "conversations": [
            {"from": "human", "value": f"<image>\n{ITEM['input']}"},
            {"from": "gpt", "value": "Levi's"},
        ],
        "answers": ["Levi Strauss", "Levi's", "Levis"],
        "entity": "Q1",
        "split": "test",
        "accu_reward_method": "viquae",
        "data_id": "sfq_1",
    }
    assert "note" not in capsys.readouterr().out
    (row,) = converted(tmp_path, [ITEM | {"image": "512px-Jackie_Wilson.JPEG"}], name=name)
    assert row["image"] == "512px-Jackie_Wilson.jpg"
    assert "an image that several files have" in capsys.readouterr().out
    argv = ["--data_file_paths", str(tmp_path / "viquae_test.jsonl"), "--image_folders", str(tmp_path / "images")]
    assert kivqa(["check", *argv]) == 0
    (sample,) = Rows.open([str(tmp_path / "viquae_test.jsonl")], [str(tmp_path / "images")], None)
    assert score("the Levis", sample) == 1.0 and score("Wrangler", sample) == 0.0


def test_kilts_form_of_answers(tmp_path):
    outputs = [[{"answer": "Bob"}, {"provenance": []}, {"answer": "Robert"}], {"answer": [], "original_answer": "Bob"}]
    rows = converted(tmp_path, [ITEM | {"id": i, "output": output} for i, output in enumerate(outputs)])
    assert [row["answers"] for row in rows] == [["Bob", "Robert"], ["Bob"]]
    assert [(row["id"], row["data_id"]) for row in rows] == [("viquae_test-0", "0"), ("viquae_test-1", "1")]
    assert rows[0]["conversations"][1]["value"] == "Bob"


def test_an_id_that_comes_again_is_dropped_by_an_interrupted_run_too(tmp_path, monkeypatch, capsys):
    items = [ITEM | {"id": id} for id in ("a", 1, "1", "a", "b")]
    rows = converted(tmp_path, items)
    assert [row["data_id"] for row in rows] == ["a", "1", "b"]
    assert "dropped: id given before: 2 (40.0 % of 5): 1, a" in capsys.readouterr().out
    argv = ["--data_file_paths", str(tmp_path / "viquae_test.jsonl"), "--image_folders", str(tmp_path / "images")]
    assert kivqa(["check", *argv]) == 0

    (tmp_path / "viquae_test.jsonl").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("open_r1_kivqa.benchmarks.viquae_convert.RowsFile.dealt", _stopped_after_two)
        with pytest.raises(KeyboardInterrupt):
            converted(tmp_path, items)
    assert converted(tmp_path, items) == rows


def _stopped_after_two(rows):
    """`RowsFile.dealt` of a run that is stopped once two items are dealt with and recorded."""
    rows.done += 1
    rows.counts.read += 1
    rows.record()
    if rows.done == 2:
        raise KeyboardInterrupt


def test_keys_of_other_names(tmp_path):
    other = {"qid": 5, "q": "Who?", "labels": {"answer": ["Bob"]}, "pic": {"file": "512px-Jackie_Wilson.jpg"}}
    text = refused(tmp_path, [other])
    assert (
        "test.jsonl:1 lacks id, question (as 'input'), output. Found: an object with qid: number 5, q: text 'Who?'"
        in text
    )
    (row,) = converted(tmp_path, [other], "--map", "id=qid", "question=q", "output=labels", "image=pic.file")
    assert row["data_id"] == "5" and "entity" not in row and row["image"].endswith(".jpg")
    with pytest.raises(InputError, match="wanted is field=key, the field one of id, question, output, image, entity"):
        converted(tmp_path, [other], "--map", "pic=image")


def test_what_is_dropped_is_counted(tmp_path, capsys):
    changes = [{}, {"image": None}, {"image": "gone.png"}, {"output": {"answer": ["the"]}}]
    assert len(converted(tmp_path, [ITEM | change | {"id": i} for i, change in enumerate(changes)])) == 1
    report = json.loads((tmp_path / "viquae_test.jsonl.report.json").read_text())
    assert {what: tally["number"] for what, tally in report["dropped"].items()} == {
        "it names no image": 1,
        "its image was not found": 1,
        "the row could not be used": 1,
    }
    assert "dropped: its image was not found: 1 (25.0 % of 4): gone.png" in capsys.readouterr().out


def test_entities_are_looked_up_in_the_knowledge_base(tmp_path):
    article = {"key": "Jackie_Wilson", "title": "Jackie Wilson", "url": "", "images": [], "aliases": ["Q1"]}
    texts = ["He was a singer.", "Reet Petite came back in an advertisement for Levi's."]
    article["sections"] = [{"id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
    (tmp_path / "kb.jsonl").write_text(json.dumps(article) + "\n")
    items = [ITEM, ITEM | {"id": "2", "wikidata_id": "Q2"}, ITEM | {"id": "3", "wikidata_id": None}]
    items += [ITEM | {"id": "4", "output": {"answer": ["Detroit"]}}]
    rows = converted(tmp_path, items, "--knowledge_base", str(tmp_path / "kb.jsonl"))
    assert [row.get("entity") for row in rows] == ["Jackie_Wilson", None, None, "Jackie_Wilson"]
    assert [row.get("evidence_source") for row in rows] == ["alias", None, None, "weak"]
    assert rows[0]["evidence"] == ["Jackie_Wilson#1"]
    noted = json.loads((tmp_path / "viquae_test.jsonl.report.json").read_text())["noted"]
    assert noted["entity not in the knowledge base"]["examples"] == ["Q2"]
    assert noted["it names no entity"]["examples"] == ["3"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"output": "Bob"}, "`output` is 'Bob'; wanted is"),
        ({"output": {"answer": [5]}}, "`output` is"),
        ({"output": {"answer": []}}, "`output` is"),
        ({"id": ["x"]}, "`id` is a list"),
        ({"id": None}, "lacks id"),
    ],
)
def test_other_shapes(tmp_path, change, message):
    assert message in refused(tmp_path, [ITEM | change])
