"""Generation with each prompt computed once: the tokens that plain generation makes."""

import json
import shutil

import pytest
import torch
from grpo_run import config, make_trainer
from training_rows import write_data

from open_r1_kivqa.trainer.rollout import ROW

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
    assert "generate" not in vars(trainer.model)


OWN_STARTS = {
    "cache": ({"cache_implementation": "static"}, {}, "a cache of its own kind (static)"),
    "beams": ({"generation_kwargs": {"num_beams": 2}}, {}, "several sequences of each row"),
    "no cache": ({"generation_kwargs": {"use_cache": False}}, {}, "it keeps no cache"),
    "a checkpoint's own": ({}, {"use_cache": False}, "it keeps no cache"),
}


@pytest.mark.parametrize("kind", OWN_STARTS)
def test_generation_that_lays_out_its_own_start_is_left_alone_and_told(kind, tiny_model, tmp_path, capsys):
    """Settings under which `generate` would refuse keys and values or, without a cache, make others of them."""
    options, of_checkpoint, why = OWN_STARTS[kind]
    model = shutil.copytree(tiny_model("qwen2_5_vl"), tmp_path / "model")
    settings = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(settings | of_checkpoint))
    flags = write_data(tmp_path / "data", kinds="12010020")
    args = config(tmp_path / "run", per_device_train_batch_size=8, num_generations=4, **options)
    trainer = make_trainer(str(model), flags, args)
    told = capsys.readouterr().out
    assert told.count("(--shared_prefill has no effect)") == 1 and why in told
    assert not trainer.shares_prefill
    rows = [0, 0, 0, 0, 2, 2, 2, 2]
    assert len(completions(trainer, rows, trainer.shares_prefill, sample=False)) == 8


def test_a_compiled_model_is_found_inside_its_wrapper(tiny_model, tmp_path):
    """accelerate keeps torch.compile's wrapper, which has no `generate` of its own."""
    flags = write_data(tmp_path / "data", kinds="1000")
    args = config(tmp_path / "run", max_steps=1, torch_compile=True, torch_compile_backend="eager")
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
    trainer.train()
    assert trainer.shares_prefill and trainer.state.global_step == 1
