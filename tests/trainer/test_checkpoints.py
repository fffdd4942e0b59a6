import errno
import json
import os
import signal

import pytest
import torch
from grpo_run import config, losses, make_trainer, weights
from safetensors import SafetensorError
from tiny import FAMILIES
from training_rows import write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.checkpoints import (
    find_checkpoint,
    full_disk_told,
    refuse_to_overwrite,
    refuse_unfit_checkpoint,
)
from open_r1_kivqa.vlm_modules.loading import load_model

WHOLE = {"global_step": 1, "resumable": True}


def checkpoint(folder, number, marker=WHOLE):
    path = folder / f"checkpoint-{number}"
    path.mkdir()
    if marker is not None:
        (path / "complete.json").write_text(json.dumps(marker))
    return path


class TestFindCheckpoint:
    def test_true_takes_the_newest_complete_one(self, tmp_path):
        checkpoint(tmp_path, 9)
        checkpoint(tmp_path, 10)
        checkpoint(tmp_path, 11, marker={"global_step": 11, "resumable": False})
        checkpoint(tmp_path, 12, marker=None)
        assert find_checkpoint("true", str(tmp_path)) == str(tmp_path / "checkpoint-10")

    @pytest.mark.parametrize("value", [None, "false", "False", ""])
    def test_a_fresh_start(self, value, tmp_path):
        checkpoint(tmp_path, 9)
        assert find_checkpoint(value, str(tmp_path)) is None

    def test_nothing_to_resume_from(self, tmp_path):
        with pytest.raises(InputError, match="holds no complete checkpoint"):
            find_checkpoint("true", str(tmp_path))

    def test_a_folder_that_is_not_there_or_not_whole(self, tmp_path):
        with pytest.raises(InputError, match="no such folder"):
            find_checkpoint(str(tmp_path / "checkpoint-1"), str(tmp_path))
        with pytest.raises(InputError, match="interrupted"):
            find_checkpoint(str(checkpoint(tmp_path, 2, marker=None)), str(tmp_path))
        inside = checkpoint(tmp_path, 3, marker={"global_step": 3, "resumable": False})
        with pytest.raises(InputError, match="inside a generation batch"):
            find_checkpoint(str(inside), str(tmp_path))
        with pytest.raises(InputError, match="inside a generation batch"):  # and no other one is there
            find_checkpoint("true", str(tmp_path))

    def test_half_a_marker_is_none(self, tmp_path):
        (checkpoint(tmp_path, 2) / "complete.json").write_text("{")
        with pytest.raises(InputError, match="holds no complete checkpoint"):
            find_checkpoint("true", str(tmp_path))

    def test_a_checkpoint_that_does_not_fit(self, tmp_path):
        path = checkpoint(tmp_path, 6, marker={"global_step": 6, "resumable": True})
        for more in (-1, 7):
            refuse_unfit_checkpoint(str(path), max_steps=more, use_peft=False)
        for done in (5, 6):
            with pytest.raises(InputError, match=f"is of step 6, so with --max_steps {done} nothing is left"):
                refuse_unfit_checkpoint(str(path), max_steps=done, use_peft=False)
        with pytest.raises(InputError, match="holds a whole model, and this run is with --use_peft"):
            refuse_unfit_checkpoint(str(path), max_steps=9, use_peft=True)
        (path / "adapter_config.json").write_text("{}")
        refuse_unfit_checkpoint(str(path), max_steps=9, use_peft=True)
        with pytest.raises(InputError, match="holds a LoRA adapter, and this run is without --use_peft"):
            refuse_unfit_checkpoint(str(path), max_steps=9, use_peft=False)
        refuse_unfit_checkpoint(None, max_steps=1, use_peft=False)

    def test_a_fresh_start_over_an_old_run_is_refused(self, tmp_path):
        refuse_to_overwrite(str(tmp_path), None)
        path = checkpoint(tmp_path, 2)
        refuse_to_overwrite(str(tmp_path), str(path))
        with pytest.raises(InputError, match="--resume_from_checkpoint true"):
            refuse_to_overwrite(str(tmp_path), None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_resumed_run_reaches_the_same_weights_and_losses(family, lora, tiny_model, tmp_path):
    """Eight rows are four steps an epoch: the checkpoint at step 3 lies in epoch 0, step 5 and 6 in epoch 1."""
    flags = write_data(tmp_path / "data")
    model_flags = {"use_peft": True, "lora_r": 4} if lora else {}
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "num_iterations": 1, "logging_steps": 1}
    unbroken = make_trainer(tiny_model(family), flags, config(tmp_path / "a", **options), model_flags)
    unbroken.train()
    resumed = make_trainer(tiny_model(family), flags, config(tmp_path / "b", **options), model_flags)
    resumed.train(resume_from_checkpoint=find_checkpoint(str(tmp_path / "a" / "checkpoint-3"), ""))
    assert losses(resumed) == losses(unbroken)  # the first three come from the checkpoint's history
    after = weights(resumed)
    for name, value in weights(unbroken).items():
        assert torch.equal(after[name], value), name
    assert resumed.rollout.draws.tolist() == unbroken.rollout.draws.tolist()
    assert unbroken.rollout.draws.sum() == 12


@pytest.mark.parametrize("step", [1, 4, 5])
def test_resuming_anywhere_draws_the_same_rows(step, tiny_model, tmp_path):
    """Also from the end of an epoch (4) and within the second (5), where the stock sampler replays epoch 0."""
    flags = write_data(tmp_path / "data")
    drawn = []

    def record(prompts, completions, sample_id, **kwargs):
        drawn.append(tuple(sample_id))
        return [float(len(completion[0]["content"])) for completion in completions]

    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "a", **options), reward_funcs=[record]).train()
    unbroken = drawn.copy()
    drawn.clear()
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "b", **options), reward_funcs=[record]).train(
        resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{step}")
    )
    assert len(unbroken) == 8 and drawn == unbroken[step:]
    assert unbroken[:4] != unbroken[4:]


def test_sigterm_saves_at_the_next_boundary_and_the_run_goes_on_from_there(tiny_model, tmp_path):
    """One generation batch feeds two steps here: the signal in step 1 is answered after step 2."""
    flags = write_data(tmp_path / "data")

    def interrupt(prompts, completions, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return [float(len(completion[0]["content"])) for completion in completions]

    options = {"max_steps": 4, "steps_per_generation": 2, "save_strategy": "no"}
    trainer = make_trainer(
        tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run", **options), reward_funcs=[interrupt]
    )
    previous = signal.getsignal(signal.SIGTERM)
    trainer.train()
    assert signal.getsignal(signal.SIGTERM) is previous
    assert trainer.state.global_step == 2
    found = find_checkpoint("true", str(tmp_path / "run"))
    assert found.endswith("checkpoint-2")
    resumed = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run", **options))
    resumed.train(resume_from_checkpoint=found)
    assert resumed.state.global_step == 4


MOVING = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_a_reference_that_moves_is_in_the_checkpoint(family, tiny_model, tmp_path):
    """The KL, which is measured from it, is what tells; with another model's weights it would be larger."""
    flags = write_data(tmp_path / "data")
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2, **MOVING}
    unbroken = make_trainer(tiny_model(family), flags, config(tmp_path / "a", **options))
    unbroken.train()
    resumed = make_trainer(tiny_model(family), flags, config(tmp_path / "b", **options))
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert losses(resumed) == losses(unbroken)
    moved = unbroken.reference_weights()
    for name, value in resumed.reference_weights().items():
        assert torch.equal(moved[name], value), name
    first = load_model(tiny_model(family)).state_dict()
    assert any(not torch.equal(first[name], value) for name, value in moved.items())


@pytest.mark.parametrize(
    ("accumulation", "per_batch", "per_device", "waits"),
    [(2, 3, 4, True), (4, 3, 2, True), (2, 3, 2, False), (3, 2, 4, False)],
)
def test_checkpoints_lie_on_boundaries_whatever_an_epoch_ends_with(
    accumulation, per_batch, per_device, waits, tiny_model, tmp_path, capsys
):
    """An epoch's last step may have fewer micro-batches than the others; then later steps lie elsewhere in their generation batches. All checkpoints, but for the one at the end of training, can be resumed from.

    With (2, 3, 4), eight rows are one batch of three micro-batches an epoch, so steps of two and of one: step 3, asked for, lies inside the second batch, which ends with step 4.
    """
    flags = write_data(tmp_path / "data")
    options = {"steps_per_generation": per_batch, "gradient_accumulation_steps": accumulation, "max_steps": 9}
    options |= {"per_device_train_batch_size": per_device, "save_strategy": "steps"}
    unbroken = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "a", **options, save_steps=per_batch))
    unbroken.train()
    found = {
        int(path.parent.name.partition("-")[2]): json.loads(path.read_text())["resumable"]
        for path in (tmp_path / "a").glob("checkpoint-*/complete.json")
    }
    assert len(found) > 2 and all(found[step] for step in found if step != 9)
    assert ("lies inside a generation batch" in capsys.readouterr().out) == waits
    assert any(step % per_batch for step in found if step != 9) == waits
    resumed = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "b", **options, save_steps=12))
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{sorted(found)[0]}"))
    assert losses(resumed) == losses(unbroken)


def test_weights_alone_are_nothing_to_go_on_from(tiny_model, tmp_path):
    """--save_only_model leaves out optimizer, schedule and random states; a run that went on would begin them anew unseen."""
    flags = write_data(tmp_path / "data")
    args = config(tmp_path / "run", save_strategy="steps", save_steps=1, save_only_model=True)
    make_trainer(tiny_model("qwen2_5_vl"), flags, args).train()
    for asked in ("true", str(tmp_path / "run" / "checkpoint-1")):
        with pytest.raises(InputError, match="--save_only_model"):
            find_checkpoint(asked, str(tmp_path / "run"))


@pytest.mark.parametrize("fails", ["save_own_state", "_save_optimizer_and_scheduler"])
def test_a_save_that_fails_leaves_the_checkpoints_before_it(fails, tiny_model, tmp_path, monkeypatch):
    """With one checkpoint to keep, the old one must stay until the new one is whole."""
    flags = write_data(tmp_path / "data")
    args = config(tmp_path / "run", max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=1)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
    save = getattr(trainer, fails)

    def full(*arguments):
        if trainer.state.global_step == 3:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(trainer, fails, full)
    with pytest.raises(InputError, match="checkpoint-3 cannot be written .* full disk .*No space left .* go on with"):
        trainer.train()
    run = tmp_path / "run"
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    assert find_checkpoint("true", str(run)) == str(run / "checkpoint-2")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_whoever_finds_it(error):
    """In the words of python, torch and safetensors, as they were met on a file system of 8 MB."""
    with pytest.raises(InputError, match="run cannot be written to its end, as on a full disk"), full_disk_told("run"):
        raise error


def test_what_torch_says_of_a_full_disk_and_what_is_none():
    with pytest.raises(InputError, match="full disk"), full_disk_told("run"):
        torch.save(torch.zeros(100_000), "/dev/full")
    for other in (RuntimeError("other"), PermissionError(13, "Permission denied")):
        with pytest.raises(type(other), match=str(other.args[-1])), full_disk_told("run"):
            raise other


def test_a_checkpoint_that_is_written_anew_counts_as_incomplete_meanwhile(tiny_model, tmp_path):
    """A run that went on from an earlier one comes by it again."""
    flags = write_data(tmp_path / "data")
    args = config(tmp_path / "run", max_steps=1, save_strategy="steps", save_steps=1)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
    folder = tmp_path / "run" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / "complete.json").write_text(json.dumps(WHOLE))
    seen = []
    save = trainer._save_rng_state
    trainer._save_rng_state = lambda output: seen.append((folder / "complete.json").exists()) or save(output)
    trainer.train()
    assert seen == [False] and (folder / "complete.json").exists()


def test_the_end_of_training_inside_a_generation_batch_leaves_what_can_be_resumed(tiny_model, tmp_path):
    """Five steps of two a generation batch: checkpoint-5 is whole, but of no use to go on from, so checkpoint-4 stays."""
    flags = write_data(tmp_path / "data")
    options = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run", max_steps=5, **options)).train()
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-5"}
    assert find_checkpoint("true", str(tmp_path / "run")).endswith("checkpoint-4")


@pytest.mark.parametrize(
    ("options", "nearest"),
    [
        ({"steps_per_generation": 4, "save_steps": 6}, "Use 4 or 8"),
        ({"steps_per_generation": 4, "save_steps": 3}, "Use 4"),
        ({"num_iterations": 2, "save_steps": 5}, "Use 4 or 6"),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 3, "save_steps": 3}, "Use 2 or 4"),
    ],
)
def test_checkpoints_inside_a_generation_batch_are_refused(options, nearest, tmp_path):
    with pytest.raises(InputError, match=nearest):
        config(tmp_path, save_strategy="steps", **options)


def test_checkpoints_on_boundaries_are_taken(tmp_path):
    config(tmp_path, save_strategy="steps", steps_per_generation=4, gradient_accumulation_steps=2, save_steps=6)
    config(tmp_path, save_strategy="steps", steps_per_generation=2, gradient_accumulation_steps=4, save_steps=1)


def test_the_best_checkpoint_is_saved_and_outlives_the_rotation(tiny_model, tmp_path):
    """Evaluations at steps 1 to 4 find .1, .5, .3, .2; regular checkpoints come at steps 3 and 4 too, and one may stay."""
    flags = write_data(tmp_path / "data")
    scores = iter([0.1, 0.5, 0.3, 0.2])
    args = config(
        tmp_path / "run",
        max_steps=4,
        eval_steps=1,
        save_strategy="steps",
        save_steps=3,
        save_total_limit=2,
        metric_for_best_model="eval_accuracy",
        load_best_model_at_end=True,
        eval_strategy="steps",
        lr_scheduler_type="constant",
    )
    trainer = make_trainer(
        tiny_model("qwen2_5_vl"), flags, args, validation=lambda trainer: {"eval_accuracy": next(scores)}
    )
    trainer.train()
    assert trainer.state.best_metric == 0.5
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    kept = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert "checkpoint-2" in kept and kept <= {"checkpoint-2", "checkpoint-4"}
    assert [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry] == [
        0.1,
        0.5,
        0.3,
        0.2,
    ]
    # transformers' own way of loading it back finds no parameter by its name, and keeps the last weights
    best = load_model(trainer.state.best_model_checkpoint)
    last = load_model(str(tmp_path / "run" / "checkpoint-4"))
    after = weights(trainer)
    assert all(torch.equal(after[name], value) for name, value in best.named_parameters())
    assert not all(torch.equal(after[name], value) for name, value in last.named_parameters())


@pytest.mark.parametrize(
    ("model", "model_flags", "message"),
    [
        ("internvl", {}, "is of another model .*Missing key"),
        ("qwen2_5_vl", {"freeze_vision_modules": True}, "trained other parameters .*parameter group"),
    ],
)
def test_a_checkpoint_of_another_model_or_other_frozen_parts_is_refused(
    model, model_flags, message, tiny_model, tmp_path
):
    flags = write_data(tmp_path / "data")
    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "a", **options)).train()
    other = make_trainer(tiny_model(model), flags, config(tmp_path / "b", max_steps=2), model_flags)
    with pytest.raises(InputError, match=message):
        other.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))


def test_a_checkpoint_of_another_rank_of_lora_is_refused(tiny_model, tmp_path):
    flags = write_data(tmp_path / "data")
    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    lora = {"use_peft": True, "lora_r": 2}
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "a", **options), lora).train()
    other = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "b", max_steps=2), {**lora, "lora_r": 4})
    with pytest.raises(InputError, match="is of another model .*size mismatch"):
        other.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
