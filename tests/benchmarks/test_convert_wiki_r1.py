import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from published_factbook import DATA, countries, encyclopedic_kb, flags_of, lines_of, oven_images, url_of

from open_r1_kivqa.benchmarks.wiki_r1_convert import EXPECTED
from open_r1_kivqa.cli import main
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.rewards.methods import score

ROWS = lines_of(DATA / "train.jsonl")[:60]
URLS = {article["key"]: url_of(article) for article in countries()}
PLACES = {article["key"]: [part["id"] for part in article["sections"]] for article in countries()}


def passage(key: str) -> str:
    """A passage of the Factbook as the converted knowledge base has it."""
    article, _, section = key.partition("#")
    return f"{URLS[article]}#{PLACES[article].index(section)}"


def item(row: dict, image: str) -> dict:
    return {
        "question": row["conversations"][0]["value"].replace("<image>\n", ""),
        "answer": row["answers"],
        "image_id": image,
        "entity": URLS[row["entity"]],
        "candidates": [URLS[key.partition("#")[0]] for key in row["candidates"][0]],
    }


def published(tmp_path) -> list[dict]:
    """55 rows of InfoSeek and 5 of Encyclopedic-VQA, whose images have other names."""
    images = oven_images(tmp_path / "images", ROWS[:55])
    for number, row in enumerate(ROWS[55:]):
        shutil.copy(DATA / "images" / row["image"], tmp_path / "images" / f"{7000 + number}.jpg")
    merged = [item(row, image) for row, image in zip(ROWS, [*images, *map(str, range(7000, 7005))], strict=True)]
    for entry in merged[55:]:
        entry["answer"] = "|".join(entry["answer"])
    return merged


def flags(tmp_path, merged) -> dict[str, str]:
    """The flags that name the files; makes the knowledge base."""
    (tmp_path / "merge_infoseek_and_evqa.json").write_text(
        merged if isinstance(merged, str) else json.dumps(merged), encoding="utf-8"
    )
    kb = str(tmp_path / "kb.jsonl")
    if not os.path.exists(kb):
        assert (
            main(["convert", "kb", "--input", encyclopedic_kb(tmp_path / "final_related_KB.json"), "--output", kb]) == 0
        )
    return {
        "--input": str(tmp_path / "merge_infoseek_and_evqa.json"),
        "--knowledge_base": kb,
        "--image_roots": str(tmp_path / "images"),
    }


def converted(tmp_path, merged, *more) -> list[dict]:
    command = ["convert", "wiki-r1", *flags_of(flags(tmp_path, merged)), "--output", str(tmp_path / "wiki_r1.jsonl")]
    assert main([*command, *more]) == 0
    return lines_of(tmp_path / "wiki_r1.jsonl")


def refused(tmp_path, capsys, merged, *more) -> str:
    command = ["convert", "wiki-r1", *flags_of(flags(tmp_path, merged)), "--output", str(tmp_path / "wiki_r1.jsonl")]
    assert main([*command, *more]) == 2
    assert not list(tmp_path.glob("wiki_r1.jsonl*"))
    return capsys.readouterr().err


def test_the_whole_way(tmp_path, capsys):
    rows = converted(tmp_path, published(tmp_path))
    assert len(rows) == 60
    for number, (row, own) in enumerate(zip(rows, ROWS, strict=True)):
        assert row["id"] == row["data_id"] == f"wiki_r1-{number}" and row["split"] == "train"
        assert row["entity"] == URLS[own["entity"]]
        assert row["evidence"] == [passage(own["evidence"])] and row["evidence_source"] == "alias"
        assert row["candidates"] == [
            passage(key) for key in own["candidates"][0]
        ]  # the section that the question asks for
        assert row["accu_reward_method"] == ("infoseek" if number < 55 else "evqa")
        assert row["answers"] == own["answers"] and row["conversations"][1]["value"] == own["answers"][0]
    assert rows[0]["image"] == "04/oven_04000000.JPEG" and rows[55]["image"] == "7000.jpg"
    assert "note: rows of infoseek: 55 (91.7 % of 60)" in capsys.readouterr().out
    data = ["--data_file_paths", str(tmp_path / "wiki_r1.jsonl"), "--image_folders", str(tmp_path / "images")]
    assert main(["check", *data, "--knowledge_base", str(tmp_path / "kb.jsonl"), "--task_type", "kivqa"]) == 0
    assert "no problem" in capsys.readouterr().out
    assert all(score(sample.answers[0], sample) == 1.0 for sample in Rows.open([data[1]], [data[3]], None))


def test_other_keys_are_mapped(tmp_path, capsys):
    merged = published(tmp_path)[:3]
    for entry in merged:
        entry["image"] = {"oven": entry.pop("image_id")}
        entry["retrieved.top5"] = [{"page": {"url": url}, "score": 0.5} for url in entry.pop("candidates")]
    message = refused(tmp_path, capsys, merged)
    assert (
        "merge_infoseek_and_evqa.json[0] lacks image_id, candidates. Found: an object with question: text 'What is"
        in message
    )
    assert "image: object {'oven': 'oven_04000000'}, retrieved.top5: list [{'page'" in message
    assert "--map image_id=their_key" in message
    mapped = converted(
        tmp_path, merged, "--map", "image_id=image.oven", "candidates=retrieved.top5", "candidate=page.url"
    )
    assert [row["candidates"] for row in mapped] == [[passage(key) for key in row["candidates"][0]] for row in ROWS[:3]]


@pytest.mark.parametrize("shape", ["object", "lines"])
def test_other_outer_shapes(tmp_path, shape):
    merged = published(tmp_path)[:3]
    text = json.dumps({f"row {i}": entry for i, entry in enumerate(merged)})
    lines = "".join(json.dumps(entry) + "\n" for entry in merged)
    assert len(converted(tmp_path, text if shape == "object" else lines)) == 3


def test_candidates_of_all_kinds(tmp_path, capsys):
    entry = published(tmp_path)[0]  # Which is the capital of Tuvalu?
    entry["candidates"] = [
        "Fiji",
        [URLS["au"], 0.7],
        {"url": URLS["nz"]},
        passage("tv#area"),
        "Atlantis",
        7,
        "https://en.wikipedia.org/wiki/Fiji",
    ]
    (row,) = converted(tmp_path, [entry])
    assert row["candidates"] == [
        passage("fj#capital"),
        passage("au#capital"),
        passage("nz#capital"),
        passage("tv#area"),
    ]
    assert "candidates that the knowledge base lacks: 1 (100.0 % of 1): text 'Atlantis'" in capsys.readouterr().out
    (row,) = converted(tmp_path, [entry], "--candidate_section", "first")
    assert row["candidates"][:2] == [f"{URLS['fj']}#0", f"{URLS['au']}#0"]
    (row,) = converted(tmp_path, [{**entry, "candidates": {URLS["fj"]: 0.9, URLS["au"]: 0.8}}])
    assert row["candidates"] == [passage("fj#capital"), passage("au#capital")]
    (row,) = converted(tmp_path, [{**entry, "candidates": ["Atlantis"]}])
    assert "candidates" not in row and "note: without candidates: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer, answer_eval, image, answers, kind",
    [
        ("Funafuti", None, "oven_04000000", ["Funafuti"], ""),
        (["Funafuti", "Funafuti "], None, "oven_04000000", ["Funafuti"], ""),
        ("Funafuti", ["funafuti", "Fongafale"], "oven_04000000", ["funafuti", "Fongafale"], ""),
        ("26 km2", [{"wikidata": 26.0, "range": [23.4, 28.6]}], "oven_04000000", {"range": [23.4, 28.6]}, "Numerical"),
        (10, None, "oven_04000000", {"range": [9, 11]}, "Numerical"),
        (10, None, "7000", ["10"], ""),
        ("Funafuti|Fongafale", None, "7000", ["Funafuti", "Fongafale"], ""),
        ("red&&blue|blue", None, "7000", ["red&&blue", "blue"], "multi_answer"),
    ],
)
def test_answers_of_all_kinds(tmp_path, answer, answer_eval, image, answers, kind):
    published(tmp_path)
    entry = {**item(ROWS[0], image), "answer": answer} | ({"answer_eval": answer_eval} if answer_eval else {})
    (row,) = converted(tmp_path, [entry])
    assert row["answers"] == (answers if isinstance(answers, list) else {"range": pytest.approx(answers["range"])})
    assert row["question_type"] == kind
    assert row["accu_reward_method"] == ("evqa" if image == "7000" else "infoseek")
    if kind == "multi_answer":
        assert row["conversations"][1]["value"] == "red, blue"


def test_which_rule_scores_a_row(tmp_path):
    merged = published(tmp_path)
    first, other = merged[0], merged[55]
    cases = [
        first,
        {**first, "dataset": "E-VQA evqa_train"},
        other,
        {**other, "dataset": "InfoSeek"},
        {**other, "data_id": "infoseek_train_1"},
    ]
    methods = [row["accu_reward_method"] for row in converted(tmp_path, cases)]
    assert methods == ["infoseek", "evqa", "evqa", "infoseek", "infoseek"]
    rows = converted(tmp_path, merged, "--infoseek_prefixes", "7")
    assert [row["accu_reward_method"] for row in rows] == ["evqa"] * 55 + ["infoseek"] * 5


def test_evidence(tmp_path, capsys):
    entry = published(tmp_path)[0]
    own = {**entry, "evidence": [passage("tv#area"), f"{URLS['tv']}#99"]}
    two = {**entry, "entity": f"{URLS['fj']}|{URLS['tv']}"}  # the second article holds the answer
    weak = {**entry, "answer": "no such town"}
    none = {**entry, "entity": "Atlantis"}
    rows = converted(tmp_path, [own, two, weak, none])
    assert rows[0]["evidence"] == [passage("tv#area")] and "evidence_source" not in rows[0]
    assert rows[1]["entity"] == URLS["fj"] and rows[1]["evidence"] == [passage("tv#capital")]
    assert rows[2]["evidence"] == [passage("tv#capital")] and rows[2]["evidence_source"] == "weak"
    assert "evidence" not in rows[3] and "entity" not in rows[3]
    out = capsys.readouterr().out
    assert f"evidence of the file that is no passage of the knowledge base: 1 (25.0 % of 4): {URLS['tv']}#99" in out
    rows = converted(tmp_path, [own, two, weak, none], "--weak_evidence", "drop")
    assert "evidence" not in rows[2] and rows[2]["evidence_source"] == "weak"


def test_what_is_dropped_is_counted(tmp_path):
    merged = published(tmp_path)[:6]
    merged[1]["image_id"] = "oven_99999999"
    merged[2]["answer"] = {"unknown": "form"}
    del merged[3]["question"]
    merged[4]["data_id"] = merged[5]["data_id"] = "a"
    rows = converted(tmp_path, merged)
    assert [row["id"] for row in rows] == ["wiki_r1-0", "a"]
    report = json.loads((tmp_path / "wiki_r1.jsonl.report.json").read_text())
    assert {what: tally["number"] for what, tally in report["dropped"].items()} == {
        "its image was not found": 1,
        "the answer is of no known form": 1,
        "without question": 1,
        "data_id given before": 1,
    }


def test_what_is_refused(tmp_path, capsys):
    merged = published(tmp_path)
    assert "holds no item" in refused(tmp_path, capsys, [])
    message = refused(tmp_path, capsys, [["a"], ["b"]])
    assert "lacks question, answer, image_id, entity, candidates. Found: a list of 1, the first text 'a'" in message
    assert "--map who=me: wanted is field=key, the field one of question, answer" in refused(
        tmp_path, capsys, merged, "--map", "who=me"
    )
    whole = json.dumps(merged)
    assert "ends in the middle, at byte 5,000, after" in refused(tmp_path, capsys, whole[:5000])
    command = flags(tmp_path, merged)
    del command["--knowledge_base"]
    assert main(["convert", "wiki-r1", *flags_of(command), "--output", str(tmp_path / "wiki_r1.jsonl")]) == 2
    assert "make one with `kivqa convert kb`" in capsys.readouterr().err


def test_help_states_the_expected_keys(capsys):
    with pytest.raises(SystemExit):
        main(["convert", "wiki-r1", "--help"])
    words = capsys.readouterr().out.split()
    for ours, theirs in EXPECTED.items():
        assert any(word.strip(",.") == f"{ours}={theirs}" for word in words)


def test_a_killed_conversion_goes_on_to_the_same_file(tmp_path, capfd):
    given = flags_of(flags(tmp_path, published(tmp_path)))
    slow = "from open_r1_kivqa.benchmarks import converted as c; c.EVERY = 0; from open_r1_kivqa.cli import main; import sys; main(sys.argv[1:])"
    once, twice = tmp_path / "once" / "rows.jsonl", tmp_path / "twice" / "rows.jsonl"
    for path in (once, twice):
        path.parent.mkdir()
    process = subprocess.Popen([sys.executable, "-c", slow, "convert", "wiki-r1", *given, "--output", str(twice)])
    while process.poll() is None and not os.path.exists(f"{twice}.part.json"):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = json.loads((tmp_path / "twice" / "rows.jsonl.part.json").read_text())["done"]
    assert 0 < done < 60 and not twice.exists()
    for path in (once, twice):
        assert main(["convert", "wiki-r1", *given, "--output", str(path)]) == 0
    assert f"going on after {done:,} items" in capfd.readouterr().err
    assert once.read_bytes() == twice.read_bytes() and len(lines_of(twice)) == 60
