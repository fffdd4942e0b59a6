"""A reward that some completions of a group lack, as from a judge that didn't answer, makes them neither better nor worse."""

import pytest
import torch
from grpo_run import config, letters_reward, losses, make_trainer, record_completions
from training_rows import write_data

from open_r1_kivqa.trainer.grpo_trainer import fill_missing

NAN = torch.nan


def test_the_mean_of_the_rest_stands_in():
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN], [NAN, NAN], [NAN, 0.2], [0.5, 0.4], [0.9, NAN]])
    filled = fill_missing(rewards, 3)
    wanted = torch.tensor([[1.0, NAN], [0.0, NAN], [0.5, NAN], [0.7, 0.2], [0.5, 0.4], [0.9, 0.3]])
    torch.testing.assert_close(filled, wanted, equal_nan=True)
    whole = torch.rand(6, 2)
    assert torch.equal(fill_missing(whole, 3), whole)


def failing_judge(prompts, completions, **kwargs):
    """1 for all but the first completion of each pair, which has no verdict."""
    return [None if i % 2 == 0 else 1.0 for i in range(len(completions))]


def test_a_failure_does_not_change_the_loss(tiny_model, tmp_path):
    """Counted as 0, the missing verdicts would put half the completions behind the others."""

    def train(name, rewards):
        args = config(tmp_path / name, max_steps=1, num_generations=2)
        trainer = make_trainer(
            tiny_model("qwen2_5_vl"), write_data(tmp_path / name / "data"), args, reward_funcs=rewards
        )
        record_completions(trainer)
        trainer.train()
        return losses(trainer)

    alone = train("alone", [letters_reward])
    assert train("both", [letters_reward, failing_judge]) == pytest.approx(alone, rel=1e-4) and alone[0] != 0
