"""Image tokens of a prompt: collapsed to one placeholder each, as vLLM wants them, and never part of a completion."""

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import FAMILIES

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.generate import generation_config
from open_r1_kivqa.vlm_modules import MODULES
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

PLACEHOLDER = {"internvl": "<IMG_CONTEXT>", "glm4v": "<|image|>"}
# What a picture is surrounded by in the family's own chat template; without it runs of two pictures' tokens touch.
AROUND = {"internvl": ("", "\n"), "glm4v": ("<|begin_of_image|>", "<|end_of_image|>")}
QWEN = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
EXPECTED = {
    "internvl": ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
    "glm4v": [
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|video|>",
    ],
}


@pytest.fixture(scope="module")
def processor_of(tiny_model):
    @cache
    def processor_of(family, **limits):
        return load_processor(tiny_model(family), **limits)

    return processor_of


def text_of(family: str, pieces: list[str | None], bare: bool) -> str:
    """Text in which every None is a picture, with the tokens around it or bare."""
    before, after = ("", "") if bare else AROUND.get(family, ("<|vision_start|>", "<|vision_end|>"))
    picture = before + PLACEHOLDER.get(family, "<|image_pad|>") + after
    return "".join(picture if piece is None else piece for piece in pieces)


SIZE = st.tuples(st.integers(1, 300), st.integers(1, 300)).filter(lambda size: max(size) <= 200 * min(size))
PIECES = st.lists(st.one_of(st.just(" What is this? "), SIZE), min_size=1, max_size=6)


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=PIECES, bare=st.booleans())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_collapsing_undoes_what_the_processor_widened(family, pieces, bare, processor_of):
    """For pictures side by side, of any size and number of tiles, and for none; widened once more by the processor, the same tokens come back."""
    processor = processor_of(family)
    tokenizer = processor.tokenizer
    sizes = [piece for piece in pieces if isinstance(piece, tuple)]
    images = [Image.new("RGB", size) for size in sizes] or None
    text = text_of(family, [None if isinstance(piece, tuple) else piece for piece in pieces], bare)
    ids = processor(images=images, text=[text])["input_ids"][0]
    collapsed = MODULES[family].collapse_image_tokens(processor, ids, sizes)
    assert collapsed == tokenizer(text)["input_ids"]
    assert processor(images=images, text=[tokenizer.decode(collapsed)])["input_ids"][0] == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_other_pictures_are_refused(family, processor_of):
    processor, module = processor_of(family), MODULES[family]
    pictures = [Image.new("RGB", (56, 56)), Image.new("RGB", (112, 112))]
    text = text_of(family, [None, "and", None], bare=False)
    ids = processor(images=pictures, text=[text])["input_ids"][0]
    assert len(module.collapse_image_tokens(processor, ids, [(56, 56), (112, 112)])) < len(ids)
    with pytest.raises(InputError, match="lacks the .* tokens that an image of 112 x 112 pixels"):
        module.collapse_image_tokens(processor, ids, [(112, 112), (56, 56)])
    with pytest.raises(InputError, match="lacks the .* tokens that an image of 28 x 28 pixels"):
        module.collapse_image_tokens(processor, ids, [(56, 56), (112, 112), (28, 28)])
    with pytest.raises(InputError, match="placeholders of .* images and shows 1"):
        module.collapse_image_tokens(processor, ids, [(56, 56)])
    with pytest.raises(InputError, match="placeholders of .* images and shows 0"):
        module.collapse_image_tokens(processor, ids, [])


@pytest.mark.parametrize(
    ("family", "limits"),
    [(family, {"min_pixels": 9_000, "max_pixels": 12_000}) for family in FAMILIES if family != "internvl"]
    + [("internvl", {"max_anyres_num": 2})],
)
def test_limits_given_to_a_call_act_like_limits_set(family, limits, processor_of):
    """What the engine's own copy of the processor is called with."""
    limited, stock = processor_of(family, **limits), processor_of(family)
    given = MODULES[family].processor_limits(limited)
    text = text_of(family, [None], bare=False)
    different = 0
    for size in ((30, 40), (56, 300), (200, 120), (300, 300)):
        images = [Image.effect_noise(size, 50).convert("RGB")]
        wanted = limited(images=images, text=[text], return_tensors="pt")
        found = stock(images=images, text=[text], return_tensors="pt", **given)
        assert torch.equal(found["input_ids"], wanted["input_ids"])
        assert torch.equal(found["pixel_values"], wanted["pixel_values"])
        unlimited = stock(images=images, text=[text], return_tensors="pt")
        different += not torch.equal(unlimited["input_ids"], wanted["input_ids"])
    assert different


@pytest.mark.parametrize("family", FAMILIES)
def test_every_vision_token_is_forbidden(family, processor_of, tiny_model):
    processor = processor_of(family)
    ids = MODULES[family].vision_token_ids(processor)
    assert sorted(processor.tokenizer.convert_ids_to_tokens(ids)) == sorted(EXPECTED.get(family, QWEN))
    config = generation_config(load_model(tiny_model(family)), processor, 4)
    assert config.suppress_tokens == ids


def test_a_processor_of_another_family_is_refused(processor_of):
    with pytest.raises(InputError, match="image token '<IMG_CONTEXT>' .* none of the family Qwen2.5-VL"):
        MODULES["qwen2_5_vl"].vision_token_ids(processor_of("internvl"))
