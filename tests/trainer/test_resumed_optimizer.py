"""A resumed run's optimizer goes by its flags; with the flags as they were, tests/trainer/test_checkpoints.py compares it to the bit."""

import pytest
import torch
from grpo_run import config, make_trainer
from torch.optim.lr_scheduler import LambdaLR
from training_rows import write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.resumed_optimizer import apply_flags

OLD = {"learning_rate": 1e-2, "weight_decay": 0.1}
NEW = {"learning_rate": 2e-4, "weight_decay": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-6}


def saved(model, tmp_path, **options) -> dict[str, str]:
    """A run of two steps, with a checkpoint after each; returns the data's flags."""
    flags = write_data(tmp_path / "data")
    args = config(tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=1, **options)
    make_trainer(model, flags, args).train()
    return flags


@pytest.mark.parametrize(
    "schedule",
    [
        {"lr_scheduler_type": "constant"},
        {"lr_scheduler_type": "linear", "warmup_steps": 3},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    ],
    ids=lambda schedule: schedule["lr_scheduler_type"],
)
def test_changed_flags_act(schedule, tiny_model, tmp_path):
    """Learning rates are those of a run that had the new flags from its beginning."""
    model = tiny_model("qwen2_5_vl")
    flags = saved(model, tmp_path, **OLD, **schedule)
    unbroken = make_trainer(model, flags, config(tmp_path / "new", max_steps=5, **NEW, **schedule))
    unbroken.train()
    resumed = make_trainer(model, flags, config(tmp_path / "run", max_steps=5, **NEW, **schedule))
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    rates = [
        [entry["learning_rate"] for entry in one.state.log_history if "loss" in entry] for one in (unbroken, resumed)
    ]
    assert rates[1][2:] == pytest.approx(rates[0][2:], rel=1e-9) and max(rates[0]) <= NEW["learning_rate"]
    decays = [group["weight_decay"] for group in resumed.optimizer.param_groups]
    assert decays == [0.5, 0.0]
    assert all(group["betas"] == (0.9, 0.9) and group["eps"] == 1e-6 for group in resumed.optimizer.param_groups)


@pytest.mark.parametrize(("before", "after"), [("adamw_torch", "sgd"), ("sgd", "adamw_torch")])
def test_another_kind_of_optimizer_is_refused(before, after, tiny_model, tmp_path):
    """torch takes its state all the same, and fails in the next step or keeps what means nothing."""
    model = tiny_model("qwen2_5_vl")
    flags = saved(model, tmp_path, optim=before)
    trainer = make_trainer(model, flags, config(tmp_path / "run", max_steps=4, optim=after))
    with pytest.raises(InputError, match="of another kind than --optim"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


def test_a_group_without_weights_may_be_missing():
    """As ZeRO-3 leaves it out under LoRA, where nothing goes without weight decay."""
    weight = torch.nn.Parameter(torch.zeros(2))
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}]
    made = torch.optim.AdamW(groups, lr=1.0).param_groups
    left = torch.optim.AdamW([weight], lr=1.0, weight_decay=0.5)
    flagged = [group | {"params": len(group["params"])} for group in made]
    apply_flags(left.param_groups, flagged, LambdaLR(left, lambda step: 1.0))
    assert left.param_groups[0]["weight_decay"] == 0.1
