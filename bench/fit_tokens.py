"""What --shared_prefix_max_tokens fits a card: `python bench/fit_tokens.py --model 3b --card 80 --ranks 8`.

Measures what loss and backward of a packed row take at two lengths, draws a line through both, and divides what the card has left beside weights, gradients and optimizer. Run it on the card itself; on a CPU it measures
the same allocations in float32, without flash attention. The last line is one JSON object:
  model, device, parameters
  state_gib            weights, gradients and optimizer on one rank: 16 bytes a trained parameter spread over the ranks under ZeRO-3, and the weights gathered for generation, 2 bytes each
  fixed_gib, kib_per_token   of a pass, without checkpointing on a CPU, with it on a GPU
  tokens               what fits; the flag's value, rounded down to 256
"""

import argparse
from pathlib import Path

from grpo_bench import device_name, load, make_batch, make_trainer, run
from shared_prefix import peak_memory

LENGTHS = (512, 1536)  # tokens of the two prompts measured
SLACK = 0.9  # of the card: the allocator's fragments, and what other libraries take


def add_card(parser: argparse.ArgumentParser) -> None:
    """The flags of the card."""
    parser.add_argument("--card", type=float, default=80, help="GiB of the card (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=8, help="GPUs that share the states (default: %(default)s)")


def fit(folder: Path, shape: argparse.Namespace) -> dict:
    model, processor = load(shape.model)
    parameters = sum(one.numel() for one in model.parameters())
    trainer = make_trainer(model, processor, folder, shape)
    points = []
    for prompt in LENGTHS:
        shape.prompt = prompt
        batch = make_batch(trainer, shape)

        def work(batch=batch):
            trainer.model.zero_grad(set_to_none=False)
            logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model_wrapped, **batch, compute_entropy=True
            )
            (logps.mean() + entropies.mean()).backward()

        work()  # so that gradients are there and don't count
        points.append((prompt - 1 + shape.group * shape.completion, peak_memory(work)))
    (short, small), (long, large) = points
    per_token = (large - small) / (long - short)
    fixed = small - per_token * short
    state = 16 * parameters / shape.ranks + 2 * parameters
    tokens = max(0, int((SLACK * shape.card * 2**30 - state - fixed) / per_token))
    return {
        "model": shape.model,
        "device": device_name(),
        "parameters": parameters,
        "state_gib": round(state / 2**30, 2),
        "fixed_gib": round(fixed / 2**30, 3),
        "kib_per_token": round(per_token / 2**10, 1),
        "tokens": tokens // 256 * 256,
    }


if __name__ == "__main__":
    run(__doc__, fit, add_card, prompt=1000, completion=256, group=8, model="small")
