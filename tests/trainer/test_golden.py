"""Golden numbers: which rows a seed draws, and the losses of five steps on recorded completions. A change that moves them must say why.

After an intended change: `python tests/trainer/test_golden.py` writes golden.json anew.
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).with_name("golden.json")
FAMILIES = ("qwen2_5_vl", "internvl")


def run(model_path: str, folder: Path) -> dict:
    from grpo_run import config, letters_reward, losses, make_trainer, record_completions
    from training_rows import write_data

    drawn = []

    def remember(prompts, completions, sample_id, passages, **kwargs):
        drawn.append([f"{id} {' '.join(keys)}" for id, keys in zip(sample_id[::2], passages[::2], strict=True)])
        return [None] * len(prompts)

    flags = write_data(folder / "data")
    args = config(folder / "run", max_steps=5, beta=0.1, seed=11)
    trainer = make_trainer(model_path, flags, args, reward_funcs=[letters_reward, remember])
    set_weights(trainer.model)
    set_weights(trainer.ref_model)
    record_completions(trainer)
    trainer.train()
    return {"drawn": drawn, "losses": losses(trainer)}


def set_weights(model) -> None:
    """Weights that depend on their names alone, so that a library's new way to initialise doesn't move the numbers."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + values if "norm" in name and name.endswith("weight") else values)


@pytest.mark.parametrize("family", FAMILIES)
def test_seeded_run_matches_the_golden_numbers(family, tiny_model, tmp_path):
    golden = json.loads(GOLDEN.read_text())[family]
    now = run(tiny_model(family), tmp_path)
    assert now["drawn"] == golden["drawn"]
    assert now["losses"] == pytest.approx(golden["losses"], rel=1e-4, abs=1e-6)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny import make_tiny

    numbers = {}
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            numbers[name] = run(make_tiny(name, Path(folder) / "model"), Path(folder))
    GOLDEN.write_text(json.dumps(numbers, indent=1) + "\n")
