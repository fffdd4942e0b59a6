"""Two ranks under torchrun and DeepSpeed on the CPU against one plain process: same losses, gradients, weights."""

import json
from pathlib import Path

import pytest
import torch
from launch import fork_ranks
from training_rows import write_data
from transformers import AutoModelForImageTextToText

pytestmark = pytest.mark.distributed

WORKER = Path(__file__).with_name("worker.py")
CONFIGS = Path(__file__).parents[2] / "local_scripts"
EPOCH = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1}


def train(folder: Path, *, ranks: int, **job) -> dict:
    job = {"output_dir": str(folder), **job}
    fork_ranks(WORKER, json.dumps(job), ranks=ranks)
    return torch.load(folder / "record.pt", weights_only=True)


def assert_close(run: dict, reference: dict, tolerance: float = 1e-4) -> None:
    """Losses one by one; gradients of every step and weights, each relative to its own norm."""
    torch.testing.assert_close(
        torch.tensor(run["losses"]), torch.tensor(reference["losses"]), rtol=tolerance, atol=1e-7
    )
    assert len(run["gradients"]) == len(reference["gradients"]) > 0
    for got, wanted in zip(run["gradients"], reference["gradients"], strict=True):
        assert got.keys() == wanted.keys()
        total = torch.cat([gradient.flatten() for gradient in wanted.values()]).norm()
        for name in wanted:
            error = (got[name] - wanted[name]).norm()
            assert error <= tolerance * max(wanted[name].norm(), 1e-3 * total), (name, error, wanted[name].norm())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows ordered so that, without shuffling, a rank's part of a batch has no image while the other's has some."""
    return write_data(tmp_path_factory.mktemp("mixed") / "data", kinds="12000021")


@pytest.fixture(scope="module", params=["qwen2_5_vl", "internvl"])
def reference(request, tiny_model, data, tmp_path_factory):
    """One plain process, unbroken, with TRL's own pass; the ranks compute each prompt once."""
    job = {"model": tiny_model(request.param), "flags": data, "options": EPOCH, "shuffle": False}
    stock = job | {"options": EPOCH | {"shared_prefix": False, "keep_groups": True}}
    return job, train(tmp_path_factory.mktemp("one"), ranks=1, **stock)


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_two_ranks_match_one_process_and_resume(stage, reference, tmp_path):
    job, wanted = reference
    run = train(tmp_path / "run", ranks=2, deepspeed=str(CONFIGS / f"{stage}.json"), **job)
    assert_close(run, wanted)
    assert run["draws"] == wanted["draws"]

    # The saved model is whole and loads in plain transformers.
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "run" / "final", dtype=torch.float32)
    for name, parameter in saved.named_parameters():
        torch.testing.assert_close(parameter, run["weights"][name], rtol=0, atol=0)

    if stage == "zero3":
        resumed = train(
            tmp_path / "run",
            ranks=2,
            deepspeed=str(CONFIGS / "zero3.json"),
            resume=str(tmp_path / "run" / "checkpoint-2"),
            **job,
        )
        assert resumed["losses"] == run["losses"]
        for name, weight in run["weights"].items():
            assert torch.equal(resumed["weights"][name], weight), name


PLAIN = {
    "one pass": {},
    "checkpointing": {"gradient_checkpointing": True},
    "many passes": {"shared_prefix_max_tokens": 60},
    "stock passes": {"shared_prefix": False, "keep_groups": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("kind", PLAIN)
def test_two_ranks_without_deepspeed_match_one_process(kind, reference, tmp_path):
    """DDP waits for each weight's gradient, once, and sends buffers in each pass: ranks without images and with fewer passes keep up."""
    job, wanted = reference
    run = train(tmp_path / "run", ranks=2, **job | {"options": EPOCH | PLAIN[kind]})
    assert_close(run, wanted)


def test_lora_on_two_ranks_trains_and_resumes(tiny_model, data, tmp_path):
    job = {
        "model": tiny_model("qwen2_5_vl"),
        "flags": data,
        "options": EPOCH,
        "model_flags": {"use_peft": True, "lora_r": 4},
        "deepspeed": str(CONFIGS / "zero3.json"),
    }
    run = train(tmp_path / "run", ranks=2, **job)
    resumed = train(tmp_path / "run", ranks=2, resume=str(tmp_path / "run" / "checkpoint-2"), **job)
    assert resumed["losses"] == run["losses"]
    for name, weight in run["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name


def test_stages_whose_groups_span_the_ranks_match_one_process(tiny_model, tmp_path):
    """A group of 8 over two ranks, then of 4: each rank keeps two of its four."""
    data = write_data(tmp_path / "data", kinds="11111111")
    stages = {"ptst": "2:6:8,2:6:4", "num_generations": 8}
    job = {"model": tiny_model("qwen2_5_vl"), "flags": data, "options": EPOCH | stages, "shuffle": False}
    wanted = train(tmp_path / "one", ranks=1, **job)
    run = train(tmp_path / "two", ranks=2, deepspeed=str(CONFIGS / "zero3.json"), **job)
    assert_close(run, wanted)
    assert run["draws"] == wanted["draws"] and sum(run["draws"]) == 4
