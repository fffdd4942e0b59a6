"""Trains with a colocated engine in each process; rank 0 writes what was logged to output_dir/log.json.

[torchrun --nproc_per_node 2] vllm_worker.py '{"model": ..., "flags": {...}, "output_dir": ..., "deepspeed": ..., "model_flags": {...}, "options": {...}}'
"""

import json
import os
import sys
from pathlib import Path

from cpu_engine import SETTINGS, prepare_engine

if __name__ == "__main__":
    os.environ.update(SETTINGS)
    job = json.loads(sys.argv[1])
    prepare_engine()

    from grpo_run import config, make_trainer

    from open_r1_kivqa.entry import start_deepspeed
    from open_r1_kivqa.trainer import vision_tokens

    vision_tokens.BIAS = 0.0  # so that the engine's log-probs are the trainer's
    start_deepspeed(job["deepspeed"])
    args = config(
        job["output_dir"], use_vllm=True, vllm_max_model_length=1024, deepspeed=job["deepspeed"], **job["options"]
    )
    trainer = make_trainer(job["model"], job["flags"], args, job["model_flags"])
    trainer.train()
    if trainer.is_world_process_zero():
        Path(job["output_dir"], "log.json").write_text(json.dumps(trainer.state.log_history))
