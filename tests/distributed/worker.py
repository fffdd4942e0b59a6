"""Trains on recorded completions in one process or under torchrun; writes what the tests compare.

    [torchrun --nproc_per_node 2] worker.py '{"model": ..., "flags": {...}, "output_dir": ..., "deepspeed": ..., ...}'

Rank 0 writes output_dir/record.pt: losses, the full gradients of every step, the full weights at the end.
"""

import json
import os
import sys
from pathlib import Path

import torch
from grpo_run import config, letters_reward, losses, make_trainer, record_completions
from transformers import TrainerCallback

from open_r1_kivqa.entry import start_deepspeed
from open_r1_kivqa.trainer.checkpoints import find_checkpoint


class KeepGradients(TrainerCallback):
    """Keeps the gradients that each optimizer step uses. DeepSpeed steps inside backward, so its engine's `step` is wrapped."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []

    def keep(self, gradient_of):
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        gradients = {
            name: gradient_of(parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        self.steps.append({name: gradient.clone() for name, gradient in gradients.items() if gradient is not None})

    def on_train_begin(self, args, state, control, **kwargs):
        if not self.trainer.is_deepspeed_enabled:
            return
        from deepspeed.utils import safe_get_full_grad

        engine = self.trainer.model_wrapped
        step = engine.step

        def keeping_step(*args, **kwargs):
            self.keep(safe_get_full_grad)
            return step(*args, **kwargs)

        engine.step = keeping_step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if not self.trainer.is_deepspeed_enabled:
            self.keep(lambda parameter: parameter.grad)


def reward_by_row(prompts, completions, sample_id, **kwargs):
    """Rows whose name begins with a letter up to G get the same for all completions; the others what their letters say."""
    values = letters_reward(prompts, completions)
    return [0.5 if id[0] <= "g" else value for id, value in zip(sample_id, values, strict=True)]


def full_weights(trainer) -> dict[str, torch.Tensor]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.is_deepspeed_enabled:
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def main(job: dict) -> None:
    start_deepspeed(job.get("deepspeed"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = config(
        job["output_dir"],
        deepspeed=job.get("deepspeed"),
        per_device_train_batch_size=8 // world,
        max_grad_norm=0.0,
        optim="sgd",  # Adam turns the rounding noise of a gradient that is zero in exact arithmetic into a whole step
        learning_rate=0.1,
        beta=0.1,
        shuffle_dataset=job.get("shuffle", True),
        **job.get("options", {}),
    )
    reward = {"letters": letters_reward, "by_row": reward_by_row}[job.get("reward", "letters")]
    trainer = make_trainer(
        job["model"],
        job["flags"],
        args,
        job.get("model_flags"),
        job.get("curriculum"),
        reward_funcs=[reward],
    )
    record_completions(trainer)
    gradients = KeepGradients(trainer)
    trainer.add_callback(gradients)
    trainer.train(resume_from_checkpoint=find_checkpoint(job.get("resume"), job["output_dir"]))
    trainer.save_model(str(Path(job["output_dir"]) / "final"))
    record = {
        "losses": losses(trainer),
        "gradients": gradients.steps,
        "weights": full_weights(trainer),
        "draws": trainer.rollout.draws.tolist(),
    }
    if trainer.curriculum is not None:
        lines = trainer.observations.path.read_text().splitlines()
        record["observed"] = [{**json.loads(line), "forecast": None} for line in lines]
    if trainer.is_world_process_zero():
        torch.save(record, Path(job["output_dir"]) / "record.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
