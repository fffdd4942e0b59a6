"""Rows of the method `llm` in a training run and in an evaluation, with a judge at a real endpoint."""

import json

import pytest
from judge_server import serving
from training_rows import write_data

from open_r1_kivqa import evaluate_jsonl, grpo_jsonl
from open_r1_kivqa.errors import InputError


@pytest.fixture
def server():
    with serving() as serve:
        yield serve


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def flags(tiny_model, tmp_path):
    given = {
        "model_name_or_path": tiny_model("qwen2_5_vl"),
        **write_data(tmp_path / "data"),
        "reward_method": "llm",
        "judge_model": "judge",
        "judge_retries": 0,
    }
    return lambda **more: [part for name, value in {**given, **more}.items() for part in (f"--{name}", str(value))]


def has_vowel(number, row):
    """Right for an answer with an a; the check's own question, which is the first, is answered as well."""
    return "correct" if "a" in row["answer"] else "incorrect"


TRAINING = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "answer_extraction": "lenient",
    "report_to": "none",
    "save_strategy": "no",
    "max_steps": 2,
}


@pytest.mark.parametrize("rewards", ["accuracy", "length"])
def test_training_is_paid_by_the_judge_and_logs_what_it_did(rewards, server, flags, tmp_path):
    judge = server(has_vowel)
    argv = flags(**TRAINING, judge_url=judge.url, output_dir=tmp_path / "run", reward_funcs=rewards)
    trainer = grpo_jsonl.main(argv)
    (first, *_) = [entry for entry in trainer.state.log_history if "loss" in entry]
    asked = [entry["judge/asked"] for entry in trainer.state.log_history if "judge/asked" in entry]
    assert len(asked) == 2 and sum(asked) == len(judge.seen) - 1  # the first question is that of the start
    assert first["judge/failed"] == 0 and f"rewards/{rewards}/mean" in first
    shown = json.loads(judge.seen[-1]["messages"][1]["content"].splitlines()[0])
    assert sorted(shown) == ["answer", "question", "reference_answers"]


def test_rows_that_need_a_judge_are_refused_without_one(flags, tmp_path):
    argv = flags(**TRAINING, output_dir=tmp_path / "run")
    at = argv.index("--judge_model")
    with pytest.raises(InputError, match="asks a judge, and none is named; give --judge_url"):
        grpo_jsonl.main(argv[:at])
    assert not (tmp_path / "run").exists()


def test_a_judge_that_is_down_is_refused_before_the_model_is_loaded(server, flags, tmp_path):
    argv = flags(**TRAINING, judge_url="http://127.0.0.1:9/v1", output_dir=tmp_path / "run")
    with pytest.raises(InputError, match="http://127.0.0.1:9/v1 gives no verdict: no connection"):
        grpo_jsonl.main(argv)


def test_evaluation_asks_again_where_the_judge_gave_no_verdict(server, flags, tmp_path, capsys):
    down = server(lambda number, row: "correct" if number == 1 else (500, {}, {"error": "later"}))
    folder = tmp_path / "evaluation"
    evaluation = {"output_dir": folder, "max_new_tokens": 6, "batch_size": 8}
    summary = evaluate_jsonl.main(flags(**evaluation, judge_url=down.url))
    assert summary["splits"]["all"]["accuracy"] is None
    assert "the judge gave no verdict on 8 of 8 answers" in capsys.readouterr().out
    before = [json.loads(line)["prediction"] for line in (folder / "predictions.jsonl").read_text().splitlines()]

    up = server(has_vowel)
    with pytest.raises(InputError, match="judge_url"):
        evaluate_jsonl.main(flags(**evaluation, judge_url=up.url))
    down.act = has_vowel
    summary = evaluate_jsonl.main(flags(**evaluation, judge_url=down.url))
    records = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records] == before  # nothing was answered again
    wanted = [float("a" in record["answer_lenient"]) for record in records if record["answer_lenient"]]
    assert [record["correct_lenient"] for record in records if record["answer_lenient"]] == wanted
    assert summary["splits"]["all"]["accuracy"] == pytest.approx(sum(wanted) / 8)
