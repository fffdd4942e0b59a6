"""The way of docs/vision_r1_walkthrough.md in small: bridging, cold start, stages with the reward for form and answer, evaluation."""

import json

import pytest
from cold_start.scripted_endpoint import Script, mixed, serving

from open_r1_kivqa import cli, evaluate_jsonl, grpo_jsonl, sft_jsonl
from open_r1_kivqa.demo import CHECKPOINT, IMAGES, KNOWLEDGE, TRAIN

ROWS = 24


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of training and evaluation on a CPU, given the model, the data and the output folder."""
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    shown = {"image_folders": IMAGES, "knowledge_base": KNOWLEDGE, "task_type": "factbook"}
    names = ("model_name_or_path", "data_file_paths", "output_dir")

    def make(model, data, folder, **more) -> list[str]:
        given = dict(zip(names, (model, data, tmp_path / folder), strict=True)) | shown | more
        return [part for name, value in given.items() for part in (f"--{name}", str(value))]

    return make


TRAINING = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
}


def test_from_pictures_to_scores(flags, tmp_path):
    lines = TRAIN.read_text(encoding="utf-8").splitlines()[:ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    script = Script([json.loads(line) for line in lines], str(IMAGES))
    script.respond, script.quotes = mixed, True
    with serving() as serve:
        bridge = {
            "data_file_paths": tmp_path / "rows.jsonl",
            "image_folders": IMAGES,
            "knowledge_base": KNOWLEDGE,
            "mllm_url": serve(script).url,
            "mllm_model": "eyes",
            "reasoner_model": "brain",
            "output": tmp_path / "cold_start.jsonl",
        }
        words = [part for name, value in bridge.items() for part in (f"--{name}", str(value))]
        assert cli.main(["bridge", *words, "--max_failed_share", "0"]) == 0
    kept = [json.loads(line) for line in (tmp_path / "cold_start.jsonl").read_text(encoding="utf-8").splitlines()]
    report = json.loads((tmp_path / "cold_start.report.json").read_text())
    assert 0 < len(kept) < ROWS and len(kept) == report["outcomes"]["kept"]["count"]

    sft = sft_jsonl.main(
        flags(CHECKPOINT, tmp_path / "cold_start.jsonl", "sft", max_steps=2, per_device_train_batch_size=4, **TRAINING)
    )
    assert sft.state.global_step == 2

    stages = {"ptst": "1:12:4,1:24:2", "per_device_train_batch_size": 8, "reward_funcs": "hard_format"}
    grpo = grpo_jsonl.main(flags(tmp_path / "sft", tmp_path / "rows.jsonl", "grpo", **stages, **TRAINING))
    logs = [entry for entry in grpo.state.log_history if "loss" in entry]
    assert [entry["stage"] for entry in logs] == [1, 2] and "rewards/hard_format/mean" in logs[0]

    summary = evaluate_jsonl.main(
        flags(tmp_path / "grpo", tmp_path / "rows.jsonl", "evaluation", limit=8, max_new_tokens=24)
    )
    (scores,) = summary["splits"].values()
    assert scores["n"] == 8 and 0 <= scores["accuracy"] <= 1
