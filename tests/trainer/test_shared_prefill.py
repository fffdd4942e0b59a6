"""Generation with each prompt computed once: the tokens that plain generation makes."""

import pytest
import torch
from grpo_run import config, make_trainer
from training_rows import write_data

from open_r1_kivqa.trainer.rollout import ROW
from open_r1_kivqa.trainer.shared_prefill import from_shared_prompts

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")


@pytest.fixture(scope="module", params=FAMILIES)
def trainer(request, tiny_model, tmp_path_factory):
    """On eight rows with none to two images."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = write_data(folder / "data", kinds="12010020")
    args = config(folder / "run", per_device_train_batch_size=8, num_generations=4, max_completion_length=12)
    return make_trainer(tiny_model(request.param), flags, args)


def completions(trainer, rows: list[int], shares: bool, sample: bool) -> list[list[int]]:
    """What the trainer generates for these rows of the data."""
    prompts = [entry["prompt"] for entry in trainer.rollout.build([{ROW: row} for row in rows], rows)]
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    trainer.shares_prefill = shares
    trainer.generation_config.do_sample = sample
    torch.manual_seed(3)
    return trainer._generate_single_turn(prompt_ids, images, fields, 4)[0]


@pytest.mark.parametrize(
    "rows", [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 6, 6, 6, 6], [2, 2, 4, 4], [0, 1, 2, 3], [3, 0, 3, 6, 0]]
)
def test_tokens_are_those_of_plain_generation(trainer, rows):
    """Greedy and sampled: one image and two, rows without, none with, no two alike, and groups that don't lie together. Sampling draws the same random numbers."""
    for sample in (False, True):
        shared = completions(trainer, rows, True, sample)
        assert shared == completions(trainer, rows, False, sample)
    assert len({tuple(ids) for ids in shared}) > 1  # sampled


def test_each_prompt_is_run_once(trainer):
    """Two prompts of four rows each: the model first sees two rows, then single tokens of eight."""
    seen = []
    model = trainer.model

    def watch(module, args, kwargs):
        seen.append(
            tuple((kwargs.get("inputs_embeds") if kwargs.get("input_ids") is None else kwargs["input_ids"]).shape[:2])
        )

    hook = model.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        completions(trainer, [0, 0, 0, 0, 1, 1, 1, 1], True, True)
    finally:
        hook.remove()
    assert seen[0][0] == 2 and seen[0][1] > 10
    assert set(seen[1:]) == {(8, 1)}


def test_a_run_has_the_same_losses_with_and_without(tiny_model, tmp_path):
    flags = write_data(tmp_path / "data", kinds="12010020")
    runs = []
    for shares in (True, False):
        args = config(
            tmp_path / f"{shares}",
            per_device_train_batch_size=8,
            num_generations=4,
            max_steps=3,
            logging_steps=1,
            shared_prefill=shares,
        )
        trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
        trainer.train()
        runs.append(
            [
                (entry["loss"], entry["reward"], entry["entropy"])
                for entry in trainer.state.log_history
                if "loss" in entry
            ]
        )
    assert len(runs[0]) == 3
    for ours, stock in zip(*runs, strict=True):
        assert ours == pytest.approx(stock, rel=1e-4, abs=1e-6)


def test_the_model_is_left_as_it_was(trainer):
    completions(trainer, [0, 0, 1, 1], True, False)
    assert "generate" not in vars(trainer.model) and callable(from_shared_prompts)
