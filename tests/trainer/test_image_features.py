"""Pictures that a frozen vision tower sees once a generation batch: the same results, and no picture twice."""

import pytest
import torch
from grpo_run import config, letters_reward, losses, make_trainer, record_completions, weights
from test_shared_prefix import KINDS, batch_of
from training_rows import data_flags, write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.trainer.image_features import ImageFeatures, drops_out
from open_r1_kivqa.trainer.shared_prefix import plain_model
from open_r1_kivqa.trainer.validation import GreedyValidation

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")
FROZEN = {"freeze_vision_modules": True, "freeze_projector": True}


def inner_model(trainer):
    return plain_model(trainer.accelerator, trainer.model).base_model


def seen_by_tower(trainer) -> list[list[int]]:
    """Fills up with a list for each run of the vision tower: a number for each picture (InternVL: tile) in it, equal where the pixels are."""
    runs, numbers, inner = [], {}, inner_model(trainer)

    def watch(tower, args, kwargs):
        pixels = kwargs["pixel_values"] if "pixel_values" in kwargs else args[0]
        sizes = kwargs["grid_thw"].prod(dim=-1).tolist() if "grid_thw" in kwargs else 1
        pictures = [(one.shape, one.numpy().tobytes()) for one in pixels.split(sizes)]
        runs.append([numbers.setdefault(one, len(numbers)) for one in pictures])

    tower = inner.visual if hasattr(inner, "visual") else inner.vision_tower
    tower.register_forward_pre_hook(watch, with_kwargs=True)
    return runs


def run(model: str, folder, options: dict, model_flags: dict, change=None, recorded=False, **more):
    """A run of two generation batches of four rows of one picture or two or none; its trainer and what the tower saw."""
    data = folder / "data"
    flags = data_flags(data) if data.exists() else write_data(data, kinds=KINDS)
    defaults = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "num_iterations": 2,
        "max_steps": 4,
        "beta": 0.1,
        "optim": "sgd",
    }
    args = config(folder / f"run-{len(list(folder.iterdir()))}", **{**defaults, **options}, **more)
    trainer = make_trainer(model, flags, args, FROZEN | model_flags, reward_funcs=[letters_reward])
    if recorded:
        record_completions(trainer)
    if change is not None:
        change(trainer)
    runs = seen_by_tower(trainer)
    trainer.train()
    return trainer, runs


LORA = {"use_peft": True, "lora_r": 4, "lora_dropout": 0.0}
RUNS = {  # flags of training and of the model
    "plain": ({}, {}),
    "lora": ({"gradient_checkpointing": True}, LORA),
    "stock passes": ({"shared_prefix": False, "shared_prefill": False}, {}),
    "small passes": (
        {"shared_prefix_max_tokens": 200, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
        {},
    ),
}


@pytest.mark.parametrize(
    "family, kind",
    [
        *((family, "plain") for family in FAMILIES),
        ("qwen3_vl", "lora"),
        ("internvl", "lora"),
        ("internvl", "stock passes"),
        ("qwen3_vl", "small passes"),
    ],
)
def test_a_run_sees_each_picture_once_a_batch(family, kind, tiny_model, tmp_path):
    """Generation, old and reference log-probs and two passes of the loss, in two batches of other pictures: the same losses and weights."""
    options, model_flags = RUNS[kind]
    ours, runs = run(tiny_model(family), tmp_path, options, model_flags)
    stock, all_runs = run(tiny_model(family), tmp_path, options, model_flags, reuse_image_features=False)
    once = [picture for batch in runs for picture in batch]
    assert len(once) == len(set(once)) == len({picture for batch in all_runs for picture in batch}) >= 6
    assert len(runs) == 2 and len(all_runs) >= 8
    assert losses(ours) == pytest.approx(losses(stock), rel=1e-6, abs=1e-9) and len(losses(stock)) == 4
    for name, wanted in weights(stock).items():
        torch.testing.assert_close(weights(ours)[name], wanted, rtol=1e-6, atol=1e-7, msg=name)


@pytest.fixture(scope="module", params=FAMILIES)
def trainer(request, tiny_model, tmp_path_factory):
    """Under LoRA on the language model, on eight rows with none to two images."""
    folder = tmp_path_factory.mktemp(request.param)
    args = config(folder / "run", per_device_train_batch_size=8, num_generations=4)
    return make_trainer(tiny_model(request.param), write_data(folder / "data", kinds=KINDS), args, FROZEN | LORA)


@pytest.mark.parametrize(
    "rows", [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 6, 6, 6, 6], [2, 2, 2, 2, 4, 4, 4, 4], [0, 1, 2, 3, 4, 5, 6, 7]]
)
def test_a_pass_has_the_same_gradients(trainer, rows):
    """One image and two in a row, rows without, none with, no two alike; the first pass and one from memory."""
    batch = batch_of(trainer, rows, [3, 5, 0, 7, 2, 4, 6, 1], seed=3)
    results = []
    for reuses in (False, True, True):
        kept = trainer._features
        if not reuses:
            kept.clear()
            trainer._features = None
        trainer.model.zero_grad()
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(trainer.model, **batch, compute_entropy=True)
        trainer._features = kept
        (logps.sum() + entropies.square().sum()).backward()
        gradients = [one.grad.flatten() for one in trainer.model.parameters() if one.grad is not None]
        results.append((logps.detach(), entropies.detach(), torch.cat(gradients)))
    for got in results[1:]:
        for ours, wanted in zip(got, results[0], strict=True):
            assert (ours - wanted).norm() <= 1e-6 * wanted.norm()
    assert results[0][2].norm() > 0


def test_pictures_that_hardly_differ_are_told_apart(trainer):
    """One value of one picture, which no sample of values needs to show; another precision; and a batch forgotten."""
    batch = batch_of(trainer, [0, 1], [2, 2], seed=0)
    inner = inner_model(trainer)
    pixels, grid = batch["pixel_values"], batch.get("image_grid_thw")
    whole = [pixels[:1]] if grid is None else [pixels[: grid[0].prod()], grid[:1]]
    other = [whole[0].clone(), *whole[1:]]
    other[0].view(-1)[1] += 1e-3
    features = ImageFeatures()

    def get(pixels, grid=None):
        return features.of(inner.get_image_features, pixels, grid).pooler_output[0]

    def want(*picture):
        return inner.get_image_features(*picture, return_dict=True).pooler_output[0]

    for picture in (whole, other, whole, [whole[0].clone(), *whole[1:]], other):
        assert torch.equal(get(*picture), want(*picture))
    assert features.computed == 2 and not torch.equal(get(*whole), get(*other))
    before = get(*whole)
    assert not before.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(get(*whole), want(*whole))
        assert not torch.equal(get(*whole).float(), before)
    assert features.computed == 3
    features.clear()
    get(*whole)
    assert features.computed == 4


def test_outside_its_passes_the_model_is_as_it_was(trainer):
    """Evaluation between two batches neither takes from memory nor adds to it."""
    inner = inner_model(trainer)
    with pytest.raises(InputError), trainer.features_reused(trainer.model):
        assert "get_image_features" in vars(inner)
        raise InputError("a pass that fails")
    assert "get_image_features" not in vars(inner)
    runs, computed = seen_by_tower(trainer), trainer._features.computed
    validation = GreedyValidation(
        trainer.rollout.rows.subset([0]),
        trainer.rollout.prompting,
        folder=trainer.args.output_dir,
        max_new_tokens=2,
        batch_size=1,
    )
    validation.records(trainer, "normal")
    assert len(runs) == 1 and trainer._features.computed == computed


def other_tower(trainer) -> None:
    """Gives the reference another tower than the model's."""
    inner = trainer.accelerator.unwrap_model(trainer.ref_model).base_model
    with torch.no_grad():
        for one in (inner.visual if hasattr(inner, "visual") else inner.vision_tower).parameters():
            one.mul_(1.5)


@pytest.mark.parametrize(
    "family, options, change",
    [
        ("qwen2_5_vl", {}, other_tower),
        ("internvl", {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.9}, None),
    ],
)
def test_a_reference_with_a_tower_of_its_own(family, options, change, tiny_model, tmp_path):
    """Its features are its own; so are those of one that follows the model, which is rounded on its way."""
    ours, runs = run(tiny_model(family), tmp_path, options, {}, change, recorded=True)
    stock, _ = run(tiny_model(family), tmp_path, options, {}, change, recorded=True, reuse_image_features=False)
    assert ours._reference_features is not ours._features and ours._reference_features.computed == 6
    assert losses(ours) == pytest.approx(losses(stock), rel=1e-6, abs=1e-9)
    same, _ = run(tiny_model(family), tmp_path, {}, {}, recorded=True)
    assert same._reference_features is same._features
    assert losses(ours) != pytest.approx(losses(same), rel=1e-6, abs=1e-9)


REASONS = {  # flags of the model, what is said, whether it is said unasked
    "tower": ({"freeze_projector": True}, "the vision tower trains", False),
    "projector": ({"freeze_vision_modules": True}, "the projector trains", True),
    "adapters": (LORA, "the vision tower trains", False),
    "language adapters": (LORA | {"lora_target_modules": ".*language_model.*q_proj"}, None, False),
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_trains_is_not_reused(kind, tiny_model, tmp_path, capsys):
    """On by itself where it is exact; else off, with a word where the tower is frozen, and refused where the flag asks for it."""
    model_flags, why, said = REASONS[kind]
    family = "qwen2_5_vl" if kind == "projector" else "internvl"  # its projector lies inside the tower
    flags = write_data(tmp_path / "data")
    trainer = make_trainer(tiny_model(family), flags, config(tmp_path), model_flags)
    assert (trainer._features is None) == (why is not None)
    assert ("--reuse_image_features has no effect" in capsys.readouterr().out) == said
    asked = config(tmp_path, reuse_image_features=True)
    if why is None:
        assert make_trainer(tiny_model(family), flags, asked, model_flags)._features is not None
    else:
        with pytest.raises(InputError, match=f"--reuse_image_features can't be had: {why}"):
            make_trainer(tiny_model(family), flags, asked, model_flags)
    assert (
        make_trainer(tiny_model(family), flags, config(tmp_path, reuse_image_features=False), model_flags)._features
        is None
    )


def test_a_tower_that_drops_out_is_not_reused(tiny_model, tmp_path, capsys):
    flags = write_data(tmp_path / "data")
    trainer = make_trainer(tiny_model("internvl"), flags, config(tmp_path), FROZEN)
    tower = inner_model(trainer).vision_tower
    for place in (tower.encoder.layer[0].attention, tower.embeddings.dropout):
        name = "p" if hasattr(place, "p") else "attention_dropout"
        assert not drops_out(trainer.model, trainer.module)
        setattr(place, name, 0.1)
        assert drops_out(trainer.model, trainer.module)
        setattr(place, name, 0.0)
    inner_model(trainer).language_model.layers[0].self_attn.attention_dropout = 0.1
    assert not drops_out(trainer.model, trainer.module)
