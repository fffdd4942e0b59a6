"""The page docs/add_a_model_family.md, run: its commands print what it says, and its module serves a tiny random GLM-4V."""

import re
from pathlib import Path

import pytest
from PIL import Image
from test_families import sizes
from tiny import CHAT_TEMPLATE, MROPE, TEXT, tiny_tokenizer
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
)

from open_r1_kivqa.vlm_modules.parts import freeze_parts

PAGE = Path(__file__).parents[2] / "docs" / "add_a_model_family.md"
TOKENS = {
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def module():
    names = {}
    exec(code("python")[1], names)
    return names["GLM4V"]()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer(list(TOKENS.values()))


def test_parameter_names_are_printed(capsys):
    exec(code("python")[0], {})
    assert capsys.readouterr().out == code("text")[0]


def test_prefixes_fit_the_model(module, tokenizer):
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 64}
    text = TEXT | {"vocab_size": len(tokenizer), "rope_parameters": MROPE | {"partial_rotary_factor": 0.5}}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    model = Glm4vForConditionalGeneration(Glm4vConfig(text_config=text, vision_config=vision, **ids))
    module.check_prefixes(model)
    freeze_parts(model, module, vision=True)
    trained = {".".join(name.split(".")[1:3]) for name, value in model.named_parameters() if value.requires_grad}
    assert {"visual.merger", "visual.downsample"} == {name for name in trained if name.startswith("visual")}


@pytest.mark.parametrize("limits", [{}, {"min_pixels": 5_000, "max_pixels": 20_000}])
def test_token_counts(limits, module, tokenizer):
    processor = Glm4vProcessor(
        image_processor=Glm4vImageProcessor(size={"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 112 * 112}),
        tokenizer=tokenizer,
        video_processor=Glm4vVideoProcessor(),
        chat_template=CHAT_TEMPLATE.replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>"),
    )
    module.limit_images(processor, **limits)
    for width, height in sizes(20):
        made = processor(images=[Image.new("RGB", (width, height))], text=["<|image|>"])["input_ids"][0]
        counted = module.num_image_tokens(processor, width, height)
        assert counted == len(made), (width, height)
        if max(width, height) <= 4 * min(width, height):  # a long image keeps a token across, whatever the limit
            assert counted * 28 * 28 <= limits.get("max_pixels", 112 * 112)
