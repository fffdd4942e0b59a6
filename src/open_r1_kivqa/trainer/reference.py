"""The reference model that --sync_ref_model moves along with the one that trains, in a checkpoint.

Without it a resumed run would measure its KL from the weights that training began with, and not from where the reference had come to; TRL saves the model that trains alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file

FILE = "reference.safetensors"


def save_reference(weights: dict[str, torch.nn.Parameter], folder: Path, *, writes: bool) -> None:
    """Writes the weights to the checkpoint. Called on all ranks, since under ZeRO-3 each holds a part of every weight; one of them `writes`."""
    whole = {}
    for name, weight in weights.items():
        with gathered(weight):
            if writes:
                whole[name] = weight.detach().cpu().clone()
    if writes:
        save_file(whole, folder / FILE)


def load_reference(weights: dict[str, torch.nn.Parameter], folder: Path) -> None:
    """Takes over what the checkpoint has, on all ranks. Does nothing where it has none: the run had a reference that stays."""
    if not (folder / FILE).is_file():
        return
    whole = load_file(folder / FILE)
    for name, weight in weights.items():
        with gathered(weight), torch.no_grad():
            weight.copy_(whole[name])


@contextmanager
def gathered(weight: torch.nn.Parameter) -> Iterator[None]:
    """Within it the weight is whole on each rank; changed there on rank 0, it is changed on all."""
    plugin = AcceleratorState().deepspeed_plugin
    if plugin is None or plugin.zero_stage != 3:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
        yield
