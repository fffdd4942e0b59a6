import json
import os
import signal
import subprocess
import sys
import time

import pytest
from published_factbook import (
    DATA,
    countries,
    encyclopedic_kb,
    flags_of,
    infoseek,
    lines_of,
    url_of,
    wiki6m_line,
    write_lines,
)

from open_r1_kivqa.benchmarks.infoseek import QUESTION_TYPES, split_of
from open_r1_kivqa.cli import main
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.rewards.methods import score
from open_r1_kivqa.rewards.official import OFFICIAL

ROWS = [row for row in lines_of(DATA / "eval.jsonl") if row["split"] != "maps"]


def kb_of(tmp_path, published, *flags) -> str:
    assert main(["convert", "kb", "--input", published, "--output", str(tmp_path / "kb.jsonl"), *flags]) == 0
    return str(tmp_path / "kb.jsonl")


def wiki_kb(tmp_path) -> str:
    return kb_of(tmp_path, encyclopedic_kb(tmp_path / "encyclopedic_kb_wiki.json"))


def converted(tmp_path, flags: dict, *more) -> list[dict]:
    assert main(["convert", "infoseek", *flags_of(flags), "--output", str(tmp_path / "val.jsonl"), *more]) == 0
    return lines_of(tmp_path / "val.jsonl")


def report(tmp_path) -> dict:
    values = json.loads((tmp_path / "val.jsonl.report.json").read_text())
    return {what: tally["number"] for name in ("dropped", "noted") for what, tally in values[name].items()}


def changed(path, change) -> None:
    """Rewrites the lines of a file."""
    lines = lines_of(path)
    write_lines(
        path, [line for line in (change(number, line) for number, line in enumerate(lines)) if line is not None]
    )


def test_the_whole_way(tmp_path, capsys):
    flags = {**infoseek(tmp_path, ROWS), "--knowledge_base": wiki_kb(tmp_path)}
    rows = converted(tmp_path, flags)
    urls = {article["key"]: url_of(article) for article in countries()}
    sections = {article["key"]: [part["id"] for part in article["sections"]] for article in countries()}
    assert len(rows) == len(ROWS) == 504
    for number, (row, own) in enumerate(zip(rows, ROWS, strict=True)):
        assert row["id"] == row["data_id"] == f"infoseek_val_{number:08}"
        assert row["image"] == f"04/oven_04{number:06}.JPEG"
        assert row["conversations"] == [{**own["conversations"][0]}, {"from": "gpt", "value": own["answers"][0]}]
        assert row["entity"] == urls[own["entity"]] and row["entity_id"] == f"Q{own['entity']}"
        assert row["split"] == f"val_{own['split']}" and split_of(row["split"]) == own["split"]
        assert row["accu_reward_method"] == "infoseek" and row["question_type"] in QUESTION_TYPES
        assert row["answer_type"] == row["question_type"].lower()
        if row["question_type"] == "Numerical":
            value = float(own["answers"][0])
            assert row["answers"] == {"range": [0.9 * value, 1.1 * value]}
        else:
            assert row["answers"] == own["answers"]
            place = sections[own["entity"]].index(own["evidence"].partition("#")[2])
            assert row["evidence"] == [f"{urls[own['entity']]}#{place}"] and row["evidence_source"] == "alias"
    out = capsys.readouterr().out
    assert f"The rows' images: --image_folders {tmp_path}/oven" in out
    noted = report(tmp_path)
    assert (
        noted["evidence that holds an alias of the answer"]
        + noted["evidence that holds a number of the answer's range"]
        == 504
    )
    # What was written is read by everything else.
    data = ["--data_file_paths", str(tmp_path / "val.jsonl"), "--image_folders", str(tmp_path / "oven")]
    assert main(["check", *data, "--knowledge_base", flags["--knowledge_base"], "--task_type", "kivqa"]) == 0
    assert "no problem" in capsys.readouterr().out
    for sample in Rows.open([data[1]], [data[3]], None)[:40]:
        assert OFFICIAL["infoseek"](sample.answer, sample) == score(sample.answer, sample) == 1.0


def test_one_numerical_and_one_time_question(tmp_path):
    flags = {**infoseek(tmp_path, ROWS[:1]), "--knowledge_base": wiki_kb(tmp_path)}
    question = {"data_id": "q", "image_id": "oven_04000000", "data_split": "val_unseen_entity"}
    lines = [
        {**question, "data_id": "n", "question": "How high?", "answer": ["2900 m"], "answer_eval": [{"wikidata": 2946.0, "range": [2900, 3000]}]},
        {**question, "data_id": "s", "question": "How high?", "answer": [], "answer_eval": 2946},
        {**question, "data_id": "t", "question": "When?", "answer": ["8 September"], "answer_eval": ["1278", "8 September 1278"]},
        {**question, "data_id": "x", "question": "What?", "answer": ["red cow"], "answer_eval": ["red cow", "red cow", " "]},
        {**question, "data_id": "y", "question": "Of what colour?", "answer": None, "answer_eval": ["no colour at all"]},
    ]  # fmt: skip
    write_lines(tmp_path / "infoseek_val.jsonl", lines)
    entities = [{"data_id": line["data_id"], "entity_id": "Q228", "entity_text": "Andorra"} for line in lines]
    write_lines(tmp_path / "infoseek_val_withkb.jsonl", entities)
    del flags["--question_types"]
    height, scalar, time_, symbol, weak = converted(tmp_path, flags)
    andorra = "https://en.wikipedia.org/wiki/Andorra"
    summit = f"{andorra}#4"  # "summit height of Andorra: 2946"
    assert height["answers"] == {"range": [2900.0, 3000.0]} and height["question_type"] == "Numerical"
    assert height["evidence"] == [summit] and height["evidence_source"] == "number"
    assert height["conversations"][1]["value"] == "2900 m"
    assert (
        scalar["answers"]["range"] == pytest.approx([2651.4, 3240.6]) and scalar["conversations"][1]["value"] == "2946"
    )
    assert (time_["question_type"], time_["answer_type"]) == ("Time", "time")
    assert symbol["answers"] == ["red cow"] and symbol["question_type"] == "String"
    assert symbol["evidence"] == [f"{andorra}#6"] and symbol["evidence_source"] == "alias"
    assert weak["evidence_source"] == "weak" and weak["evidence"][0].startswith(f"{andorra}#")
    assert (
        report(tmp_path)["weak evidence: no section holds the answer, the one that fits the question best is taken"]
        == 2
    )
    *_, dropped = converted(tmp_path, flags, "--weak_evidence", "drop")
    assert dropped == {key: value for key, value in weak.items() if key != "evidence"}


def test_entities_are_found_by_wikidata_id_title_and_redirect(tmp_path, capsys):
    """Wiki6M is keyed by Wikidata id; a base by url knows titles only."""
    rows = [row for row in ROWS if row["question_type"] == "calling_code"][:4]
    flags = infoseek(tmp_path, rows)
    wiki6m = write_lines(tmp_path / "Wiki6M_ver_1_0.jsonl", [wiki6m_line(article) for article in countries()])
    made = converted(tmp_path, {**flags, "--knowledge_base": kb_of(tmp_path, wiki6m)})
    assert [row["entity"] for row in made] == [f"Q{row['entity']}" for row in rows]
    kb = KnowledgeBase.open(str(tmp_path / "kb.jsonl"))
    assert all(row["answers"][0] in kb.passage(row_["evidence"][0]).text for row, row_ in zip(rows, made, strict=True))

    names = ["côte d’ivoire", "Ivory_Coast", "Côte d'Ivoire", "Atlantis"]
    changed(tmp_path / "infoseek_val_withkb.jsonl", lambda number, line: {**line, "entity_text": names[number]})
    redirects = tmp_path / "redirects.json"
    redirects.write_text(json.dumps({"Co\u0302te d'Ivoire": "Ivory Coast", "Côte d’ivoire": "Côte d'Ivoire"}))
    made = converted(tmp_path, {**flags, "--knowledge_base": wiki_kb(tmp_path), "--redirects": str(redirects)})
    ivory = "https://en.wikipedia.org/wiki/Ivory_Coast"
    assert [row.get("entity") for row in made] == [ivory, ivory, ivory, None]
    assert [row["entity_id"] for row in made] == [f"Q{row['entity']}" for row in rows]
    assert "evidence" not in made[3] and "evidence_source" not in made[3]
    out = capsys.readouterr().out
    assert f"entity not in the knowledge base: 1 (25.0 % of 4): Q{rows[3]['entity']} Atlantis" in out


def test_a_title_of_several_articles_is_noted(tmp_path, capsys):
    same = [{**wiki6m_line(article), "wikipedia_title": "Twin"} for article in countries()[:2]]
    flags = infoseek(tmp_path, ROWS[:1])
    changed(tmp_path / "infoseek_val_withkb.jsonl", lambda _, line: {**line, "entity_id": "Q0", "entity_text": "Twin"})
    kb = kb_of(tmp_path, write_lines(tmp_path / "Wiki6M.jsonl", same))
    (row,) = converted(tmp_path, {**flags, "--knowledge_base": kb})
    assert row["entity"] == "Qad" and row["entity_id"] == "Q0"
    assert "entity that several articles fit; the first is taken: 1 (100.0 % of 1): Q0 Twin" in capsys.readouterr().out


def test_twenty_examples_of_unmatched_entities(tmp_path):
    flags = {**infoseek(tmp_path, ROWS[:30]), "--knowledge_base": wiki_kb(tmp_path)}
    changed(
        tmp_path / "infoseek_val_withkb.jsonl",
        lambda number, line: {**line, "entity_id": f"Q{number}", "entity_text": "?"},
    )
    assert len(converted(tmp_path, flags)) == 30
    unmatched = json.loads((tmp_path / "val.jsonl.report.json").read_text())["noted"][
        "entity not in the knowledge base"
    ]
    assert unmatched["number"] == 30 and len(unmatched["examples"]) == 20 and unmatched["examples"][7] == "Q7 ?"


def test_without_a_knowledge_base_the_entity_is_the_wikidata_id(tmp_path, capsys):
    flags = infoseek(tmp_path, ROWS[:2])
    made = converted(tmp_path, flags)
    assert [row["entity"] for row in made] == [f"Q{row['entity']}" for row in ROWS[:2]]
    assert all("evidence" not in row for row in made)
    for flag in (["--weak_evidence", "drop"], ["--section_scorer", "x"]):
        assert main(["convert", "infoseek", *flags_of(flags), "--output", str(tmp_path / "o.jsonl"), *flag]) == 2
        assert f"{flag[0]} looks into a knowledge base; give --knowledge_base too" in capsys.readouterr().err


def test_the_test_split_has_neither_answers_nor_entities(tmp_path, capsys):
    flags = infoseek(tmp_path, ROWS[:3])
    for name in ("withkb", "qtype"):
        (tmp_path / f"infoseek_val_{name}.jsonl").unlink()
    keep = ("data_id", "image_id", "question", "data_split")
    changed(tmp_path / "infoseek_val.jsonl", lambda number, line: {name: line[name] for name in keep})
    made = converted(tmp_path, {name: flags[name] for name in ("--input", "--image_roots")}, "--split", "test")
    assert [sorted(row) for row in made] == 3 * [["accu_reward_method", "conversations", "data_id", "id", "image", "image_id", "split"]]  # fmt: skip
    assert made[0]["split"] == "test" and [turn["from"] for turn in made[0]["conversations"]] == ["human"]
    assert report(tmp_path) == {"without an answer: for predictions only": 3, "without an entity": 3}
    data = ["--data_file_paths", str(tmp_path / "val.jsonl"), "--image_folders", flags["--image_roots"]]
    (first, *_) = Rows.open([data[1]], [data[3]], None)
    assert first.answers == ()


def test_what_is_dropped_and_noted(tmp_path, capsys):
    flags = {**infoseek(tmp_path, ROWS[:6]), "--knowledge_base": wiki_kb(tmp_path)}
    os.remove(tmp_path / "oven" / "04" / "oven_04000000.JPEG")
    (tmp_path / "oven" / "05").mkdir()
    os.link(tmp_path / "oven" / "04" / "oven_04000001.JPEG", tmp_path / "oven" / "05" / "oven_04000001.jpg")

    def change(number, line):
        if number == 2:
            line["answer_eval"] = ["about 1 or 2"]  # of a Numerical question
        return {**line, "data_id": "infoseek_val_00000003"} if number == 4 else line

    changed(tmp_path / "infoseek_val.jsonl", change)
    made = converted(tmp_path, flags)
    assert [row["data_id"][-1] for row in made] == ["1", "3", "5"] and made[0]["image"] == "04/oven_04000001.JPEG"
    noted = report(tmp_path)
    assert (
        noted.items()
        >= {
            "its image was not found": 1,
            "question type and answer don't fit": 1,
            "data_id given before": 1,
            "an image id that several files have; the first one is taken": 1,
        }.items()
    )
    assert "its image was not found: 1 (16.7 % of 6): oven_04000000" in capsys.readouterr().out


def test_images_by_id2path(tmp_path):
    flags = infoseek(tmp_path, ROWS[:1])
    (tmp_path / "oven" / "04" / "oven_04000000.JPEG").rename(tmp_path / "oven" / "other.jpg")
    (tmp_path / "oven_id2path.json").write_text(json.dumps({"oven_04000000": "somewhere/other.jpg"}))
    (row,) = converted(tmp_path, {**flags, "--id2path": str(tmp_path / "oven_id2path.json")})
    assert row["image"] == "other.jpg" and row["image_id"] == "oven_04000000"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("infoseek_val.jsonl", '{"data_id": "a"}\n', "`image_id` is missing"),
        ("infoseek_val.jsonl", '[{"data_id": "a"}]', "holds one JSON list"),
        ("infoseek_val.jsonl", '{"data_id": "a", "image_id": "o", "question": "?", "answer_eval": {"x": 1}, "data_split": "v"}\n', "`answer_eval` is {'x': 1}"),
        ("infoseek_val_withkb.jsonl", '{"data_id": "a"}\n', "`entity_id` is missing"),
        ("infoseek_val_qtype.jsonl", '{"data_id": "a", "question_type": "Colour"}\n', "question_type 'Colour' is none of"),
    ],
)  # fmt: skip
def test_wrong_shapes_are_refused(tmp_path, capsys, name, content, message):
    flags = infoseek(tmp_path, ROWS[:1])
    (tmp_path / name).write_text(content)
    assert main(["convert", "infoseek", *flags_of(flags), "--output", str(tmp_path / "val.jsonl")]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.glob("val.jsonl*"))


def test_a_killed_conversion_goes_on_to_the_same_file(tmp_path, capfd):
    flags = {**infoseek(tmp_path, ROWS), "--knowledge_base": wiki_kb(tmp_path)}
    slow = "from open_r1_kivqa.benchmarks import converted as c; c.EVERY = 0; from open_r1_kivqa.cli import main; import sys; main(sys.argv[1:])"
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    command = [sys.executable, "-c", slow, "convert", "infoseek", *flags_of(flags), "--output", str(twice)]
    process = subprocess.Popen(command)
    while process.poll() is None and not os.path.exists(f"{twice}.part.json"):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = json.loads((tmp_path / "twice.jsonl.part.json").read_text())["done"]
    assert 0 < done < 504 and not twice.exists()
    for path in (once, twice):
        assert main(["convert", "infoseek", *flags_of(flags), "--output", str(path)]) == 0
    assert f"going on after {done:,} items" in capfd.readouterr().err
    assert once.read_bytes() == twice.read_bytes() and len(lines_of(twice)) == 504
