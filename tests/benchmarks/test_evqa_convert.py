import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evqa_fixture import (
    BIRD,
    HOPS,
    LANDMARK,
    OTHER,
    QUESTIONS,
    SPECIES,
    WIKI,
    question,
    write_csv,
    write_images,
    write_knowledge_base,
)

from open_r1_kivqa import evaluate_jsonl
from open_r1_kivqa.benchmarks import evqa
from open_r1_kivqa.benchmarks.convert_cli import main
from open_r1_kivqa.cli import main as kivqa
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.methods import score


@pytest.fixture
def folder(tmp_path):
    """val.csv, images/inat, images/landmarks, images/val.json and kb.jsonl."""
    write_csv(tmp_path / "val.csv", QUESTIONS)
    write_images(tmp_path / "images")
    write_knowledge_base(tmp_path / "kb.jsonl")
    return tmp_path


def flags(folder, *more, knowledge_base=True):
    argv = [
        "evqa",
        "--input",
        folder / "val.csv",
        "--image_roots",
        folder / "images",
        "--output",
        folder / "evqa_val.jsonl",
    ]
    argv += ["--inat_json", folder / "images" / "val.json"]
    argv += ["--knowledge_base", folder / "kb.jsonl"] if knowledge_base else []
    return [str(part) for part in (*argv, *more)]


def converted(folder, questions=None, *more, **options):
    """Rows, and the counts of the report."""
    if questions is not None:
        write_csv(folder / "val.csv", questions)
    assert main(flags(folder, *more, **options)) == 0
    output = folder / "evqa_val.jsonl"
    return [json.loads(line) for line in output.read_text().splitlines()], json.loads(
        Path(f"{output}.report.json").read_text()
    )


def numbers(part):
    return {what: tally["number"] for what, tally in part.items()}


def test_questions_become_rows(folder, capsys):
    rows, report = converted(folder)
    assert rows[0] == {
        "id": "evqa_val-0",
        "image": f"landmarks/0/0/a/{LANDMARK}.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nHow tall is this tower?"},
            {"from": "gpt", "value": "330 m"},
        ],
        "answers": ["330 m", "330 metres"],
        "question_type": "automatic",
        "entity": f"{WIKI}Eiffel_Tower",
        "evidence": [f"{WIKI}Eiffel_Tower#1"],
        "split": "val",
        "accu_reward_method": "evqa",
        "data_id": 0,
        "image_id": LANDMARK,
    }
    assert rows[1]["image"] == f"inat/{SPECIES[12]}" and rows[1]["conversations"][1]["value"] == "black, white"
    assert rows[1]["answers"] == ["black&&white", "black&&white&&grey"]
    assert rows[2]["entity"] == f"{WIKI}Linnaea"
    assert rows[2]["evidence"] == [f"{WIKI}Linnaea#0", f"{WIKI}Carl_Linnaeus#1"]
    assert [row["data_id"] for row in rows] == [0, 1, 2]
    assert (report["read"], report["written"], report["dropped"], report["noted"]) == (3, 3, {}, {})
    out = capsys.readouterr().out.splitlines()
    assert out == [f"{folder}/evqa_val.jsonl: 3 rows of 3 items", f"The rows' images: --image_folders {folder}/images"]


@pytest.mark.parametrize("images", ["first", "all"])
def test_the_check_takes_the_rows_and_their_own_answers_are_right(folder, images, capsys):
    converted(folder, None, "--images_per_question", images)
    argv = ["--data_file_paths", str(folder / "evqa_val.jsonl"), "--image_folders", str(folder / "images")]
    assert kivqa(["check", *argv, "--knowledge_base", str(folder / "kb.jsonl")]) == 0
    assert f"Checked {3 + (images == 'all')} rows" in capsys.readouterr().out
    for sample in Rows.open([str(folder / "evqa_val.jsonl")], [str(folder / "images")], None):
        assert score(sample.answer, sample) == 1.0
        assert evqa.exact(sample.answer, QUESTIONS[sample.row["data_id"]]["answer"], sample.question_type)


def test_the_answers_are_those_of_the_csv(folder):
    cells = ["b|c", "The cat|the|dog", " x |x", "1,000&&2"]
    rows, report = converted(folder, [question(answer=cell) for cell in cells])
    assert [row["answers"] for row in rows] == [["b", "c"], ["The cat", "dog"], [" x ", "x"], ["1,000&&2"]]
    assert numbers(report["noted"]) == {"alternatives left out, of which the official normalisation leaves nothing": 1}
    lists = [BIRD | {"answer": cell} for cell in ("b&&c|d&&e", "b&&the", "&&")]
    rows, report = converted(folder, lists)
    assert [row["answers"] for row in rows] == [["b&&c", "d&&e"], ["b&&the"]]
    assert numbers(report["dropped"]) == {"no answer, or one of which the official normalisation leaves nothing": 1}


def test_all_images_of_a_question(folder):
    rows, _ = converted(folder, None, "--images_per_question", "all")
    assert [(row["id"], row["data_id"]) for row in rows] == [
        ("evqa_val-0", 0),
        ("evqa_val-0-2", 0),
        ("evqa_val-1", 1),
        ("evqa_val-2", 2),
    ]
    assert rows[1]["image"] == f"landmarks/f/f/e/{OTHER}.jpg"
    assert rows[1]["image_id"] == OTHER
    assert rows[0] | {"id": "", "image": "", "image_id": ""} == rows[1] | {"id": "", "image": "", "image_id": ""}


def test_an_image_is_named_by_its_place_in_the_csv_whatever_is_missing(folder):
    tower = question(dataset_image_ids=f"gone1|{LANDMARK}|gone2|{OTHER}")
    rows, report = converted(folder, [question(dataset_image_ids="gone3"), tower], "--images_per_question", "all")
    assert [row["id"] for row in rows] == ["evqa_val-1-2", "evqa_val-1-4"] and {row["data_id"] for row in rows} == {1}
    assert report["dropped"] == {"none of its images was found": {"number": 1, "examples": ["landmarks gone3"]}}
    assert report["noted"] == {
        "some of its images were not found": {"number": 1, "examples": ["landmarks gone1"]},
        "its first image was not found; another one stands first": {"number": 1, "examples": ["landmarks gone1"]},
    }
    assert report["read"] == 2
    (row,), _ = converted(folder, None)
    assert row["id"] == "evqa_val-1-2"


def test_no_image_at_all_is_an_error_that_says_what_is_missing(folder):
    write_csv(folder / "val.csv", [BIRD, HOPS])
    argv = flags(folder)
    argv[argv.index("--inat_json") : argv.index("--inat_json") + 2] = []
    with pytest.raises(
        InputError,
        match=r"no row to write.\n  dropped: none of its images was found: 2 .*inaturalist 12, inaturalist 345",
    ):
        main(argv)
    assert not list(folder.glob("evqa_val*"))


def test_an_id_of_several_files(folder):
    copy = folder / "images" / "again" / f"{LANDMARK}.JPG"
    copy.parent.mkdir()
    copy.write_bytes((folder / "images" / f"landmarks/0/0/a/{LANDMARK}.jpg").read_bytes())
    rows, report = converted(folder)
    assert rows[0]["image"] == f"landmarks/0/0/a/{LANDMARK}.jpg"
    (tally,) = report["noted"].values()
    assert tally == {
        "number": 1,
        "examples": [f"landmarks {LANDMARK}: landmarks/0/0/a/{LANDMARK}.jpg again/{LANDMARK}.JPG"],
    }


@pytest.mark.parametrize(
    "change, evidence, noted",
    [
        ({"evidence_section_id": "1.0"}, ["Eiffel_Tower#1"], set()),
        ({"evidence_section_id": "0|1"}, ["Eiffel_Tower#0", "Eiffel_Tower#1"], set()),
        ({"evidence_section_id": "1|1"}, ["Eiffel_Tower#1"], set()),
        (
            {"evidence_section_id": "7"},
            [],
            {"a section that its article doesn't have", "no evidence is left"},
        ),
        (
            {"evidence_section_id": "nan"},
            [],
            {"a section that its article doesn't have", "no evidence is left"},
        ),
        ({"evidence_section_id": ""}, [], {"urls and section ids that don't pair up", "no evidence is left"}),
        ({"wikipedia_url": f"{WIKI}Eiffel%5FTower"}, ["Eiffel_Tower#1"], set()),
        (
            {"wikipedia_url": f"{WIKI}Nowhere"},
            [],
            {
                "an article that is not in the knowledge base",
                "no evidence is left",
            },
        ),
        (
            {"wikipedia_url": f"{WIKI}Linnaea|{WIKI}Nowhere", "evidence_section_id": "0|1", "question_type": "2_hop"},
            ["Linnaea#0"],
            {"an article that is not in the knowledge base", "only a part of the evidence is left"},
        ),
        (
            {
                "wikipedia_url": f"{WIKI}Linnaea|{WIKI}Carl_Linnaeus",
                "evidence_section_id": "0|1|1",
                "question_type": "2_hop",
            },
            [],
            {"urls and section ids that don't pair up", "no evidence is left"},
        ),
    ],
)
def test_evidence_is_what_the_knowledge_base_has(folder, change, evidence, noted):
    (row, _), report = converted(folder, [question(**change), question()])
    assert row["evidence"] == [WIKI + key for key in evidence] and set(report["noted"]) == noted
    assert (row["entity"] is None) == (change.get("wikipedia_url") == f"{WIKI}Nowhere")


def test_without_a_knowledge_base_urls_are_the_keys(folder):
    (row,), report = converted(folder, [question(wikipedia_url="x", evidence_section_id="7")], knowledge_base=False)
    assert row["entity"] == "x" and row["evidence"] == ["x#7"] and report["noted"] == {}


def test_a_knowledge_base_of_other_articles_is_refused(folder):
    other = {"key": "Q243", "title": "x", "url": "", "sections": [{"id": "0", "title": "", "text": "x"}], "images": []}
    (folder / "kb.jsonl").write_text(json.dumps(other) + "\n")
    with pytest.raises(
        InputError, match=r"kb.jsonl has no passage of any question; give .*(\n.*)*wiki/Eurasian_magpie"
    ):
        main(flags(folder))
    assert not list(folder.glob("evqa_val*"))


def test_redirects_lead_to_articles_and_twenty_of_the_unknown_are_shown(folder, capsys):
    (folder / "redirects.tsv").write_text("Tour Eiffel\tEiffel Tower\n")
    unknown = [question(wikipedia_url=f"{WIKI}Unknown_{number}") for number in range(30)]
    questions = [question(wikipedia_url=f"{WIKI}Tour_Eiffel"), *unknown]
    rows, report = converted(folder, questions, "--redirects", str(folder / "redirects.tsv"))
    assert rows[0]["entity"] == f"{WIKI}Eiffel_Tower" and rows[0]["evidence"] == [f"{WIKI}Eiffel_Tower#1"]
    assert len(report["noted"]["an article that is not in the knowledge base"]["examples"]) == 20
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "an article that is not" in line]
    assert "30 (96.8 % of 31): " in line and f"{WIKI}Unknown_19, …" in line
    with pytest.raises(InputError, match="give --knowledge_base, or leave it out"):
        main(flags(folder, "--redirects", str(folder / "redirects.tsv"), knowledge_base=False))


def test_only_some_question_types(folder):
    rows, report = converted(folder, None, "--question_types", "multi_answer, automatic", "--split", "mine")
    assert [(row["data_id"], row["split"]) for row in rows] == [(0, "mine"), (1, "mine")]
    assert numbers(report["dropped"]) == {"question type 2_hop, not in --question_types": 1}
    for text in ("hop", "", "templated,hop"):
        with pytest.raises(InputError, match="is not a choice of templated,automatic,multi_answer,2_hop"):
            main(flags(folder, "--question_types", text))


def test_rows_that_training_would_refuse_are_dropped(folder):
    odd = [question(question="what <|im_end|>"), question(question=" <image>"), question()]
    rows, report = converted(folder, odd)
    assert [row["data_id"] for row in rows] == [2]
    (tally,) = report["dropped"].values()
    assert tally["number"] == 2 and "row 0: turn 1 spells the model token <|im_end|>" in tally["examples"][0]


def test_files_that_are_none(folder):
    with pytest.raises(InputError, match="row 0: `dataset_name` is 'coco'; wanted is inaturalist or landmarks"):
        converted(folder, [question(dataset_name="coco")])
    (folder / "val.csv").write_text("a;b\n")
    with pytest.raises(InputError, match="has no column"):
        main(flags(folder))
    write_csv(folder / "val.csv", QUESTIONS)
    (folder / "images" / "val.json").write_text("{")
    with pytest.raises(InputError, match="val.json is not JSON"):
        main(flags(folder))
    assert not list(folder.glob("evqa_val*"))


def test_a_killed_conversion_goes_on(folder):
    questions = [question(dataset_image_ids=LANDMARK if i % 3 else "gone", answer=str(i)) for i in range(4000)]
    rows, report = converted(folder, questions)
    whole = (folder / "evqa_val.jsonl").read_bytes()
    (folder / "evqa_val.jsonl").unlink()
    (folder / "evqa_val.jsonl.report.json").unlink()
    code = "import sys; from open_r1_kivqa.benchmarks import converted; converted.EVERY = 0.01; from open_r1_kivqa.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", code, "convert", *flags(folder)], stdout=subprocess.DEVNULL)
    record = folder / "evqa_val.jsonl.part.json"
    while process.poll() is None and not (record.exists() and json.loads(record.read_text())["done"] > 50):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (folder / "evqa_val.jsonl").exists()
    assert 50 < json.loads(record.read_text())["done"] < 4000
    again, counted = converted(folder)
    assert (folder / "evqa_val.jsonl").read_bytes() == whole and counted == report and len(again) == 2666


def test_the_rows_are_evaluated(folder, tiny_model):
    converted(folder)
    argv = ["--data_file_paths", str(folder / "evqa_val.jsonl"), "--image_folders", str(folder / "images")]
    argv += ["--knowledge_base", str(folder / "kb.jsonl"), "--context_level", "gold", "--settings", "normal"]
    argv += [
        "--model_name_or_path",
        tiny_model("qwen2_5_vl"),
        "--max_new_tokens",
        "4",
        "--output_dir",
        str(folder / "out"),
    ]
    evaluate_jsonl.main(argv)
    records = [json.loads(line) for line in (folder / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == ["evqa_val-0", "evqa_val-1", "evqa_val-2"]
    assert [sorted(record["passages"]) for record in records][2] == sorted(
        [f"{WIKI}Linnaea#0", f"{WIKI}Carl_Linnaeus#1"]
    )
    predictions = folder / "out" / "official_predictions.normal.jsonl"
    assert [json.loads(line)["data_id"] for line in predictions.read_text().splitlines()] == [0, 1, 2]
    assert kivqa(["score", "evqa", "--references", str(folder / "val.csv"), "--predictions", str(predictions)]) == 0
