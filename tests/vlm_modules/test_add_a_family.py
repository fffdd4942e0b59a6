"""The page docs/add_a_model_family.md, run: its commands print what it says, its module is the one that serves GLM-4.1V, and its table is what is served."""

import re
from pathlib import Path

import pytest
from test_families import sizes
from tiny import FAMILIES

from open_r1_kivqa.vlm_modules import MODULES
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

PAGE = Path(__file__).parents[2] / "docs" / "add_a_model_family.md"


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def module():
    names = {}
    exec(code("python")[1], names)
    return names["GLM4V"]()


def test_parameter_names_are_printed(capsys):
    exec(code("python")[0], {})
    assert capsys.readouterr().out == code("text")[0]


def test_the_pages_module_is_the_librarys(module, tiny_model):
    served = MODULES["glm4v"]
    for name in ("family", "model_types", "vision", "projector", "language", "vision_tokens"):
        assert getattr(module, name) == getattr(served, name)
    module.check_prefixes(load_model(tiny_model("glm4v")))
    for limits in ({}, {"min_pixels": 5_000, "max_pixels": 20_000}):
        processor, other = load_processor(tiny_model("glm4v")), load_processor(tiny_model("glm4v"))
        module.limit_images(processor, **limits)
        served.limit_images(other, **limits)
        assert processor.image_processor.size == other.image_processor.size
        for width, height in sizes(10):
            assert module.num_image_tokens(processor, width, height) == served.num_image_tokens(other, width, height)
            assert module.frame(processor, width, height) == served.frame(other, width, height)


def test_the_table_lists_what_is_served():
    listed = re.findall(r"^\| .* \| `(\w+)` \| (pixels|thousandths)", PAGE.read_text(), re.MULTILINE)
    assert {model_type for model_type, _ in listed} == set(MODULES) == set(FAMILIES)
    assert [model_type for model_type, frame in listed if frame == "pixels"] == ["qwen2_5_vl"]
