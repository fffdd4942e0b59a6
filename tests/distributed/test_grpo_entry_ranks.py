"""The GRPO entry under torchrun: two ranks, ZeRO-3, checks on rank 0, greedy evaluation on both, resume, bad input."""

import json
from pathlib import Path

import pytest
import torch
from launch import fork_ranks, run_ranks
from sft_run import with_responses
from training_rows import write_data

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "src" / "open_r1_kivqa" / "grpo_jsonl.py"


@pytest.fixture
def flags(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    given = {
        "model_name_or_path": tiny_model("qwen2_5_vl"),
        **write_data(tmp_path / "data"),
        "output_dir": str(tmp_path / "run"),
        "deepspeed": str(ROOT / "local_scripts" / "zero3.json"),
        "use_cpu": "true",
        "bf16": "false",
        "gradient_checkpointing": "false",
        "per_device_train_batch_size": "2",
        "num_generations": "2",
        "max_completion_length": "6",
        "report_to": "none",
        "val_split_ratio": "0.4",
        "eval_steps": "2",
        "save_steps": "2",
        "max_steps": "2",
    }
    return lambda **more: [part for name, value in {**given, **more}.items() for part in (f"--{name}", value)]


def test_train_evaluate_and_resume(flags, tmp_path):
    done = run_ranks(ENTRY, *flags())
    assert done.stdout.count("Checked 8 rows") == 1  # rank 0 checks, the other reads its verdict
    assert done.stdout.count("4 completions a step = 2 prompts x 2") == 1
    run = tmp_path / "run"
    predictions = [json.loads(line) for line in (run / "evaluation" / "step-2.jsonl").read_text().splitlines()]
    assert len({record["id"] for record in predictions}) == len(predictions) >= 3
    assert json.loads((run / "checkpoint-2" / "complete.json").read_text())["resumable"]
    fork_ranks(ENTRY, *flags(resume_from_checkpoint="true", max_steps="4"))
    history = json.loads((run / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4]


def test_bad_input_ends_both_ranks_with_one_message(flags, tmp_path):
    with open(tmp_path / "data" / "rows.jsonl", "a") as file:
        file.write("{not json\n")
    done = run_ranks(ENTRY, *flags(), check=False, timeout=120)
    assert done.returncode != 0
    # torchrun's own traceback about its children comes after ours.
    assert "rows.jsonl" in done.stderr and 'grpo_jsonl.py", line' not in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_rank_0_alone_can_refuse_ends_both_ranks(flags, tmp_path):
    """Only rank 0 reads the graph; the other must not run into a traceback of its own while it waits."""
    more = {"curriculum": "true", "curriculum_levels": "1,2", "curriculum_window": "2"}
    graph = str(tmp_path / "data" / "wiki.jsonl")
    done = fork_ranks(ENTRY, *flags(**more, curriculum_graph=graph), check=False, timeout=120)
    assert done.returncode == 2
    assert f"{graph} is no .npz file" in done.stderr and 'grpo_jsonl.py", line' not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="ranks are joined on GPUs")
@pytest.mark.parametrize("entry", ["grpo_jsonl", "sft_jsonl"])
def test_ranks_that_transformers_would_not_join_are_refused(entry, tiny_model, tmp_path):
    """Without GPU, DeepSpeed and --use_cpu each rank would train a model of its own and write it where the other does."""
    rows = with_responses(write_data(tmp_path / "data"))
    given = {"model_name_or_path": tiny_model("qwen2_5_vl"), **rows, "output_dir": str(tmp_path / "run")}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    done = fork_ranks(ENTRY.with_name(f"{entry}.py"), *words, "--bf16", "false", check=False, timeout=120)
    assert done.returncode == 2 and "add --use_cpu true to train on CPUs" in done.stderr
    assert not (tmp_path / "run").exists()
