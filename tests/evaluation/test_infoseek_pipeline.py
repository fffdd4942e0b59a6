"""From InfoSeek's published files over `kivqa convert` and an evaluation to `kivqa score` on the same files: one figure everywhere. A scripted server answers, so that verdicts of all kinds come up."""

import json
from pathlib import Path

import pytest
from benchmarks.published_factbook import DATA, encyclopedic_kb, flags_of, infoseek, lines_of
from cold_start.scripted_endpoint import serving

import open_r1_kivqa
from open_r1_kivqa import evaluate_jsonl, grpo_jsonl
from open_r1_kivqa.cli import main
from open_r1_kivqa.errors import InputError

MODEL = Path(open_r1_kivqa.__file__).parent / "demo" / "tiny_qwen2_5_vl"
SPLITS = ("unseen_question", "unseen_entity")
ROWS = [row for row in lines_of(DATA / "eval.jsonl") if row["split"] in SPLITS][::8]


def kivqa(capsys, *words):
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_summary_and_kivqa_score_agree_on_infoseeks_own_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    files = infoseek(tmp_path, ROWS)
    kb = tmp_path / "kb.jsonl"
    kivqa(capsys, "convert", "kb", "--input", encyclopedic_kb(tmp_path / "wiki.json"), "--output", kb)
    rows = tmp_path / "val.jsonl"
    kivqa(capsys, "convert", "infoseek", *flags_of(files), "--knowledge_base", kb, "--output", rows)
    assert len(lines_of(rows)) == len(ROWS)
    answers = [row["conversations"][-1]["value"] for row in lines_of(rows)]

    def act(number, request):
        """In turn right, wrong, nothing, no answer tags, and what InfoSeek's rule alone may take."""
        right = answers[(number - 1) % len(answers)]  # one request at a time: they come in the rows' order
        texts = [right, "Atlantis", "", f"I think.\n{right}", "unknown"]
        text = texts[number % 5]
        return text if number % 5 == 3 else f"<think>x</think><answer>{text}</answer>"

    with serving() as serve:
        flags = {
            "data_file_paths": rows,
            "image_folders": tmp_path / "oven",
            "knowledge_base": kb,
            "settings": "oracle_article,normal",
            "server_url": serve(act).url,
            "server_model": "m",
            "server_concurrency": 1,
            "output_dir": tmp_path / "out",
        }
        summary = evaluate_jsonl.main([str(part) for name, value in flags.items() for part in (f"--{name}", value)])
    for setting in ("oracle_article", "normal"):
        words = ["--references", files["--input"], "--question_types", files["--question_types"]]
        words += ["--predictions", tmp_path / "out" / f"official_predictions.{setting}.jsonl", "--json"]
        scored = json.loads(kivqa(capsys, "score", "infoseek", *words))
        ours = summary["official"][setting]["infoseek"]
        assert scored["scores"] == ours["lenient"]
        assert scored["coverage"]["answered"] == ours["questions"] == len(ROWS)
        assert 20 < ours["lenient"]["mean"] < 80 and ours["strict"]["mean"] < ours["lenient"]["mean"]
    records = lines_of(tmp_path / "out" / "predictions.jsonl")
    assert all(record["gold_position"] >= 1 for record in records[: len(ROWS)])  # oracle_article always shows evidence
    assert all(record["gold_rank"] is None and record["gold_position"] == 0 for record in records[len(ROWS) :])


def test_questions_without_answers_are_answered_for_the_official_file_and_not_scored(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    files = infoseek(tmp_path, ROWS[:4])
    questions = [
        {name: line[name] for name in ("data_id", "image_id", "question")} for line in lines_of(files["--input"])
    ]
    test = tmp_path / "infoseek_test.jsonl"
    test.write_text("".join(json.dumps(question) + "\n" for question in questions))
    rows, folder = tmp_path / "test.jsonl", tmp_path / "oven"
    kivqa(capsys, "convert", "infoseek", "--input", test, "--image_roots", folder, "--output", rows)
    words = ["check", "--data_file_paths", str(rows), "--image_folders", str(folder)]
    assert main(words) == 1 and "answer_missing: 4" in capsys.readouterr().out
    note = "4 rows have no reference answer: evaluation answers such rows and scores none of them."
    assert note in kivqa(capsys, *words, "--answers_optional")
    assert json.loads(kivqa(capsys, *words, "--answers_optional", "--json"))["unanswered"] == 4
    with pytest.raises(InputError, match="answer_missing: 4"):  # what trains wants answers
        grpo_jsonl.main(
            [
                "--data_file_paths",
                str(rows),
                "--image_folders",
                str(folder),
                "--model_name_or_path",
                str(MODEL),
                "--output_dir",
                str(tmp_path / "grpo"),
            ]
        )

    with serving() as serve:
        words = [
            "--data_file_paths",
            rows,
            "--image_folders",
            folder,
            "--rollouts",
            16,
            "--output_dir",
            tmp_path / "out",
        ]
        words += ["--server_url", serve(lambda *_: "<think>x</think><answer>Oslo</answer>").url, "--server_model", "m"]
        summary = evaluate_jsonl.main([str(word) for word in words])
    assert "4 rows have no reference answer: answered, not scored" in capsys.readouterr().out
    predictions = lines_of(tmp_path / "out" / "official_predictions.normal.jsonl")
    assert predictions == [{"data_id": question["data_id"], "prediction": "Oslo"} for question in questions]
    assert summary["unanswered"] == 4 and summary["official"] == {}
    scores = summary["splits"]["test"]
    assert (scores["n"], scores["scored"], scores["accuracy"], scores["interval"]) == (4, 0, None, None)
    assert scores["format"] == 1.0 and scores["rollouts"]["avg"] is None
    for record in lines_of(tmp_path / "out" / "predictions.jsonl"):
        assert {
            record[name] for name in ("correct_strict", "correct_lenient", "guarded_strict", "guarded_lenient")
        } == {None}
    assert (tmp_path / "out" / "suspect_labels.jsonl").read_text() == ""
