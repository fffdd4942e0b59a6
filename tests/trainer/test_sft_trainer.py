"""Supervised training on tiny random models, for real: what is learnt from a row, and that a run resumes exactly."""

import json
from pathlib import Path

import grpo_run
import numpy as np
import pytest
import torch
from grpo_run import losses, weights
from PIL import Image
from sft_run import config, examples, make_trainer, rewrite_responses, with_responses
from tiny import FAMILIES, TURN_ENDS
from training_rows import write_data
from transformers import AutoModelForImageTextToText

from open_r1_kivqa.data.images import image_size
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.generate import greedy, tokenize_prompts
from open_r1_kivqa.prompts import build_prompt, load_template
from open_r1_kivqa.trainer.checkpoints import find_checkpoint
from open_r1_kivqa.vlm_modules import MODULES, module_for
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

TWO = ["qwen2_5_vl", "internvl"]


@pytest.fixture
def flags(tmp_path):
    """Eight rows with one, two or no image; the first has none."""
    return with_responses(write_data(tmp_path / "data", kinds="01201102"))


def batches(trainer, epoch: int = 0) -> list[dict]:
    trainer.state.epoch = epoch
    return list(trainer.get_train_dataloader())


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_the_response_and_its_end_alone(family, tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", train_sampling_strategy="sequential")
    trainer = make_trainer(tiny_model(family), flags, args)
    tokenizer = trainer.processing_class.tokenizer
    seen = 0
    for batch in batches(trainer):
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            sample = trainer.train_dataset.format["format_kwargs"]["transform"].rows[seen]
            assert tokenizer.decode(labels[labels != -100]) == f"{sample.answer}{TURN_ENDS[family]}"
            # The tokens before the response are those that generation starts from.
            prompt = trainer.train_dataset[seen]["prompt"]
            images = iter(sample.images)
            for block in (block for message in prompt for block in message["content"] if block["type"] == "image"):
                block["image"] = next(images)
            wanted = tokenize_prompts(trainer.processing_class, [prompt])["input_ids"][0]
            assert torch.equal(ids[mask.bool()][: len(wanted)], wanted)
            assert (labels[: len(wanted)] == -100).all()
            seen += 1
    assert seen == 8


@pytest.mark.parametrize("family", TWO)
def test_odd_image_files_give_the_same_pixels_in_grpo_sft_and_evaluation(family, tiny_model, tmp_path, flags):
    """A sideways WebP, a moving GIF, 16-bit grey: those that image libraries decode differently."""
    noise = np.random.default_rng(0).integers(0, 2**16, (56, 112, 3), dtype=np.uint16)
    colour = Image.fromarray((noise >> 8).astype(np.uint8))
    sideways = Image.Exif()
    sideways[0x0112] = 6
    odd = {"lying.webp": {"exif": sideways}, "moving.gif": {"save_all": True, "append_images": [colour.rotate(180)]}}
    for name, options in odd.items():
        colour.save(tmp_path / name, **options)
    Image.fromarray(noise[:, :, 0]).save(tmp_path / "deep.png")
    path = Path(flags["data_file_paths"])
    rows = [json.loads(line) for line in path.read_text().splitlines()][:3]
    for row, name in zip(rows, [*odd, "deep.png"], strict=True):
        row["conversations"][0]["value"] = "What is it?"
        row["image"] = name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags["image_folders"] = str(tmp_path)

    sft = make_trainer(tiny_model(family), flags, config(tmp_path / "sft"))
    grpo = grpo_run.make_trainer(tiny_model(family), flags, grpo_run.config(tmp_path / "grpo"))
    for number in range(3):
        prompt = grpo.rollout.build([{"row": number}], [number])[0]["prompt"]
        wanted = tokenize_prompts(grpo.processing_class, [prompt])
        _, _, rollout = grpo._tokenize_prompts([prompt])
        learnt = sft.data_collator([sft.train_dataset[number]])
        for found in (rollout["pixel_values"], learnt["pixel_values"]):
            assert torch.equal(torch.as_tensor(np.asarray(found)), wanted["pixel_values"])
        assert wanted["pixel_values"].abs().max() < 4  # normalised values of 8 bits
        width, height = image_size(str(tmp_path / rows[number]["image"]))
        tokens = module_for(grpo.model.config).num_image_tokens(grpo.processing_class, width, height)
        image_token = grpo.model.config.image_token_id
        assert 0 < (wanted["input_ids"] == image_token).sum() <= tokens  # `tokens` may count start and end of the image


@pytest.mark.parametrize("family", TWO)
def test_loss_is_the_mean_over_response_tokens(family, tiny_model, tmp_path, flags):
    """Against one row at a time through the plain model: batches, padding and rows without images change nothing."""
    args = config(tmp_path / "run", per_device_train_batch_size=8, max_steps=1, train_sampling_strategy="sequential")
    trainer = make_trainer(tiny_model(family), flags, args)
    model = load_model(tiny_model(family))
    total, count = 0.0, 0
    for number in range(8):
        row = trainer.data_collator([trainer.train_dataset[number]])
        labels = row.pop("labels")
        with torch.no_grad():
            logprobs = model(**row).logits[0, :-1].log_softmax(-1)
        target = labels[0, 1:]
        kept = target != -100
        total -= logprobs[kept].gather(1, target[kept, None]).sum().item()
        count += int(kept.sum())
    trainer.train()
    assert losses(trainer)[0] == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("family", TWO)
def test_accumulated_micro_batches_equal_one_batch(family, tiny_model, tmp_path, flags):
    """Each response token weighs the same, whatever micro-batch it is in: the responses' lengths differ up to tenfold."""
    runs = []
    rewrite_responses(flags, lambda number: "yes " * (1 + 10 * (number % 4)))
    for size in (8, 2):
        options = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": 8 // size,
            "optim": "sgd",
            "learning_rate": 0.1,
        }
        trainer = make_trainer(tiny_model(family), flags, config(tmp_path / str(size), max_steps=1, **options))
        trainer.train()
        runs.append((losses(trainer)[0], weights(trainer)))
    assert runs[1][0] == pytest.approx(runs[0][0], rel=1e-5)
    for name, weight in runs[0][1].items():
        torch.testing.assert_close(runs[1][1][name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_it_learns_to_answer(tiny_model, tmp_path):
    """After 50 steps the model gives each of four rows, with one, two and no image, its own response."""
    flags = with_responses(write_data(tmp_path / "data", kinds="0121"))
    args = config(tmp_path / "run", max_steps=50, learning_rate=5e-3, lr_scheduler_type="constant")
    shown = examples(flags, level="none")
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args, examples=shown)
    trainer.train()
    assert losses(trainer)[-1] < 0.05
    prompts = [build_prompt(sample, [], load_template("kivqa"), system_prompt="") for sample in shown.rows]
    answers = greedy(trainer.model, trainer.processing_class, prompts, max_new_tokens=40, batch_size=4)
    assert [answer.strip() for answer in answers] == [sample.answer for sample in shown.rows]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_frozen_parts_stay_and_the_others_learn(family, lora, tiny_model, tmp_path, flags):
    model_flags = {"freeze_vision_modules": True, **({"use_peft": True, "lora_r": 4} if lora else {})}
    trainer = make_trainer(tiny_model(family), flags, config(tmp_path / "run", max_steps=3), model_flags)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    parts = {MODULES[family].parameter_part(name) for name in changed}
    assert parts == {"projector", "language"}
    assert all(".lora_" in name for name in changed) == lora


@pytest.mark.parametrize("family", TWO)
def test_resumed_run_equals_the_unbroken_one(family, tiny_model, tmp_path, flags):
    """Resumed inside the first epoch and inside the second: two steps an epoch, shuffled, passages shuffled anew each epoch."""
    options = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "cosine"}
    unbroken = make_trainer(tiny_model(family), flags, config(tmp_path / "run", **options))
    unbroken.train()
    for step in (1, 3):
        resumed = make_trainer(tiny_model(family), flags, config(tmp_path / "run", **options))
        resumed.train(resume_from_checkpoint=find_checkpoint(str(tmp_path / "run" / f"checkpoint-{step}"), ""))
        assert losses(resumed) == losses(unbroken)
        assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(unbroken).items())


def test_lora_run_resumes(tiny_model, tmp_path, flags):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    runs = []
    for checkpoint in (None, str(tmp_path / "run" / "checkpoint-1")):
        lora = {"use_peft": True, "lora_r": 4}
        trainer = make_trainer(tiny_model("qwen3_vl"), flags, config(tmp_path / "run", **options), lora)
        trainer.train(resume_from_checkpoint=checkpoint)
        runs.append((losses(trainer), weights(trainer)))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())


def texts(trainer, epoch: int) -> list[str]:
    """The rows of an epoch in their order, as text."""
    trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
    decode = trainer.processing_class.tokenizer.decode
    found = [
        decode(ids[mask.bool()])
        for batch in batches(trainer, epoch)
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_has_its_own_order_and_passages(workers, tiny_model, tmp_path, flags):
    trainer = make_trainer(tiny_model("internvl"), flags, config(tmp_path / "run", dataloader_num_workers=workers))
    epochs = []
    for epoch in (0, 1, 1):
        trainer.state.epoch = epoch
        epochs.append(texts(trainer, epoch))
    responses = [[text.split("assistant")[-1] for text in epoch] for epoch in epochs]
    assert epochs[1] == epochs[2]
    assert sorted(responses[0]) == sorted(responses[1]) and len(set(responses[0])) == 8
    assert responses[0] != responses[1]
    assert sorted(epochs[0]) != sorted(epochs[1]), "the two passages of a row swap places in some epochs"


def test_saved_model_is_a_whole_checkpoint(tiny_model, tmp_path, flags):
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run"))
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "final")
    trained = weights(trainer)
    assert all(torch.equal(value, trained[name]) for name, value in saved.named_parameters())
    assert load_processor(str(tmp_path / "final")).chat_template == trainer.processing_class.chat_template


def test_held_out_rows_are_scored_the_same_at_every_epoch(tiny_model, tmp_path, flags):
    args = config(tmp_path / "run", eval_steps=1, per_device_eval_batch_size=3, learning_rate=0.0, max_steps=3)
    trainer = make_trainer(tiny_model("internvl"), flags, args, held_out=examples(flags))
    trainer.train()
    scores = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(scores) == 3 and len(set(scores)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataloader_persistent_workers": True, "dataloader_num_workers": 1}, "first one's passages"),
        ({"train_sampling_strategy": "group_by_length"}, "every row's length beforehand"),
    ],
)
def test_flags_that_cannot_act_are_refused(options, message, tiny_model, tmp_path, flags):
    with pytest.raises(InputError, match=message):
        make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run", **options))
