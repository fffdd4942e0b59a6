from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from launch import fork_ranks
from PIL import Image
from transformers import GenerationConfig
from trl import GRPOTrainer

from open_r1_kivqa.evaluation.generate import _Noise, greedy, sampled, tokenize_prompts
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

FAMILIES = ["qwen2_5_vl", "internvl"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Paths of noise images of different sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    paths = []
    for i in range(4):
        pixels = rng.integers(0, 256, (40 + 20 * i, 100 - 15 * i, 3), dtype=np.uint8)
        paths.append(str(folder / f"{i}.png"))
        Image.fromarray(pixels).save(paths[-1])
    return paths


@pytest.fixture(scope="module")
def prompts(pictures):
    def prompt(text, *images):
        blocks = [{"type": "image", "image": image} for image in images]
        system = {"role": "system", "content": [{"type": "text", "text": "Answer."}]}
        return [system, {"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]

    return [
        prompt("Which river flows through the city? " * 5, pictures[0]),
        prompt("What is the capital?"),
        prompt("Two pictures.", pictures[1], pictures[2]),
        prompt("yes"),
        prompt("a", pictures[3]),
        prompt("Which currency?", pictures[1]),
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tiny_model):
    folder = tiny_model(request.param)
    return load_model(folder), load_processor(folder)


def test_a_batched_answer_equals_the_row_alone(tiny, prompts):
    model, processor = tiny
    together = greedy(model, processor, prompts, max_new_tokens=8, batch_size=4)
    alone = [greedy(model, processor, [prompt], max_new_tokens=8, batch_size=1)[0] for prompt in prompts]
    assert together == alone
    assert len(set(together)) > 3  # the model does react to its input
    backwards = greedy(model, processor, prompts[::-1], max_new_tokens=8, batch_size=2)
    assert backwards == together[::-1]


def test_the_answer_is_the_most_likely_continuation(tiny, prompts):
    """Token by token with whole forward passes, without generate, padding or a cache."""
    model, processor = tiny
    inputs = tokenize_prompts(processor, prompts[:1])
    ids = inputs.pop("input_ids")
    length = ids.shape[1]
    for _ in range(4):
        extra = ids.shape[1] - length
        longer = dict(inputs, input_ids=ids, attention_mask=torch.ones_like(ids))
        if "mm_token_type_ids" in inputs:
            types = inputs["mm_token_type_ids"]
            longer["mm_token_type_ids"] = torch.cat([types, types.new_zeros(1, extra)], dim=1)
        with torch.no_grad():
            logits = model(**longer).logits[0, -1]
        logits[model.config.image_token_id] = -torch.inf
        ids = torch.cat([ids, logits.argmax().view(1, 1)], dim=1)
    expected = processor.tokenizer.decode(ids[0, length:], skip_special_tokens=True)
    assert greedy(model, processor, prompts[:1], max_new_tokens=4, batch_size=1) == [expected]


def test_a_sampled_completion_depends_on_its_seed_not_on_its_batch(tiny, prompts):
    model, processor = tiny
    options = {"temperature": 1.0, "max_new_tokens": 8}
    together = sampled(model, processor, prompts, seeds=range(6), batch_size=4, **options)
    alone = [
        sampled(model, processor, [prompt], seeds=[seed], batch_size=1, **options)[0]
        for seed, prompt in enumerate(prompts)
    ]
    assert together == alone
    assert (
        sampled(model, processor, prompts[:1] * 4, seeds=[0, 7, 0, 8], batch_size=4, **options)[::2] == together[:1] * 2
    )
    others = sampled(model, processor, prompts, seeds=range(6, 12), batch_size=4, **options)
    assert sum(one != other for one, other in zip(together, others, strict=True)) >= 4


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_first_tokens_are_drawn_from_the_models_own_distribution(tiny, prompts, temperature):
    """The frequencies of 2,000 draws against the softmax that the logits give."""
    model, processor = tiny
    inputs = tokenize_prompts(processor, prompts[1:2])
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
    logits[model.config.image_token_id] = -torch.inf
    expected = (logits / temperature).softmax(dim=-1)
    noise = _Noise(range(2000), temperature, "cpu")
    drawn = noise(None, logits.expand(2000, -1)).argmax(dim=-1).bincount(minlength=len(logits)) / 2000
    # Total variation of 2,000 draws from so many tokens: below this for a sound sampler with near certainty.
    bound = (expected.sqrt() / (2000**0.5)).sum() / 2 + 0.03
    assert (drawn - expected).abs().sum() / 2 < bound < 0.5
    assert drawn[model.config.image_token_id] == 0


def test_nearly_no_temperature_is_greedy(tiny, prompts):
    model, processor = tiny
    cold = sampled(model, processor, prompts, seeds=range(6), temperature=1e-4, max_new_tokens=6, batch_size=6)
    assert cold == greedy(model, processor, prompts, max_new_tokens=6, batch_size=6)


def test_prompts_have_the_tokens_of_training(tiny, prompts):
    _, processor = tiny
    for rows in (prompts[::2], prompts[1::2]):
        trainer = SimpleNamespace(
            processing_class=processor,
            _is_vlm=True,
            environment_factories=None,
            tools=None,
            chat_template=None,
            chat_template_kwargs={},
        )
        training_ids, _, fields = GRPOTrainer._tokenize_prompts(trainer, rows)
        inputs = tokenize_prompts(processor, rows)
        ids = [
            ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        ]
        assert ids == training_ids
        assert ("pixel_values" in fields) == ("pixel_values" in inputs)
        if "pixel_values" in inputs:
            assert torch.equal(torch.stack(list(fields["pixel_values"])), inputs["pixel_values"])


def test_settings_of_the_checkpoint_that_are_not_greedy_do_not_act(tiny, prompts):
    model, processor = tiny
    plain = greedy(model, processor, prompts, max_new_tokens=6, batch_size=6)
    shipped = model.generation_config
    model.generation_config = GenerationConfig(
        **{**shipped.to_dict(), "do_sample": True, "temperature": 5.0, "repetition_penalty": 3.0, "top_k": 3}
    )
    try:
        assert greedy(model, processor, prompts, max_new_tokens=6, batch_size=6) == plain
    finally:
        model.generation_config = shipped


def test_training_mode_is_left_as_it_was(tiny, prompts):
    model, processor = tiny
    model.train()
    greedy(model, processor, prompts[:1], max_new_tokens=1, batch_size=1)
    assert model.training
    model.eval()
    greedy(model, processor, prompts[:1], max_new_tokens=1, batch_size=1)
    assert not model.training
    assert greedy(model, processor, [], max_new_tokens=1, batch_size=1) == []


@pytest.mark.distributed
def test_zero3_ranks_answer_as_the_plain_model_whatever_each_has_to_answer(tiny_model):
    done = fork_ranks(Path(__file__).with_name("greedy_zero3.py"), tiny_model("qwen2_5_vl"))
    assert done.stdout.count("equal answers") == 8  # two ranks, two shares, weights gathered at once and layer by layer
