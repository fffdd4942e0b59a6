"""The GRPO loop on tiny random models of every family, for real: generation, rewards, loss, optimizer."""

import pandas as pd
import pytest
import torch
from datasets import Dataset
from grpo_run import config, losses, make_trainer, vowels, weights
from tiny import FAMILIES
from training_rows import write_data
from transformers import AutoModelForImageTextToText
from trl import GRPOTrainer

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
from open_r1_kivqa.vlm_modules.loading import load_processor

TWO = ["qwen2_5_vl", "internvl"]


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


@pytest.mark.parametrize("family", TWO)
def test_without_a_rollout_the_run_equals_the_stock_trainer_bit_for_bit(family, tiny_model, tmp_path, flags):
    picture = flags["image_folders"] + "/France-0.png"
    prompts = [
        [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": f"What? {i}"}]}]
        for i in range(8)
    ]
    runs = []
    for number, kind in enumerate([GRPOTrainer, VLMGRPOTrainer]):
        model = AutoModelForImageTextToText.from_pretrained(tiny_model(family), dtype=torch.float32)
        args = config(tmp_path / str(number), beta=0.1, max_steps=3, per_device_train_batch_size=2, num_iterations=2)
        trainer = kind(
            model,
            [vowels],
            args,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=load_processor(tiny_model(family)),
        )
        trainer.train()
        runs.append((losses(trainer), weights(trainer)))
    assert runs[0][0] == runs[1][0]
    assert any(loss != 0 for loss in runs[0][0])
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_loop_over_rows_with_one_two_and_no_image(family, lora, tiny_model, tmp_path, flags):
    """beta > 0, so the reference pass runs too; every part of the model learns in full training."""
    model_flags = {"use_peft": True, "lora_r": 4} if lora else {}
    trainer = make_trainer(
        tiny_model(family), flags, config(tmp_path / "run", beta=0.1, max_steps=4, temperature=1.0), model_flags
    )
    before = weights(trainer)
    trainer.train()
    assert len(losses(trainer)) == 4 and all(map(torch.isfinite, torch.tensor(losses(trainer))))
    after = weights(trainer)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    if lora:
        assert changed and all("lora" in name for name in changed)
    else:
        assert any("visual" in name or "vision" in name for name in changed)
        assert any("language_model" in name for name in changed)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_each_row_equal_those_of_the_row_alone(family, tiny_model, tmp_path, flags):
    """One image, two, none; in one batch, and in chunks of which some have no image at all."""
    trainer = make_trainer(tiny_model(family), flags, config(tmp_path / "run", per_device_train_batch_size=8))
    trainer.model.eval()
    inputs = [{"row": number} for number in (0, 0, 1, 1, 2, 2, 5, 5)]  # 1, 2, 0 and 0 images
    batch = trainer._generate_and_score_completions(inputs)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    keep = batch["completion_ids"].size(1)
    assert batch["num_images"] == [1, 1, 2, 2, 0, 0, 0, 0]
    keys = ("pixel_values", "image_grid_thw", "num_images", "num_tiles", "mm_token_type_ids", "token_type_ids")
    vision = {key: batch[key] for key in keys if key in batch}

    def logps(batch_size):
        with torch.no_grad():
            values, entropies, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, keep, batch_size, compute_entropy=True, **vision
            )
        assert values.shape == entropies.shape == (8, keep)
        return values * batch["completion_mask"]

    alone = logps(1)
    for batch_size in (2, 3, 4, 8):
        torch.testing.assert_close(logps(batch_size), alone, rtol=0, atol=1e-5)


def test_a_micro_batch_without_any_image_trains(tiny_model, tmp_path):
    flags = write_data(tmp_path / "data", kinds="00000001")
    for family in TWO:
        trainer = make_trainer(tiny_model(family), flags, config(tmp_path / family, max_steps=4))
        trainer.train()
        assert len(losses(trainer)) == 4


def test_the_table_of_completions_names_row_images_passages_and_level(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", log_completions=True, num_completions_to_print=0, logging_steps=1, max_steps=1)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
    trainer.train()
    table = pd.read_parquet(next((tmp_path / "run" / "completions").glob("*.parquet")))
    assert len(table) == 4
    for _, row in table.iterrows():
        sample = trainer.rollout.rows[trainer.rollout.rows.index_of(row["sample_id"])]
        assert list(row["image_path"]) == list(sample.images)
        image = "<image>" * len(sample.images)
        assert row["prompt"].startswith(f"user: {image}") and row["prompt"].endswith(sample.question)
        assert isinstance(row["completion"], str)
        assert row["level"] == "retrieved" and len(row["passages"]) <= 2 and "vowels" in row


def test_rewards_see_the_row(tiny_model, tmp_path, flags):
    seen = []

    def looks(prompts, completions, sample, solution, image_path, sample_id, **kwargs):
        seen.extend(zip(sample, solution, image_path, sample_id, strict=True))
        return [None] * len(prompts) if len(seen) < 5 else [1.0] * len(prompts)

    trainer = make_trainer(
        tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run", max_steps=2), reward_funcs=[vowels, looks]
    )
    trainer.train()
    assert len(seen) == 8
    for sample, solution, image_path, sample_id in seen:
        assert sample.id == sample_id and solution == "yes" and image_path == list(sample.images)


@pytest.mark.parametrize("family", TWO)
def test_a_frozen_vision_tower_does_not_move(family, tiny_model, tmp_path, flags):
    trainer = make_trainer(
        tiny_model(family), flags, config(tmp_path / "run", max_steps=2), {"freeze_vision_modules": True}
    )
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    from open_r1_kivqa.vlm_modules import module_for

    module = module_for(trainer.model.config)
    moved = {module.parameter_part(name) for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"projector", "language"}


def test_a_head_that_is_the_embedding_too_is_not_cast(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", cast_lm_head_to_fp32=True)
    with pytest.raises(InputError, match="--cast_lm_head_to_fp32 needs an output head of its own"):
        make_trainer(tiny_model("qwen2_5_vl"), flags, args)


def test_the_table_of_completions_is_printed_once_a_step(tiny_model, tmp_path, flags, capsys):
    """Not again with the figures of an evaluation, nor with those of the run at its end."""
    args = config(tmp_path / "run", log_completions=True, num_completions_to_print=1, logging_steps=1, max_steps=2)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
    trainer.train()
    trainer.log({"eval_accuracy": 0.5})
    out = capsys.readouterr().out
    assert out.count(" Step 1 ") == out.count(" Step 2 ") == 1
    assert trainer.state.log_history[-1]["eval_accuracy"] == 0.5
