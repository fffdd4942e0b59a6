"""Supervised training on two ranks under DeepSpeed, on the CPU, against one plain process."""

import json
from pathlib import Path

import pytest
import torch
from launch import fork_ranks
from sft_run import with_responses
from training_rows import write_data

pytestmark = pytest.mark.distributed

WORKER = Path(__file__).with_name("sft_worker.py")
ZERO3 = str(Path(__file__).parents[2] / "local_scripts" / "zero3.json")


def train(folder: Path, *, ranks: int, **job) -> dict:
    job = {"output_dir": str(folder), **job}
    fork_ranks(WORKER, json.dumps(job), ranks=ranks)
    return torch.load(folder / "record.pt", weights_only=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Read in order, the first rank's half of the batch has images and the second rank's has none."""
    return with_responses(write_data(tmp_path_factory.mktemp("mixed") / "data", kinds="12010000"))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_zero3_matches_one_process_where_a_rank_has_no_image(family, tiny_model, data, tmp_path):
    job = {"model": tiny_model(family), "flags": data, "options": {"max_steps": 2}}
    one = train(tmp_path / "one", ranks=1, **job)
    two = train(tmp_path / "two", ranks=2, deepspeed=ZERO3, **job)
    torch.testing.assert_close(torch.tensor(two["losses"]), torch.tensor(one["losses"]), rtol=1e-4, atol=0)
    # transformers averages evaluation losses over batches, which hold other rows on two ranks
    torch.testing.assert_close(torch.tensor(two["eval_losses"]), torch.tensor(one["eval_losses"]), rtol=1e-2, atol=0)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-4, atol=1e-5, msg=name)


def test_zero3_resumes_inside_the_second_epoch(tiny_model, data, tmp_path):
    """Eight rows, four a step, shuffled: the checkpoint of step 3 lies in the middle of epoch 1."""
    job = {
        "model": tiny_model("qwen2_5_vl"),
        "flags": data,
        "options": {"max_steps": 5},
        "rows_a_step": 4,
        "shuffle": True,
        "deepspeed": ZERO3,
    }
    run = train(tmp_path / "run", ranks=2, **job)
    resumed = train(tmp_path / "run", ranks=2, resume=str(tmp_path / "run" / "checkpoint-3"), **job)
    assert resumed["losses"] == run["losses"]
    for name, weight in run["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name
