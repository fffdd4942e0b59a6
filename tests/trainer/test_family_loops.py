"""The whole way of every family, on rows with none, one, two and three images: trained, saved, loaded again, answering the same; resumed like the unbroken run; its reference the model it started from."""

import shutil

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
    texts = greedy(model, processor, asked, max_new_tokens=3, batch_size=4)
    return texts, logits_of(model, processor, asked)


def logits_of(model, processor, asked) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return torch.stack([model(**tokenize_prompts(processor, [prompt])).logits[0, -1] for prompt in asked])


@pytest.fixture(scope="module")
def start_logits(tiny_model, tmp_path_factory):
    """start_logits(family) -> what the model that training starts from says to the prompts."""
    asked = prompts(write_data(tmp_path_factory.mktemp("start") / "data", kinds=KINDS))
    known = {}

    def of(family: str) -> torch.Tensor:
        if family not in known:
            processor = load_processor(tiny_model(family), **limits(family))
            known[family] = logits_of(load_model(tiny_model(family)), processor, asked)
        return known[family]

    return of


def check(trainer, family: str, way: str, base: str, start_logits, asked, folder: str) -> dict:
    """Train two steps; only what may move moves, and what was saved answers as the model in memory. Gives the trained weights."""
    start = weights(trainer)
    trainer.train()
    assert len(losses(trainer)) == 2 and all(map(torch.isfinite, torch.tensor(losses(trainer))))
    trained = weights(trainer)
    moved = {name for name, value in start.items() if not torch.equal(value, trained[name])}
    assert {MODULES[family].parameter_part(name) for name in moved} == TRAINED[way]
    assert all(".lora_" in name for name in moved) == (way == "lora")

    trainer.save_model(folder)
    told, logits = answers(trainer.model, trainer.processing_class, asked)
    assert (start_logits - logits).abs().amax(dim=1).min() > 1e-4, "every prompt's logits show the training"
    # As plain transformers and plain peft load it.
    saved = AutoModelForImageTextToText.from_pretrained(base if way == "lora" else folder, dtype=torch.float32)
    saved = PeftModel.from_pretrained(saved, folder) if way == "lora" else saved
    told_again, logits_again = answers(saved, load_processor_beside(folder, base), asked)
    assert told_again == told
    assert torch.equal(logits_again, logits)
    return trained


def load_processor_beside(folder: str, base: str):
    """The processor that was saved with the model or the adapter; its image limits are part of it."""
    copy = shutil.copytree(folder, f"{folder}-with-config")
    shutil.copy(f"{base}/config.json", copy)
    return load_processor(copy)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_grpo_from_start_to_answers(family, way, tiny_model, tmp_path, flags, start_logits):
    """Resuming is tested in test_checkpoints.py, for every family too.

    The reference is the model as training began, of the same class (VLM-R1 338 and 90: a class that could not hold it); under LoRA it is what lies beneath the adapter.
    """
    base, asked = tiny_model(family), prompts(flags)
    options = {"max_steps": 2, "learning_rate": 1e-2, "per_device_train_batch_size": 8, "max_completion_length": 4}
    args = grpo_run.config(tmp_path / "run", beta=0.04, **options)
    trainer = grpo_run.make_trainer(base, flags, args, {**WAYS[way], **limits(family)})
    check(trainer, family, way, base, start_logits(family), asked, str(tmp_path / "saved"))
    if way == "lora":
        assert trainer.ref_model is None
        with trainer.model.disable_adapter():
            assert torch.equal(logits_of(trainer.model, trainer.processing_class, asked), start_logits(family))
    else:
        assert type(trainer.ref_model) is type(trainer.model)
        assert torch.equal(logits_of(trainer.ref_model, trainer.processing_class, asked), start_logits(family))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_supervised_from_start_to_answers_and_resumed(family, way, tiny_model, tmp_path, flags, start_logits):
    base = tiny_model(family)

    def make(folder):
        options = {"max_steps": 2, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 1}
        args = sft_run.config(folder, **options)
        return sft_run.make_trainer(base, flags, args, {**WAYS[way], **limits(family)})

    trainer = make(tmp_path / "run")
    trained = check(trainer, family, way, base, start_logits(family), prompts(flags), str(tmp_path / "saved"))
    resumed = make(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert losses(resumed) == losses(trainer)
    assert all(torch.equal(value, trained[name]) for name, value in weights(resumed).items())


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_that_matches_no_parameter_is_found_in_every_part(family, tiny_model):
    model = load_model(tiny_model(family))
    for part in PARTS:
        module = type(MODULES[family])()
        setattr(module, part, (*getattr(module, part), "model.gone"))
        with pytest.raises(InputError, match=rf"expects parameters under 'model.gone' \({part}\)"):
            module.check_prefixes(model)
