"""The curriculum on two ranks: the same draws, prompts and losses as in one process with the same global batch, and the same again after a resume."""

import json
from pathlib import Path

import pytest
import torch
from grpo_run import write_ring
from launch import fork_ranks
from training_rows import write_data

pytestmark = pytest.mark.distributed

WORKER = Path(__file__).with_name("worker.py")
CONFIGS = Path(__file__).parents[2] / "local_scripts"
STEPS = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1}  # two steps an epoch


@pytest.fixture(scope="module")
def job(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("curriculum")
    flags = write_data(folder / "data", kinds="12000021")
    return {
        "model": tiny_model("qwen2_5_vl"),
        "flags": flags,
        "options": STEPS,
        "curriculum": {
            "curriculum_graph": write_ring(flags, folder / "ring.npz"),
            "curriculum_levels": "1,2,retrieved",
            "curriculum_threshold": 0.1,
            "curriculum_max_draws": 8,
        },
    }


def train(folder: Path, *, ranks: int, **job) -> dict:
    fork_ranks(WORKER, json.dumps({"output_dir": str(folder), **job}), ranks=ranks)
    return torch.load(folder / "record.pt", weights_only=True)


@pytest.mark.parametrize(("redrawn", "stage"), [(False, "zero2"), (True, "zero3")], ids=["drawn", "redrawn"])
def test_two_ranks_draw_and_learn_as_one_process(redrawn, stage, job, tmp_path):
    """With dynamic sampling groups move between the ranks."""
    deepspeed = str(CONFIGS / f"{stage}.json")
    if redrawn:
        job = job | {"reward": "by_row", "curriculum": job["curriculum"] | {"dynamic_sampling_rounds": 3}}
    one = train(tmp_path / "one", ranks=1, **job)
    two = train(tmp_path / "two", ranks=2, deepspeed=deepspeed, **job)
    assert two["observed"] == one["observed"] and two["draws"] == one["draws"]
    assert len({line["level"] for line in one["observed"]}) > 1
    torch.testing.assert_close(torch.tensor(two["losses"]), torch.tensor(one["losses"]), rtol=1e-4, atol=1e-7)
    if not redrawn:
        return
    assert len(one["observed"]) > 5 * 4  # more than a batch for each step
    resumed = train(
        tmp_path / "two", ranks=2, deepspeed=deepspeed, resume=str(tmp_path / "two" / "checkpoint-3"), **job
    )
    assert resumed["losses"] == two["losses"] and resumed["observed"] == two["observed"]
    for name, weight in two["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name
