"""Drawing further prompts until a batch is full of groups that teach."""

import json

import pandas as pd
import pytest
import torch
from grpo_run import config, losses, make_trainer, vowels, weights
from training_rows import write_data

from open_r1_kivqa.trainer.dynamic_sampling import has_advantage

MODEL = "qwen2_5_vl"
FLAT = ("france", "germany", "italy", "spain", "norway")  # rows whose completions all get the same
NAN = float("nan")


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


def by_row(prompts, completions, sample_id, **kwargs):
    """Rows of FLAT never teach; of the others every second completion is right."""
    return [0.0 if id in FLAT else float(place % 2) for place, id in enumerate(sample_id)]


def varied(prompts, completions, **kwargs):
    return [float(place) for place in range(len(prompts))]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_where_every_group_teaches_the_run_is_the_same_bit_for_bit(family, tiny_model, tmp_path, flags):
    """What is generated once and handed to the stock method gives what the stock method makes itself; rows with one, two and no image."""
    runs = []
    for rounds in (1, 4):
        args = config(tmp_path / str(rounds), max_steps=4, beta=0.1, num_iterations=2, log_completions=True)
        args.num_completions_to_print = 0
        trainer = make_trainer(
            tiny_model(family), flags, args, reward_funcs=[varied], curriculum={"dynamic_sampling_rounds": rounds}
        )
        trainer.train()
        tables = [pd.read_parquet(path) for path in sorted((tmp_path / str(rounds) / "completions").glob("*.parquet"))]
        runs.append((losses(trainer), weights(trainer), pd.concat(tables)))
    assert runs[0][0] == runs[1][0] and any(runs[0][0])
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())
    pd.testing.assert_frame_equal(runs[0][2], runs[1][2])


def test_groups_that_do_not_teach_make_room_and_are_observed_all_the_same(tiny_model, tmp_path, flags):
    args = config(
        tmp_path / "run",
        max_steps=6,
        log_completions=True,
        num_completions_to_print=0,
        logging_steps=1,
        max_grad_norm=0.0,
    )
    options = {
        "dynamic_sampling_rounds": 8,
        "curriculum_weighting": "uniform",
        "curriculum_levels": "",
        "curriculum_max_draws": 8,
    }
    trainer = make_trainer(tiny_model(MODEL), flags, args, reward_funcs=[by_row], curriculum=options)
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "frac_reward_zero_std" in entry]
    assert [entry["frac_reward_zero_std"] for entry in history] == [0] * 6
    assert all(entry["loss"] != 0 or entry["grad_norm"] != 0 for entry in history)
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "run" / "completions").glob("*.parquet"))]
    for table in tables:
        assert len(table) == 4 and not set(table["sample_id"]) & set(FLAT)
        assert table["sample_id"].nunique() == 2
        for _, row in table.iterrows():  # each column moved with its row
            sample = trainer.rollout.rows[trainer.rollout.rows.index_of(row["sample_id"])]
            assert list(row["image_path"]) == list(sample.images) and sample.question in str(row["prompt"])
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "curriculum" / "observations.jsonl").read_text().splitlines()
    ]
    rounds = sum(entry["dynamic_sampling/rounds"] for entry in history)
    assert len(lines) == 2 * rounds > 12  # every draw was seen, the discarded ones too
    assert {line["id"] for line in lines} & set(FLAT)
    for step in range(6):  # and no row twice for a batch
        drawn = [line["id"] for line in lines if line["step"] == step]
        assert len(drawn) == len(set(drawn))
    assert trainer.rollout.draws.sum() == len(lines) and trainer.curriculum.drawer.number == rounds


def test_after_the_last_round_the_batch_is_filled_with_what_there_is(tiny_model, tmp_path, flags):
    def never(prompts, completions, **kwargs):
        return [0.0] * len(prompts)

    args = config(tmp_path / "run", max_steps=2, logging_steps=1)
    trainer = make_trainer(
        tiny_model(MODEL), flags, args, reward_funcs=[never], curriculum={"dynamic_sampling_rounds": 3}
    )
    trainer.train()
    assert len(losses(trainer)) == 2
    history = [entry for entry in trainer.state.log_history if "dynamic_sampling/rounds" in entry]
    assert [(entry["dynamic_sampling/rounds"], entry["dynamic_sampling/teaching_share"]) for entry in history] == [
        (3, 0)
    ] * 2
    assert trainer.curriculum.difficulty.rollouts.sum() == 2 * 3 * 4


def test_tokens_of_discarded_completions_count(tiny_model, tmp_path, flags):
    counts = []
    for rounds in (1, 3):
        args = config(tmp_path / str(rounds), max_steps=1)
        trainer = make_trainer(
            tiny_model(MODEL),
            flags,
            args,
            reward_funcs=[lambda prompts, completions, **kwargs: [0.0] * len(prompts)],
            curriculum={"dynamic_sampling_rounds": rounds},
        )
        trainer.train()
        counts.append(trainer.state.num_input_tokens_seen)
    assert counts[1] > 2 * counts[0]


def test_which_groups_have_an_advantage():
    rewards = torch.tensor(
        [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [NAN, 1.0], [NAN, 2.0], [NAN, NAN], [NAN, NAN]]
    )
    equal, doubled = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 1.0])
    # The first group's sums are equal under equal weights, and normalised one by one they are not.
    assert has_advantage(rewards, equal, 2, "sum_then_normalize").tolist() == [False, False, True, False]
    assert has_advantage(rewards, doubled, 2, "sum_then_normalize").tolist() == [True, False, True, False]
    assert has_advantage(rewards, equal, 2, "normalize_then_sum").tolist() == [True, False, True, False]
    assert has_advantage(torch.tensor([[1.0], [NAN]]), torch.tensor([1.0]), 2, "sum_then_normalize").tolist() == [False]


def test_the_reward_of_a_real_policy_is_used(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", max_steps=3)
    trainer = make_trainer(
        tiny_model(MODEL), flags, args, reward_funcs=[vowels], curriculum={"dynamic_sampling_rounds": 2}
    )
    before = weights(trainer)
    trainer.train()
    assert any(not torch.equal(value, weights(trainer)[name]) for name, value in before.items())
