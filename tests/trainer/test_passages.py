"""Cut passages and pictures of their articles in training: the same prompts in GRPO, SFT and evaluation, and steps that run on them."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import grpo_run
import pytest
import sft_run
import torch
from PIL import Image
from training_rows import write_data

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig
from open_r1_kivqa.evaluation.generate import tokenize_prompts
from open_r1_kivqa.evaluation.predict import predict
from open_r1_kivqa.prompts import image_paths
from open_r1_kivqa.recipe import before_the_model

MORE = " It lies at a river. Many people live there. It is old."


@pytest.fixture
def flags(tmp_path):
    """Eight rows with no, one or two images; passages of four sentences, of which every second article has a picture."""
    flags = write_data(tmp_path / "data", kinds="01201102")
    path = Path(flags["knowledge_base"])
    articles = [json.loads(line) for line in path.read_text().splitlines()]
    for number, article in enumerate(articles):
        article["sections"][0]["text"] += "." + MORE
        if number % 2 == 0:
            article["images"] = [f"{article['key']}.png"]
            Image.new("RGB", (56, 84), (number, 200, 0)).save(path.parent / f"{article['key']}.png")
    path.write_text("".join(json.dumps(article) + "\n" for article in articles))
    return sft_run.with_responses(flags)


def prompting(flags, model, folder, **more):
    """What the entries pass on, as the flags say."""
    data = DataArguments(**flags, max_passage_tokens=40, passage_images=2, num_passages=3, system_prompt="", **more)
    args = grpo_run.config(folder)
    _, rows, _, made = before_the_model(data, VLMModelConfig(model_name_or_path=model), args, frozenset())
    return rows, made


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_training_and_evaluation_show_the_same_passages(family, tiny_model, tmp_path, flags):
    model = tiny_model(family)
    rows, shown = prompting(flags, model, tmp_path / "run")
    grpo = grpo_run.make_trainer(model, flags, grpo_run.config(tmp_path / "grpo"))
    rollout = replace(grpo.rollout, rows=rows, prompting=shown)
    sft = sft_run.PromptCompletions(rows, shown, epoch=0)
    learner = sft_run.make_trainer(model, flags, sft_run.config(tmp_path / "sft"), examples=sft)
    seen = []
    predict(
        [rows[i] for i in range(8)],
        "normal",
        shown,
        generate=lambda prompts: seen.extend(prompts) or ["x"] * len(prompts),
    )
    counted = 0
    for number in range(8):
        (built,) = rollout.build([{"row": number}], [number])
        prompt = built["prompt"]
        assert prompt == seen[number]
        example = pickle.loads(pickle.dumps(sft)).example(number)
        assert len(example["images"]) == len(image_paths(prompt))
        text = "".join(block.get("text", "") for block in prompt[-1]["content"])
        assert "The capital of France: yes." in text and MORE not in text
        own, pictures = rows[number].images, image_paths(prompt)
        assert tuple(pictures[: len(own)]) == own
        # Germany has none, Italy is the third.
        assert [Path(path).name for path in pictures[len(own) :]] == ["france.png"]
        counted += len(pictures)
        wanted = tokenize_prompts(grpo.processing_class, [prompt])
        batch = learner.data_collator([learner.train_dataset[number]])
        length = wanted["input_ids"].shape[1]
        assert torch.equal(batch["input_ids"][0][:length], wanted["input_ids"][0])
        assert torch.equal(batch["pixel_values"], wanted["pixel_values"])
    assert counted == 8 + 7


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_steps_run_on_rows_with_and_without_pictures(family, tiny_model, tmp_path, flags):
    model = tiny_model(family)
    rows, shown = prompting(flags, model, tmp_path / "run")
    grpo = grpo_run.make_trainer(model, flags, grpo_run.config(tmp_path / "grpo"))
    grpo.rollout = replace(grpo.rollout, rows=rows, prompting=shown)
    grpo.train()
    assert len(grpo_run.losses(grpo)) == 2
    sft = sft_run.make_trainer(
        model, flags, sft_run.config(tmp_path / "sft"), examples=sft_run.PromptCompletions(rows, shown)
    )
    sft.train()
    assert len(grpo_run.losses(sft)) == 2 and all(loss > 0 for loss in grpo_run.losses(sft))
