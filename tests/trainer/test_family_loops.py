"""The whole way of every family, on rows with none, one, two and three images: trained, saved, loaded again, answering the same; resumed like the unbroken run; its reference the model it started from."""

import grpo_run
import pytest
import sft_run
import torch
from grpo_run import losses, weights
from peft import PeftModel
from tiny import FAMILIES
from training_rows import write_data
from transformers import AutoModelForImageTextToText

from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.generate import greedy, tokenize_prompts
from open_r1_kivqa.prompts import build_prompt, load_template
from open_r1_kivqa.vlm_modules import MODULES, PARTS
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

KINDS = "30212012"  # images of each row; a step takes four of the eight rows
FROZEN = {"freeze_vision_modules": True}
WAYS = {"full": {}, "frozen": FROZEN, "lora": {"use_peft": True, "lora_r": 4, **FROZEN}}
TRAINED = {"full": set(PARTS), "frozen": {"projector", "language"}, "lora": {"projector", "language"}}


@pytest.fixture
def flags(tmp_path):
    return sft_run.with_responses(write_data(tmp_path / "data", kinds=KINDS))


def limits(family: str) -> dict:
    """Smaller images than the checkpoint's own limit allows."""
    return {"max_anyres_num": 1} if family == "internvl" else {"max_pixels": 3200}


def prompts(flags) -> list[list[dict]]:
    """Of the first four rows: three images, none, two, one."""
    rows = Rows.open([flags["data_file_paths"]], [flags["image_folders"]], None)
    return [build_prompt(rows[i], [], load_template("kivqa"), system_prompt="Think.") for i in range(4)]


def answers(model, processor, asked) -> tuple[list[str], torch.Tensor]:
    """Greedy continuations, and the logits after each of the prompts."""
    texts = greedy(model, processor, asked, max_new_tokens=6, batch_size=4)
    model.eval()
    with torch.no_grad():
        logits = [model(**tokenize_prompts(processor, [prompt])).logits[0, -1] for prompt in asked]
    return texts, torch.stack(logits)


def loaded(family: str, way: str, base: str, folder: str):
    """What was saved, as plain transformers and plain peft load it."""
    if way != "lora":
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32), folder)


def walk(make, family: str, way: str, tmp_path, asked, base: str) -> None:
    """Train two steps with a checkpoint after the first, save, load, ask; then resume from the checkpoint."""
    trainer = make(tmp_path / "run")
    start = weights(trainer)
    trainer.train()
    assert len(losses(trainer)) == 2 and all(map(torch.isfinite, torch.tensor(losses(trainer))))
    trained = weights(trainer)
    moved = {name for name, value in start.items() if not torch.equal(value, trained[name])}
    assert {MODULES[family].parameter_part(name) for name in moved} == TRAINED[way]
    assert all(".lora_" in name for name in moved) == (way == "lora")

    trainer.save_model(str(tmp_path / "saved"))
    processor = load_processor(base) if way == "lora" else load_processor(str(tmp_path / "saved"))
    MODULES[family].limit_images(processor, **limits(family))
    told, logits = answers(trainer.model, trainer.processing_class, asked)
    told_again, logits_again = answers(loaded(family, way, base, str(tmp_path / "saved")), processor, asked)
    assert told_again == told
    assert torch.equal(logits_again, logits)
    before = answers(load_model(base), processor, asked)[1]
    assert (before - logits).abs().amax(dim=1).min() > 1e-4, "every row's logits show the training"

    resumed = make(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert losses(resumed) == losses(trainer)
    assert all(torch.equal(value, trained[name]) for name, value in weights(resumed).items())


OPTIONS = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_grpo_from_start_to_answers(family, way, tiny_model, tmp_path, flags):
    base = tiny_model(family)

    def make(folder):
        args = grpo_run.config(folder, per_device_train_batch_size=8, beta=0.04, **OPTIONS)
        return grpo_run.make_trainer(base, flags, args, {**WAYS[way], **limits(family)})

    walk(make, family, way, tmp_path, prompts(flags), base)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_supervised_from_start_to_answers(family, way, tiny_model, tmp_path, flags):
    base = tiny_model(family)

    def make(folder):
        return sft_run.make_trainer(base, flags, sft_run.config(folder, **OPTIONS), {**WAYS[way], **limits(family)})

    walk(make, family, way, tmp_path, prompts(flags), base)


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_model_is_the_start_and_stays_it(family, tiny_model, tmp_path, flags):
    """VLM-R1 338 and 90: the reference was loaded by a class that could not hold it."""
    base = tiny_model(family)
    args = grpo_run.config(tmp_path / "run", per_device_train_batch_size=8, beta=0.04, max_steps=1, learning_rate=1e-2)
    trainer = grpo_run.make_trainer(base, flags, args)
    start = load_model(base).state_dict()
    assert type(trainer.ref_model) is type(trainer.model) is type(load_model(base))
    trainer.train()
    reference = trainer.accelerator.unwrap_model(trainer.ref_model).state_dict()
    assert all(torch.equal(reference[name], value) for name, value in start.items())
    assert not all(torch.equal(trainer.model.state_dict()[name], value) for name, value in start.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_needs_no_reference_since_the_start_is_beneath_the_adapter(family, tiny_model, tmp_path, flags):
    base = tiny_model(family)
    args = grpo_run.config(tmp_path / "run", per_device_train_batch_size=8, beta=0.04, max_steps=1, learning_rate=1e-2)
    trainer = grpo_run.make_trainer(base, flags, args, WAYS["lora"])
    trainer.train()
    assert trainer.ref_model is None
    asked = prompts(flags)
    with trainer.model.disable_adapter():
        _, beneath = answers(trainer.model, trainer.processing_class, asked)
    assert torch.equal(beneath, answers(load_model(base), trainer.processing_class, asked)[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_that_matches_no_parameter_is_found_in_every_part(family, tiny_model):
    model = load_model(tiny_model(family))
    for part in PARTS:
        module = type(MODULES[family])()
        setattr(module, part, (*getattr(module, part), "model.gone"))
        with pytest.raises(InputError, match=rf"expects parameters under 'model.gone' \({part}\)"):
            module.check_prefixes(model)
