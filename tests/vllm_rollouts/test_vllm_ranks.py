"""Two ranks by torchrun, with an engine in each process, on rows of which one rank's part may have no image."""

import json
from pathlib import Path

import pytest
from launch import run_ranks
from training_rows import write_data

WORKER = Path(__file__).with_name("vllm_worker.py")
ZERO3 = str(Path(__file__).parents[2] / "local_scripts" / "zero3.json")
LORA = {"use_peft": True, "lora_r": 4, "lora_dropout": 0.0}


@pytest.mark.parametrize(
    ("family", "deepspeed", "model_flags", "options"),
    [
        ("qwen2_5_vl", None, {}, {}),
        ("qwen2_5_vl", ZERO3, {}, {}),
        ("internvl", ZERO3, LORA, {}),
        ("qwen2_5_vl", None, {}, {"vllm_tensor_parallel_size": 2}),
    ],
    ids=["plain", "zero3", "zero3-lora", "tensor-parallel"],
)
def test_engines_follow_their_ranks(family, deepspeed, model_flags, options, tiny_model, tmp_path):
    options = {
        "max_steps": 3,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        **options,
    }
    job = {
        "model": tiny_model(family),
        "flags": write_data(tmp_path / "data", kinds="12000021"),
        "output_dir": str(tmp_path / "run"),
        "deepspeed": deepspeed,
        "model_flags": model_flags,
        "options": options,
    }
    run_ranks(WORKER, json.dumps(job), timeout=900)
    log = json.loads((tmp_path / "run" / "log.json").read_text())
    gaps = [entry["sampling/sampling_logp_difference/max"] for entry in log if "loss" in entry]
    assert len(gaps) == 3 and max(gaps) < 1e-3
    assert any(entry["grad_norm"] > 0 for entry in log if "loss" in entry)  # so the weights have moved in between
