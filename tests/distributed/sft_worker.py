"""Supervised training in one process or under torchrun; writes what the test compares.

    [torchrun --nproc_per_node 2] sft_worker.py '{"model": ..., "flags": {...}, "output_dir": ..., "deepspeed": ..., ...}'

Rank 0 writes output_dir/record.pt: the losses of training and of evaluation, and the full weights at the end.
"""

import json
import os
import sys
from pathlib import Path

import torch
from grpo_run import losses
from sft_run import config, examples, make_trainer
from worker import full_weights

from open_r1_kivqa.entry import start_deepspeed
from open_r1_kivqa.trainer.checkpoints import find_checkpoint


def main(job: dict) -> None:
    start_deepspeed(job.get("deepspeed"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = config(
        job["output_dir"],
        deepspeed=job.get("deepspeed"),
        per_device_train_batch_size=job.get("rows_a_step", 8) // world,
        per_device_eval_batch_size=8 // world,
        max_grad_norm=0.0,
        optim="sgd",  # Adam turns the rounding noise of a gradient that is zero in exact arithmetic into a whole step
        learning_rate=0.1,
        train_sampling_strategy="random" if job.get("shuffle") else "sequential",
        eval_steps=2,
        save_strategy="steps",
        save_steps=1,
        **job.get("options", {}),
    )
    flags = job["flags"]
    trainer = make_trainer(job["model"], flags, args, job.get("model_flags"), held_out=examples(flags))
    trainer.train(resume_from_checkpoint=find_checkpoint(job.get("resume"), job["output_dir"]))
    record = {
        "losses": losses(trainer),
        "eval_losses": [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry],
        "weights": full_weights(trainer),
    }
    if trainer.is_world_process_zero():
        torch.save(record, Path(job["output_dir"]) / "record.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
