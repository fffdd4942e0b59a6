"""Greedy accuracy on held-out rows while training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import gather_object

from ..data.jsonl import Rows
from ..data.samples import Sample
from ..evaluation.generate import greedy
from ..evaluation.predict import predict
from ..evaluation.records import write_records
from ..evaluation.summary import summarise
from ..prompting import Prompting
from ..rewards.judge import Judge
from ..rewards.methods import Scale


@dataclass
class GreedyValidation:
    """What `evaluate_jsonl.py` does in the setting `normal`, on the weights in hand.

    Attributes:
        rows: the held-out rows; each rank answers every n-th of them.
        folder: predictions go to `folder/step-N.jsonl`, one row a line.
    """

    rows: Rows
    prompting: Prompting
    folder: Path
    max_new_tokens: int
    batch_size: int
    box_scale: Callable[[Sample], Scale] | None = None
    judge: Judge | None = None

    def __call__(self, trainer) -> dict[str, float]:
        """Metrics over all ranks' rows, the same on every rank: eval_accuracy (lenient extraction, the mean over question types), eval_accuracy_strict, eval_format, and one accuracy for each split."""
        records = self.records(trainer, "normal")
        if trainer.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_records(self.folder / f"step-{trainer.state.global_step}.jsonl", records)
        return self.metrics(records)

    def records(self, trainer, setting: str) -> list[dict]:
        """The records of `predict` in one of its settings, of all ranks' rows, on every rank."""
        accelerator = trainer.accelerator
        mine = [self.rows[i] for i in range(accelerator.process_index, len(self.rows), accelerator.num_processes)]

        def generate(prompts):
            return greedy(
                trainer.model_wrapped,
                trainer.processing_class,
                prompts,
                max_new_tokens=self.max_new_tokens,
                batch_size=self.batch_size,
                accelerator=accelerator,
                gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            )

        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # evaluating must not change what is sampled next
            records = predict(
                mine,
                setting,
                self.prompting,
                generate=generate,
                box_scale=self.box_scale,
                judge=self.judge,
            )
        return gather_object(records)

    @staticmethod
    def metrics(records: list[dict]) -> dict[str, float]:
        splits = summarise(records)["splits"]
        metrics = {}
        for name in ("accuracy", "accuracy_strict", "format"):
            scored = [(split[name], split["n"]) for split in splits.values() if split[name] is not None]
            if scored:
                metrics[f"eval_{name}"] = sum(value * n for value, n in scored) / sum(n for _, n in scored)
        if len(splits) > 1:
            metrics |= {f"eval_accuracy/{name}": split["accuracy"] for name, split in splits.items()}
        return metrics
