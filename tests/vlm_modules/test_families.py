"""Each family's image limits and token counts, against what its processor really produces."""

import random

import pytest
from PIL import Image
from tiny import FAMILIES

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.vlm_modules import MODULES, module_for
from open_r1_kivqa.vlm_modules.loading import load_config, load_processor

PLACEHOLDER = {"internvl": "<IMG_CONTEXT>", "glm4v": "<|image|>"}
BY_AREA = [family for family in FAMILIES if family != "internvl"]  # limited in pixels; InternVL in tiles


def tokens_made(processor, family: str, width: int, height: int) -> int:
    """Length of the text that is one image placeholder, once the processor has widened it."""
    placeholder = PLACEHOLDER.get(family, "<|image_pad|>")
    return len(processor(images=[Image.new("RGB", (width, height))], text=[placeholder])["input_ids"][0])


def sizes(count: int) -> list[tuple[int, int]]:
    """Sizes that round differently: tiny, odd, long, high, large."""
    generator = random.Random(0)
    drawn = [(generator.randint(1, 700), generator.randint(1, 700)) for _ in range(count)]
    fixed = [(1, 1), (1, 200), (200, 1), (28, 28), (56, 56), (112, 84), (447, 449), (1000, 30)]
    return fixed + [size for size in drawn if max(size) <= 200 * min(size)]


@pytest.mark.parametrize(
    ("family", "limits"),
    [
        (family, limits)
        for family in BY_AREA
        for limits in ({}, {"max_pixels": 60_000}, {"min_pixels": 9_000, "max_pixels": 9_000})
    ]
    + [("internvl", limits) for limits in ({}, {"max_anyres_num": 1}, {"max_anyres_num": 7}, {"max_anyres_num": 12})],
)
def test_num_image_tokens_equals_what_the_processor_makes(family, limits, tiny_model):
    processor = load_processor(tiny_model(family), **limits)
    module = MODULES[family]
    for width, height in sizes(25):
        assert module.num_image_tokens(processor, width, height) == tokens_made(processor, family, width, height), (
            width,
            height,
        )


def test_tokens_by_hand(tiny_model):
    """Qwen2.5-VL and GLM-4.1V: 28 x 28 pixels a token. InternVL: 4 tokens a tile of 56 x 56, <img> and </img>, and a thumbnail beside several tiles."""
    qwen, internvl = (load_processor(tiny_model(family)) for family in ("qwen2_5_vl", "internvl"))
    assert MODULES["qwen2_5_vl"].num_image_tokens(qwen, 112, 84) == 4 * 3
    assert MODULES["glm4v"].num_image_tokens(load_processor(tiny_model("glm4v")), 112, 84) == 4 * 3
    assert MODULES["internvl"].num_image_tokens(internvl, 56, 56) == 2 + 4
    assert MODULES["internvl"].num_image_tokens(internvl, 112, 56) == 2 + 4 * (2 + 1)


def test_image_processor_that_does_not_cut_by_itself_is_still_cut_by_the_internvl_processor(tiny_model):
    processor = load_processor(tiny_model("internvl"))
    processor.image_processor.crop_to_patches = False
    assert MODULES["internvl"].num_image_tokens(processor, 112, 56) == tokens_made(processor, "internvl", 112, 56)


@pytest.mark.parametrize("family", FAMILIES)
def test_limits_are_saved_with_the_processor(family, tiny_model, tmp_path):
    limits = {"max_anyres_num": 2} if family == "internvl" else {"min_pixels": 4_000, "max_pixels": 20_000}
    processor = load_processor(tiny_model(family), **limits)
    processor.save_pretrained(tmp_path)
    load_config(tiny_model(family)).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    again = load_processor(str(tmp_path))
    for width, height in [(30, 40), (300, 400), (500, 90)]:
        count = MODULES[family].num_image_tokens(processor, width, height)
        assert count == tokens_made(again, family, width, height)


@pytest.mark.parametrize("family", BY_AREA)
def test_images_stay_within_their_pixels(family, tiny_model):
    processor = load_processor(tiny_model(family), min_pixels=5_000, max_pixels=10_000)
    pixels_a_token = (processor.image_processor.patch_size * 2) ** 2
    for width, height in [(10, 10), (100, 70), (600, 500)]:
        area = MODULES[family].num_image_tokens(processor, width, height) * pixels_a_token
        assert 5_000 <= area <= 10_000


@pytest.mark.parametrize(
    ("family", "limits", "message"),
    [
        ("qwen2_5_vl", {"max_anyres_num": 12}, "--max_anyres_num 12 has nothing to act on"),
        ("internvl", {"max_pixels": 3136}, "--max_pixels 3136 has nothing to act on"),
        ("internvl", {"min_pixels": 3136}, "--min_pixels 3136 has nothing to act on"),
        ("internvl", {"max_anyres_num": 0}, "smallest number of tiles"),
        ("qwen2_vl", {"min_pixels": 4000, "max_pixels": 2000}, "at least 4000 and at most 2000"),
        ("qwen2_vl", {"min_pixels": 1, "max_pixels": 783}, "784 pixels of one image token"),
        ("qwen3_vl", {"min_pixels": 0}, "at least 0"),
        # GLM's processor counts each pixel twice; messages name what was given
        ("glm4v", {"min_pixels": 4000, "max_pixels": 2000}, "at least 4000 and at most 2000"),
        ("glm4v", {"min_pixels": 1, "max_pixels": 783}, "--max_pixels 783 is less than the 784 pixels"),
        ("glm4v", {"max_anyres_num": 12}, "GLM-4.1V processor has no such limit"),
    ],
)
def test_limits_that_cannot_be_are_refused(family, limits, message, tiny_model):
    with pytest.raises(InputError, match=message):
        load_processor(tiny_model(family), **limits)


def test_image_too_long_for_qwen_is_named(tiny_model):
    processor = load_processor(tiny_model("qwen2_5_vl"))
    with pytest.raises(InputError, match="1005 x 5 pixels"):
        MODULES["qwen2_5_vl"].num_image_tokens(processor, 1005, 5)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("internvl_chat", "InternVL3-1B-hf"),
        ("llama", "not a vision-language model"),
        (None, "model_type None"),
        ("llava", "give one of glm4v, internvl, qwen2_5_vl, qwen2_vl, qwen3_vl, or .*docs/add_a_model_family.md"),
    ],
)
def test_module_for_refuses_other_models(model_type, message):
    class Config:
        pass

    config = Config()
    config.model_type = model_type
    with pytest.raises(InputError, match=message):
        module_for(config)


SYSTEM, QUESTION, RESPONSE = (
    {"role": role, "content": [{"type": "text", "text": text}]}
    for role, text in (("system", "Think first."), ("user", "How many?"), ("assistant", "<answer>2</answer>"))
)


def test_glm_shows_the_text_of_blocks_in_every_turn_and_closes_the_response(tiny_model):
    """GLM's own template would write Python's spelling of a list of blocks, and nothing after a response, so that supervised training could not teach the end."""
    processor = load_processor(tiny_model("glm4v"))
    asked = "[gMASK]<sop><|system|>\nThink first.<|user|>\nHow many?"
    assert processor.apply_chat_template([SYSTEM, QUESTION], add_generation_prompt=True) == f"{asked}<|assistant|>\n"
    told = processor.apply_chat_template([SYSTEM, QUESTION, RESPONSE])
    assert told == f"{asked}<|assistant|>\n<answer>2</answer><|user|>"
    texts = [{**message, "content": message["content"][0]["text"]} for message in (SYSTEM, QUESTION, RESPONSE)]
    assert processor.apply_chat_template(texts) == told
    again = processor.apply_chat_template([SYSTEM, QUESTION, RESPONSE, QUESTION], add_generation_prompt=True)
    assert again == f"{told}\nHow many?<|assistant|>\n"


def test_glm_template_is_mended_once(tiny_model):
    processor = load_processor(tiny_model("glm4v"))
    mended = processor.chat_template
    MODULES["glm4v"].prepare(processor)
    assert processor.chat_template == mended


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_survive_decoding(family, tiny_model):
    tokenizer = load_processor(tiny_model(family)).tokenizer
    form = "<think>two dogs</think><answer>2</answer>"
    assert tokenizer.decode(tokenizer.encode(form), skip_special_tokens=True) == form
