"""Hugging Face generation with each prompt computed once, against stock TRL: `python bench/rollout.py --prompt 2000 --completion 32 --group 8`.

Both make the same completions, greedily, without an end before the last token, in one process; stock is TRL's own way through `generate`. The last line is one JSON object:
  model, device, prompt, completion, group, prompts
  stock_s, ours_s      seconds for all completions
  speedup              stock_s / ours_s
  tokens_per_s         of ours, generated
  equal_tokens         share of the completions' tokens that are equal; greedy choices between near-equal logits may fall either way
"""

import argparse
from pathlib import Path

import torch
from grpo_bench import described, load, make_batch, make_trainer, run, seconds


def measure(folder: Path, shape: argparse.Namespace) -> dict:
    model, processor = load(shape.model)
    trainer = make_trainer(model, processor, folder, shape)
    trainer.generation_config.do_sample = False
    trainer.generation_config.min_new_tokens = shape.completion
    batch = make_batch(trainer, shape)
    rows = len(batch["input_ids"])
    fields = {name: batch[name] for name in ("pixel_values", "image_grid_thw")}
    fields["mm_token_type_ids"] = batch["mm_token_type_ids"][:, : shape.prompt].tolist()
    prompt_ids = batch["input_ids"][:, : shape.prompt].tolist()

    def generate(shares: bool) -> list[list[int]]:
        trainer.shares_prefill = shares
        return trainer._generate_single_turn(prompt_ids, [["picture"]] * rows, fields, shape.group)[0]

    ours, stock = torch.tensor(generate(True)), torch.tensor(generate(False))
    times = {shares: seconds(lambda shares=shares: generate(shares), shape.repeats) for shares in (False, True)}
    return {
        **described(shape),
        "stock_s": round(times[False], 3),
        "ours_s": round(times[True], 3),
        "speedup": round(times[False] / times[True], 2),
        "tokens_per_s": round(rows * shape.completion / times[True]),
        "equal_tokens": round((ours == stock).float().mean().item(), 4),
    }


if __name__ == "__main__":
    run(__doc__, measure, prompt=2000, completion=32, group=8, model="small")
