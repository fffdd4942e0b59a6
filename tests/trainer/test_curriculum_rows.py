"""The curriculum in training, for real: what is drawn, shown, observed and logged, and that a resumed run goes on the same."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from grpo_run import config, losses, make_trainer, vowels, weights, write_ring
from training_rows import write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.curriculum_rows import signal

MODEL = "qwen2_5_vl"
NAN = np.nan


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


def observations(folder):
    lines = (folder / "curriculum" / "observations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def always(value):
    """A reward that gives every completion the same."""

    def reward(prompts, completions, **kwargs):
        return [value] * len(prompts)

    return reward


def test_a_batch_has_different_rows_in_whole_groups_and_every_rollout_is_observed(tiny_model, tmp_path, flags):
    seen = []

    def keep(prompts, completions, sample_id, **kwargs):
        values = vowels(prompts, completions)
        seen.append((sample_id, values))
        return values

    args = config(tmp_path / "run", per_device_train_batch_size=8, max_steps=5)
    trainer = make_trainer(tiny_model(MODEL), flags, args, reward_funcs=[keep], curriculum={})
    trainer.train()
    for ids, _ in seen:
        groups = [ids[place : place + 2] for place in range(0, 8, 2)]
        assert all(first == second for first, second in groups) and len({first for first, _ in groups}) == 4
    lines = observations(tmp_path / "run")
    assert [line["id"] for line in lines] == [ids[place] for ids, _ in seen for place in range(0, 8, 2)]
    told = np.array([line["values"] for line in lines])
    made = np.array([values for _, values in seen]).reshape(-1, 2)
    np.testing.assert_allclose(told, made, atol=1e-6)
    assert trainer.curriculum.difficulty.rollouts.sum() == 40
    assert trainer.rollout.draws.sum() == 20
    np.testing.assert_array_equal(2 * trainer.rollout.draws, trainer.curriculum.difficulty.rollouts)


def test_prompts_are_built_at_the_level_of_the_moment(tiny_model, tmp_path, flags):
    """Two prompts a step and a window of four: all right, so promoted after every second step."""
    args = config(tmp_path / "run", max_steps=6, log_completions=True, num_completions_to_print=0, logging_steps=1)
    levels = {"curriculum_levels": "1,2,retrieved", "curriculum_weighting": "uniform"}
    trainer = make_trainer(tiny_model(MODEL), flags, args, reward_funcs=[always(1.0)], curriculum=levels)
    trainer.train()
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "run" / "completions").glob("*.parquet"))]
    assert [set(table["level"]) for table in tables] == [{"1"}, {"1"}, {"2"}, {"2"}, {"retrieved"}, {"retrieved"}]
    for table in tables[:2]:
        assert all(
            list(shown) == [f"{id}#capital"] for id, shown in zip(table["sample_id"], table["passages"], strict=True)
        )
    history = [entry for entry in trainer.state.log_history if "curriculum/level" in entry]
    assert [entry["curriculum/level"] for entry in history] == [0, 1, 1, 2, 2, 2]
    assert all(entry["curriculum/all_1"] == entry["curriculum/zero_advantage_total"] == 1 for entry in history)
    assert all(entry["curriculum/lag"] == 0 for entry in history)


def test_samples_that_teach_are_drawn_more_often(tiny_model, tmp_path, flags):
    """Rows of one half are always right, the others right for every second completion."""

    def reward(prompts, completions, sample_id, **kwargs):
        easy = ("france", "germany", "italy", "spain")
        return [1.0 if id in easy else float(place % 2) for place, id in enumerate(sample_id)]

    args = config(tmp_path / "run", max_steps=40, learning_rate=0.0)
    options = {"curriculum_levels": "", "curriculum_weighting": "teaching", "curriculum_max_draws": 8}
    trainer = make_trainer(tiny_model(MODEL), flags, args, reward_funcs=[reward], curriculum=options)
    trainer.train()
    draws = trainer.rollout.draws
    assert draws[4:].sum() > 1.5 * draws[:4].sum() > 0
    estimate = trainer.curriculum.estimate
    assert estimate.mean[:4].min() > estimate.mean[4:].max()


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_never_run_ahead_of_the_rewards(workers, tiny_model, tmp_path, flags):
    """The loader yields places only, so its workers and its prefetching put nothing behind."""
    args = config(tmp_path / "run", max_steps=6, dataloader_num_workers=workers, logging_steps=1)
    trainer = make_trainer(
        tiny_model(MODEL), flags, args, curriculum={"curriculum_graph": write_ring(flags, tmp_path / "g.npz")}
    )
    seen = []
    draw = trainer.curriculum.draw
    trainer.curriculum.draw = lambda *given: (
        seen.append(trainer.curriculum.difficulty.rollouts.sum()),
        draw(*given),
    )[1]
    trainer.train()
    assert seen == [0, 4, 8, 12, 16, 20]  # all rewards so far were in when a batch was drawn
    assert all(entry.get("curriculum/lag", 0) == 0 for entry in trainer.state.log_history)


def test_the_lag_of_several_generation_batches_in_a_step_is_told(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", max_steps=2, gradient_accumulation_steps=2, steps_per_generation=1, logging_steps=1)
    trainer = make_trainer(tiny_model(MODEL), flags, args, curriculum={})
    trainer.train()
    told = [entry["curriculum/lag"] for entry in trainer.state.log_history if "curriculum/lag" in entry]
    assert told == [1, 1]


RESUMED = {
    "full": ({}, {}),
    "lora": ({"use_peft": True, "lora_r": 4}, {}),
    "redrawn": ({}, {"dynamic_sampling_rounds": 3}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_run_draws_builds_and_learns_the_same(kind, tiny_model, tmp_path, flags):
    """Four steps an epoch: step 2 lies within epoch 0, step 4 at its end, step 6 within epoch 1. Levels move on the way."""
    model_flags, more = RESUMED[kind]
    options = {"max_steps": 9, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1}
    curriculum = {
        "curriculum_graph": write_ring(flags, tmp_path / "ring.npz"),
        "curriculum_levels": "1,2,retrieved",
        "curriculum_threshold": 0.02,
        "curriculum_half_life": 3.0,
        "curriculum_max_draws": 2,
        **more,
    }
    unbroken = make_trainer(
        tiny_model(MODEL), flags, config(tmp_path / "a", **options), model_flags, curriculum=curriculum
    )
    unbroken.train()
    assert unbroken.curriculum.levels.index > 0  # it moved
    drawn = observations(tmp_path / "a")
    assert len({json.dumps([line["id"] for line in drawn if line["draw"] == n]) for n in range(9)}) > 4
    for step in (2, 4, 6):
        resumed = make_trainer(
            tiny_model(MODEL), flags, config(tmp_path / f"b{step}", **options), model_flags, curriculum=curriculum
        )
        resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{step}"))
        assert losses(resumed) == losses(unbroken)
        assert observations(tmp_path / f"b{step}") == [line for line in drawn if line["step"] >= step]
        before, after = unbroken.curriculum.state_dict(), resumed.curriculum.state_dict()
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
        assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(unbroken).items())


class ChangeData:
    """The same rows but one changed, one gone and one new."""

    def __init__(self, flags):
        path = flags["data_file_paths"]
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        rows[1]["conversations"][0]["value"] += " Please."
        rows[2]["id"] = "new"
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def test_new_and_changed_rows_begin_anew(tiny_model, tmp_path, flags):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    first = make_trainer(tiny_model(MODEL), flags, config(tmp_path / "a", **options), curriculum={})
    first.train()
    ChangeData(flags)
    second = make_trainer(tiny_model(MODEL), flags, config(tmp_path / "b", **options), curriculum={})
    told = second.curriculum.load(tmp_path / "a" / "checkpoint-4" / "curriculum.npz")
    assert (
        "6 of 8 rows are known" in told and "1 are new, 1 have changed and start anew, 1 of its rows are gone" in told
    )
    kept = second.curriculum.difficulty.rollouts
    assert kept[1] == kept[2] == 0 and kept.sum() > 0
    second.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert len(observations(tmp_path / "b")) == 4


def test_a_state_of_other_data_is_refused_unless_reset(tiny_model, tmp_path, flags):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tiny_model(MODEL), flags, config(tmp_path / "a", **options), curriculum={}).train()
    other = write_data(tmp_path / "other")
    path = other["data_file_paths"]
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for place, row in enumerate(rows[:5]):
        row["id"] = f"other-{place}"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    checkpoint = str(tmp_path / "a" / "checkpoint-1")
    with pytest.raises(InputError, match="knows 3 of the 8 rows.*--curriculum_reset true"):
        make_trainer(tiny_model(MODEL), other, config(tmp_path / "b", **options), curriculum={}).train(
            resume_from_checkpoint=checkpoint
        )
    anew = make_trainer(
        tiny_model(MODEL), other, config(tmp_path / "c", **options), curriculum={"curriculum_reset": True}
    )
    anew.train(resume_from_checkpoint=checkpoint)
    assert anew.curriculum.difficulty.rollouts.sum() == 4  # of the one step that was left


def test_snapshots_hold_the_whole_state(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", max_steps=4)
    trainer = make_trainer(tiny_model(MODEL), flags, args, curriculum={"curriculum_snapshot_steps": 2})
    trainer.train()
    assert sorted(path.name for path in (tmp_path / "run" / "curriculum").glob("*.npz")) == ["step-2.npz", "step-4.npz"]
    with np.load(tmp_path / "run" / "curriculum" / "step-4.npz") as last:
        for name, value in trainer.curriculum.state_dict().items():
            np.testing.assert_array_equal(last[name], value)


def test_ranks_that_saw_different_rewards_stop(tiny_model, tmp_path, flags, monkeypatch):
    """The other rank's word is changed on its way: a real second rank would have to be broken to say this."""
    from open_r1_kivqa.trainer import curriculum_rows

    def with_another(told):
        return [told[0], {**told[0], "digest": "other", "places": []}]

    trainer = make_trainer(tiny_model(MODEL), flags, config(tmp_path / "run"), curriculum={})
    monkeypatch.setattr(curriculum_rows, "gather_object", with_another)
    with pytest.raises(RuntimeError, match="the ranks saw other rows or other rewards"):
        trainer.train()


def test_the_signal_is_scaled_clipped_and_without_what_does_not_apply():
    rewards = np.array([[1.0, 0.0], [NAN, 2.0], [NAN, NAN], [3.0, 5.0]])
    np.testing.assert_array_equal(signal(rewards, 0, 2), [0.25, 1, NAN, 1])


@pytest.mark.parametrize(("aggregation", "share"), [("sum_then_normalize", 1.0), ("normalize_then_sum", 0.0)])
def test_the_share_without_advantage_is_that_of_the_trainers_advantages(
    aggregation, share, tiny_model, tmp_path, flags
):
    """Two rewards that cancel out in the sum: no advantage, unless each is normalised by itself."""

    def accuracy(prompts, completions, **kwargs):
        return [float(place % 2) for place in range(len(prompts))]

    def shorter(prompts, completions, **kwargs):
        return [2.0 - 2.0 * (place % 2) for place in range(len(prompts))]

    args = config(tmp_path / "run", max_steps=1, logging_steps=1, multi_objective_aggregation=aggregation)
    args.reward_weights = [1.0, 0.5]
    trainer = make_trainer(tiny_model(MODEL), flags, args, reward_funcs=[accuracy, shorter], curriculum={})
    trainer.train()
    entry = trainer.state.log_history[0]
    assert entry["curriculum/zero_advantage_total"] == share and entry["curriculum/zero_advantage_signal"] == 0
