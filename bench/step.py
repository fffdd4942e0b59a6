"""A whole GRPO step against stock TRL: `python bench/step.py --prompt 2000 --completion 64 --group 8`.

Generation, rewards, reference (beta 0.1), loss and optimizer, on the same rows with the same model in one process: first TRL's GRPOTrainer, then ours. Completions have no end before their last token. The last line is
one JSON object:
  model, device, prompt, completion, group, prompts
  stock_s, ours_s      seconds a step, the least of the steps after the first
  speedup              stock_s / ours_s
  losses_stock, losses_ours   of the steps; the first one's completions are the same, after it the order of rows draws other random numbers
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from datasets import Dataset
from grpo_bench import PICTURE, described, load, run, training_flags
from PIL import Image
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from open_r1_kivqa.arguments import VLMGRPOConfig
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import decode_images, load_template
from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
from open_r1_kivqa.trainer.rollout import ROW, Rollout

WORDS = "capital river border flag island mountain language currency king people north south".split()


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.start)


def letters(prompts, completions, **kwargs):
    """A reward that varies within a group."""
    return [(sum(map(ord, completion[0]["content"])) % 17) / 17 for completion in completions]


def measure(folder: Path, shape: argparse.Namespace) -> dict:
    model, processor = load(shape.model)
    checkpoint = str(folder / "model")  # TRL loads the reference from where the model came from
    model.save_pretrained(checkpoint)
    processor.save_pretrained(checkpoint)
    rows = write_rows(folder, shape, processor)
    options = training_flags(folder, shape) | {
        "generation_kwargs": {"min_new_tokens": shape.completion},
        "beta": 0.1,
        "max_steps": 1 + shape.repeats,
        "logging_steps": 1,
        "shuffle_dataset": False,
        "seed": 3,
    }

    def rollout() -> Rollout:
        prompting = Prompting(load_template("default"), seed=3, system_prompt="")
        return Rollout(Rows.open([str(rows)], [str(folder)], None), prompting)

    def stock() -> GRPOTrainer:
        model, processor = load(checkpoint)
        numbers = list(range(shape.prompts * (1 + shape.repeats)))
        built = rollout().build([{ROW: number} for number in numbers], numbers)
        data = Dataset.from_list([as_dataset_row(one["prompt"]) for one in built])
        return GRPOTrainer(model, letters, GRPOConfig(**options), train_dataset=data, processing_class=processor)

    def ours() -> VLMGRPOTrainer:
        model, processor = load(checkpoint)
        return VLMGRPOTrainer(model, letters, VLMGRPOConfig(**options), rollout=rollout(), processing_class=processor)

    times, losses = {}, {}
    for name, make in (("stock", stock), ("ours", ours)):
        trainer, clock = make(), Clock()
        trainer.add_callback(clock)
        trainer.train()
        times[name] = min(clock.seconds[1:])
        losses[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        del trainer
    return {
        **described(shape),
        "stock_s": round(times["stock"], 3),
        "ours_s": round(times["ours"], 3),
        "speedup": round(times["stock"] / times["ours"], 2),
        "losses_stock": losses["stock"],
        "losses_ours": losses["ours"],
    }


def write_rows(folder: Path, shape: argparse.Namespace, processor) -> Path:
    """Enough rows for all steps, each with a picture of its own and a question of random words, as long as the shape's prompts."""
    generator, lines = random.Random(0), []
    for number in range(shape.prompts * (1 + shape.repeats)):
        Image.effect_noise(PICTURE, 40 + number).convert("RGB").save(folder / f"{number}.png")
        words = [generator.choice(WORDS) for _ in range(shape.prompt)]
        tokens = processor.tokenizer(" ".join(words))["input_ids"]
        question = processor.tokenizer.decode(tokens[: shape.prompt - 200])  # the picture takes about 200
        turns = [{"from": "human", "value": f"<image>{question}"}, {"from": "gpt", "value": "yes"}]
        lines.append({"id": number, "image": f"{number}.png", "conversations": turns})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def as_dataset_row(prompt: list[dict]) -> dict:
    """A prompt as TRL's trainer takes it: its pictures in a column of their own."""
    (decoded,) = decode_images([prompt])
    images = [block["image"] for message in decoded for block in message["content"] if block["type"] == "image"]
    plain = [
        {
            **message,
            "content": [
                {"type": block["type"], **({"text": block["text"]} if block["type"] == "text" else {})}
                for block in message["content"]
            ],
        }
        for message in prompt
    ]
    return {"prompt": plain, "images": images}


if __name__ == "__main__":
    run(__doc__, measure, prompt=2000, completion=64, group=8, model="small")
