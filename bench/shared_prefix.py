"""Log-probs and the loss's backward pass with the prompt computed once per group, against stock TRL: `python bench/shared_prefix.py --prompt 2000 --completion 64 --group 8`.

Both work on the same batch (one image a prompt) with the same model in one process; the stock pass is GRPOTrainer's own method. The last line is one JSON object:
  model, device, prompt, completion, group, prompts, parameters, image_tokens
  stock_logps_s, stock_loss_backward_s   seconds of the stock pass: without gradients, and with entropies and backward
  speedup_logps, speedup_loss_backward   stock seconds / ours
  bound                what the number of tokens allows: group · (prompt + completion) / (prompt + group · completion)
  share_of_bound       speedup_loss_backward / bound
  tokens_ratio         tokens that ours computes / tokens that stock computes
  speedup_compact_head   the same as speedup_loss_backward with an output layer that scores only the positions wanted, as on a GPU: on a CPU TRL's scores all, of which stock has more
  peak_memory_ratio    ours / stock, of what loss and backward allocate beyond what is there
  logp_max_abs_diff, grad_rel_diff       of the two passes
"""

import argparse
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from grpo_bench import described, load, make_batch, make_trainer, run, seconds
from trl import GRPOTrainer


def measure(folder: Path, shape: argparse.Namespace) -> dict:
    model, processor = load(shape.model)
    trainer = make_trainer(model, processor, folder, shape)
    batch = make_batch(trainer, shape)
    ours = trainer._get_per_token_logps_and_entropies
    stock = partial(GRPOTrainer._get_per_token_logps_and_entropies, trainer)

    def logps(way):
        with torch.no_grad():
            return way(trainer.model_wrapped, **batch)[0]

    def loss_backward(way):
        trainer.model.zero_grad()
        values, entropies, _ = way(trainer.model_wrapped, **batch, compute_entropy=True)
        (-values.mean() - 0.01 * entropies.mean()).backward()

    def gradients(way):
        loss_backward(way)
        return {name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None}

    difference = (logps(ours) - logps(stock)).abs().max().item()
    got, wanted = gradients(ours), gradients(stock)
    error = torch.cat([(got[name] - wanted[name]).flatten() for name in wanted]).norm()
    relative = (error / torch.cat([one.flatten() for one in wanted.values()]).norm()).item()
    del got, wanted

    peaks = {name: peak_memory(lambda way=way: loss_backward(way)) for name, way in (("ours", ours), ("stock", stock))}
    times = {
        (name, what): seconds(lambda way=way, work=work: work(way), shape.repeats)
        for what, work in (("logps", logps), ("loss", loss_backward))
        for name, way in (("stock", stock), ("ours", ours))
    }
    with compact_head():
        bare = {
            name: seconds(lambda way=way: loss_backward(way), shape.repeats)
            for name, way in (("stock", stock), ("ours", ours))
        }
    tokens = shape.prompt + shape.group * shape.completion
    stock_tokens = shape.group * (shape.prompt + shape.completion)
    speedup = times["stock", "loss"] / times["ours", "loss"]
    return {
        **described(shape),
        "parameters": sum(one.numel() for one in model.parameters()),
        "image_tokens": int((batch["input_ids"][0] == model.config.image_token_id).sum()),
        "stock_logps_s": round(times["stock", "logps"], 3),
        "stock_loss_backward_s": round(times["stock", "loss"], 3),
        "speedup_logps": round(times["stock", "logps"] / times["ours", "logps"], 2),
        "speedup_loss_backward": round(speedup, 2),
        "bound": round(stock_tokens / tokens, 2),
        "share_of_bound": round(speedup * tokens / stock_tokens, 2),
        "tokens_ratio": round(tokens / stock_tokens, 3),
        "speedup_compact_head": round(bare["stock"] / bare["ours"], 2),
        "peak_memory_ratio": round(peaks["ours"] / peaks["stock"], 3),
        "logp_max_abs_diff": difference,
        "grad_rel_diff": relative,
    }


def peak_memory(work) -> int:
    """Bytes that `work()` takes beyond what was taken before, at most."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    taken = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            taken += event.nbytes()
            peak = max(peak, taken)
    return peak


@contextmanager
def compact_head():
    """The output layer scores only the positions that are wanted, as on a GPU."""
    from trl.trainer import utils

    before = utils._use_triton
    utils._use_triton = lambda device: True
    try:
        yield
    finally:
        utils._use_triton = before


if __name__ == "__main__":
    run(__doc__, measure, prompt=2000, completion=64, group=8, model="small")
