"""Log-probs with each prompt computed once: equal to stock TRL's for every family, kind of row and way to train."""

from pathlib import Path

import numpy as np
import pytest
import torch
from grpo_run import config, letters_reward, losses, make_trainer, record_completions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_rows import data_flags, write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.rollout import ROW
from open_r1_kivqa.vlm_modules.internvl import InternVL

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")
KINDS = "12010020"


@pytest.fixture(scope="module", params=FAMILIES)
def trainer(request, tiny_model, tmp_path_factory):
    """On eight rows with none to two images."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = write_data(folder / "data", kinds=KINDS)
    args = config(folder / "run", per_device_train_batch_size=8, num_generations=4)
    return make_trainer(tiny_model(request.param), flags, args)


def batch_of(trainer, rows: list[int], lengths: list[int], seed: int) -> dict:
    """The arguments of `_get_per_token_logps_and_entropies`, as TRL makes them, for rows of the data with random completions of these lengths."""
    entries = trainer.rollout.build([{ROW: row} for row in rows], rows)
    prompt_ids, _, fields = trainer._tokenize_prompts([entry["prompt"] for entry in entries])
    length, width = max(map(len, prompt_ids)), max(1, *lengths)
    generator = torch.Generator().manual_seed(seed)
    ids, mask = torch.zeros(2, len(rows), length + width, dtype=torch.long)
    types = torch.zeros_like(ids)
    for i, (prompt, its) in enumerate(zip(prompt_ids, lengths, strict=True)):
        ids[i, length - len(prompt) : length] = torch.tensor(prompt)
        ids[i, length : length + its] = torch.randint(5, 100, (its,), generator=generator)
        mask[i, length - len(prompt) : length + its] = 1
        if "mm_token_type_ids" in fields:
            types[i, length - len(prompt) : length] = torch.tensor(fields["mm_token_type_ids"][i])
    batch = {"input_ids": ids, "attention_mask": mask, "logits_to_keep": width}
    images = [int(KINDS[row]) for row in rows]
    if sum(images):
        batch |= {
            key: torch.as_tensor(np.array(fields[key])) for key in ("pixel_values", "image_grid_thw") if key in fields
        }
        batch |= {"num_images": images}
        if "mm_token_type_ids" in fields:
            batch["mm_token_type_ids"] = types
        else:
            processor = trainer.processing_class
            tokens = (ids == processor.tokenizer.convert_tokens_to_ids(processor.image_token)).sum(dim=1)
            batch["num_tiles"] = (tokens // processor.image_seq_length).tolist()
    return batch


def passes(trainer, batch: dict, **options):
    """(log-probs, entropies, gradients of a random weighting of both) of our pass and of the one without it."""
    results = []
    for shares in (True, False):
        trainer.shares_prefix = shares
        trainer.model.zero_grad()
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model_wrapped, **batch, compute_entropy=True, **options
        )
        weights = torch.randn(2, *logps.shape, generator=torch.Generator().manual_seed(0))
        (logps * weights[0] + entropies * weights[1]).sum().backward()
        gradients = {name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None}
        results.append((logps.detach(), entropies.detach(), gradients))
    trainer.shares_prefix = True
    return results


def assert_equal(ours, stock, tolerance: float = 1e-5) -> None:
    """Log-probs and entropies one by one and gradients by parameter, each relative to the largest of its kind."""
    for got, wanted in zip(ours[:2], stock[:2], strict=True):
        assert (got - wanted).abs().max() <= tolerance * max(1.0, wanted.abs().max())
        assert torch.equal(got == 0, wanted == 0)
    assert ours[2].keys() == stock[2].keys()
    total = torch.cat([one.flatten() for one in stock[2].values()]).norm()
    for name, wanted in stock[2].items():
        assert (ours[2][name] - wanted).norm() <= tolerance * max(wanted.norm(), 1e-2 * total), name


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    groups=st.lists(
        st.tuples(st.integers(0, 7), st.lists(st.integers(0, 7), min_size=1, max_size=4)), min_size=1, max_size=3
    ),
    budget=st.sampled_from([None, 40, 150]),
    seed=st.integers(0, 9),
)
def test_equals_the_stock_pass(trainer, groups, budget, seed):
    """Any rows, alone or in groups, with completions of any length, empty ones too; all at once or in several passes."""
    rows = [row for row, lengths in groups for _ in lengths]
    batch = batch_of(trainer, rows, [length for _, lengths in groups for length in lengths], seed)
    trainer.args.shared_prefix_max_tokens = budget
    assert_equal(*passes(trainer, batch))
    trainer.args.shared_prefix_max_tokens = None


def test_rows_of_one_question_with_other_pictures_are_kept_apart(trainer):
    """The same tokens, other pixels."""
    batch = batch_of(trainer, [0, 0, 0, 0], [3, 4, 5, 6], seed=1)
    half = len(batch["pixel_values"]) // 2
    batch["pixel_values"] = torch.cat([batch["pixel_values"][:half], batch["pixel_values"][half:] + 0.5])
    ours, stock = passes(trainer, batch)
    assert_equal(ours, stock)
    same = batch_of(trainer, [0, 0, 0, 0], [3, 4, 5, 6], seed=1)
    assert (passes(trainer, same)[0][0] - ours[0])[2:].abs().max() > 1e-3


def test_without_gradients_in_slices_of_the_batch(trainer):
    batch = batch_of(trainer, [0, 0, 0, 0, 1, 1, 1, 1], [3, 5, 1, 2, 6, 4, 0, 2], seed=2)
    with torch.no_grad():
        ours = trainer._get_per_token_logps_and_entropies(trainer.model_wrapped, **batch, batch_size=4)
        trainer.shares_prefix = False
        stock = trainer._get_per_token_logps_and_entropies(trainer.model_wrapped, **batch, batch_size=4)
        trainer.shares_prefix = True
    assert ours[1] is None and stock[1] is None
    torch.testing.assert_close(ours[0], stock[0], rtol=1e-5, atol=1e-5)


OPTIONS = {
    "plain": ({}, {}),
    "checkpointing": ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}, {}),
    "reentrant": ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, {}),
    "lora": ({"gradient_checkpointing": True}, {"use_peft": True, "lora_r": 4}),
    "frozen tower": ({}, {"freeze_vision_modules": True}),
    "split groups": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, {}),
    "small passes": ({"shared_prefix_max_tokens": 200}, {}),
    "masked": ({"mask_truncated_completions": True, "max_completion_length": 4}, {}),
    "stages": ({"ptst": "3:6:4,2:6:2", "max_steps": -1}, {}),
}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_seeded_run_has_the_same_losses(family, kind, tiny_model, tmp_path):
    """Five steps on recorded completions."""
    options, model_flags = OPTIONS[kind]
    ours = run(tiny_model(family), tmp_path, options, model_flags)
    stock = run(tiny_model(family), tmp_path, options, model_flags, shared_prefix=False, keep_groups=True)
    assert ours[0] == pytest.approx(stock[0], rel=1e-4, abs=1e-6) and len(stock[0]) == 5
    assert any(abs(loss) > 1e-6 for loss in stock[0])
    for name, wanted in stock[1].items():
        torch.testing.assert_close(ours[1][name], wanted, rtol=1e-3, atol=1e-4, msg=name)


def run(model: str, folder: Path, options: dict, model_flags: dict, **more) -> tuple[list[float], dict]:
    """Losses, and the trained weights at the end."""
    defaults = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 5, "beta": 0.1, "optim": "sgd"}
    data = folder / "data"
    flags = data_flags(data) if data.exists() else write_data(data, kinds=KINDS)
    if not more.get("shared_prefix", True):
        options = {name: value for name, value in options.items() if name != "shared_prefix_max_tokens"}
    args = config(folder / f"run-{bool(more)}", **{**defaults, **options}, **more)
    trainer = make_trainer(model, flags, args, model_flags, reward_funcs=[letters_reward])
    record_completions(trainer)
    assert trainer.shares_prefix == args.shared_prefix
    trainer.train()
    return losses(trainer), {
        name: one.detach().clone() for name, one in trainer.model.named_parameters() if one.requires_grad
    }


def test_groups_meet_in_micro_batches(tiny_model, tmp_path):
    """Two micro-batches of four rows each hold two whole groups of two; shuffled row by row, TRL's way, groups are torn."""
    flags = write_data(tmp_path / "data", kinds="11111111")
    whole = {}
    for keep in (True, False):
        args = config(
            tmp_path / f"{keep}", gradient_accumulation_steps=2, num_generations=2, max_steps=4, keep_groups=keep
        )
        trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args)
        record_completions(trainer)
        torn = []

        def remember(
            model, input_ids, attention_mask, logits_to_keep, batch_size, entropy, vision, torn=torn, trainer=trainer
        ):
            if torch.is_grad_enabled():
                torn.append(len(trainer._prompts(model, input_ids, attention_mask, logits_to_keep, vision)) > 2)
            return type(trainer)._logps_of_shared_prompts(
                trainer, model, input_ids, attention_mask, logits_to_keep, batch_size, entropy, vision
            )

        trainer._logps_of_shared_prompts = remember
        trainer.train()
        assert len(torn) == 8
        whole[keep] = not any(torn)
    assert whole == {True: True, False: False}


def test_where_it_is_not_exact_the_stock_pass_is_taken_and_said_once(tiny_model, tmp_path, capsys, monkeypatch):
    flags = write_data(tmp_path / "data")
    monkeypatch.setattr(InternVL, "shares_prefix", False)
    trainer = make_trainer(tiny_model("internvl"), flags, config(tmp_path / "unknown"))
    trainer.train()
    assert not trainer.shares_prefix
    assert (
        capsys.readouterr().out.count("(--shared_prefix has no effect): it isn't known to be exact for InternVL") == 1
    )
    monkeypatch.undo()
    eager = {"attn_implementation": "eager"}
    trainer = make_trainer(tiny_model("internvl"), flags, config(tmp_path / "eager"), eager)
    assert not trainer.shares_prefix
    assert "it needs sdpa or flash attention" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"torch_compile": True, "torch_compile_backend": "eager"}, "would compile every layout"),
        ({"neftune_noise_alpha": 5.0}, "measures its noise by a row's length"),
    ],
)
def test_what_a_packed_row_would_change_takes_the_stock_pass_and_trains(option, why, tiny_model, tmp_path, capsys):
    """A packed row is longer than each of its rows, and of another layout in each pass. Generation goes on as these flags let it."""
    flags = write_data(tmp_path / "data", kinds="1000")
    runs = []
    for shares in (True, False):
        args = config(tmp_path / f"{shares}", max_steps=1, shared_prefix=shares, keep_groups=True, **option)
        trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args, reward_funcs=[letters_reward])
        assert (why in capsys.readouterr().out) == shares and not trainer.shares_prefix
        record_completions(trainer)
        trainer.train()
        runs.append(losses(trainer))
    assert runs[0] == runs[1] and len(runs[0]) == 1


def test_a_batch_size_that_tears_groups_is_told(tiny_model, tmp_path, capsys):
    flags = write_data(tmp_path / "data")
    make_trainer(
        tiny_model("qwen2_5_vl"),
        flags,
        config(tmp_path, per_device_train_batch_size=2, num_generations=4, gradient_accumulation_steps=2),
    )
    assert "of 4 completions at most 2 meet in one of 2 rows" in capsys.readouterr().out
    make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path))
    assert "WARNING" not in capsys.readouterr().out


def test_a_limit_without_the_pass_is_refused(tmp_path):
    with pytest.raises(InputError, match="--shared_prefix_max_tokens has nothing to act on"):
        config(tmp_path, shared_prefix=False, shared_prefix_max_tokens=100)


@pytest.mark.parametrize("given", [{"use_reentrant": True}, '{"use_reentrant": true}'])
def test_several_passes_with_reentrant_checkpointing_are_refused(given, tmp_path):
    """Under ZeRO-3 all passes but one would be missing from the gradients, and nothing would say so."""
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": given}
    with pytest.raises(InputError, match="leave use_reentrant out"):
        config(tmp_path, shared_prefix_max_tokens=100, **options)
    config(tmp_path, **options)
    config(tmp_path, shared_prefix_max_tokens=100, **options | {"gradient_checkpointing": False})
    config(tmp_path, shared_prefix_max_tokens=100, gradient_checkpointing=True)


def test_generation_and_saved_models_know_nothing_of_it(tiny_model, tmp_path):
    flags = write_data(tmp_path / "data")
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run"))
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert "shared_prefix" not in (tmp_path / "saved" / "config.json").read_text()
