"""Where each family's boxes lie: its frame against what its processor really resizes to, and the way from pixels to the model and back."""

import random
from dataclasses import dataclass

import pytest
from PIL import Image
from test_families import sizes
from tiny import FAMILIES

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.vlm_modules import MODULES
from open_r1_kivqa.vlm_modules.base import VLMModule
from open_r1_kivqa.vlm_modules.boxes import BoxScale
from open_r1_kivqa.vlm_modules.loading import load_processor


@dataclass
class Row:
    images: tuple[str, ...]


@pytest.mark.parametrize("limits", [{}, {"max_pixels": 60_000}, {"min_pixels": 9_000, "max_pixels": 9_000}])
def test_frame_of_qwen2_5_vl_is_the_image_as_resized(limits, tiny_model):
    """`image_grid_thw` counts patches of 14 pixels: what the model sees is so many times 14 pixels wide and high."""
    processor = load_processor(tiny_model("qwen2_5_vl"), **limits)
    for width, height in sizes(40):
        made = processor.image_processor(images=[Image.new("RGB", (width, height))], return_tensors="pt")
        _, high, wide = made["image_grid_thw"][0].tolist()
        assert MODULES["qwen2_5_vl"].frame(processor, width, height) == (14 * wide, 14 * high), (width, height)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen2_5_vl"])
def test_other_families_write_thousandths(family, tiny_model):
    processor = load_processor(tiny_model(family))
    for width, height in sizes(5):
        assert MODULES[family].frame(processor, width, height) == (1000, 1000)


def test_every_family_says_in_which_frame_it_writes():
    assert all(type(module).frame is not VLMModule.frame for module in MODULES.values())


def test_frame_by_hand(tiny_model):
    """The tiny processor takes up to 112 x 112 pixels. 100 x 60 rounds to multiples of 28: 112 x 56. 224 x 112 is twice too large: over sqrt(2) it is 158 x 79, rounded down 140 x 56."""
    processor = load_processor(tiny_model("qwen2_5_vl"))
    assert MODULES["qwen2_5_vl"].frame(processor, 100, 60) == (112, 56)
    assert MODULES["qwen2_5_vl"].frame(processor, 224, 112) == (140, 56)


def test_shape_that_the_processor_refuses(tiny_model):
    with pytest.raises(InputError, match="1005 x 5 pixels is too long for the Qwen2.5-VL"):
        MODULES["qwen2_5_vl"].frame(load_processor(tiny_model("qwen2_5_vl")), 1005, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_box_comes_back_within_rounding(family, tiny_model, tmp_path):
    """Pixels to whole numbers of the model and back: off by at most half a step of the model's frame."""
    generator = random.Random(1)
    scale = BoxScale(MODULES[family], load_processor(tiny_model(family)))
    for number, (width, height) in enumerate([(640, 427), (56, 84), (1920, 1080), (31, 500)]):
        path = tmp_path / f"{number}.png"
        Image.new("1", (width, height)).save(path)
        sx, sy = scale(Row((str(path),)))
        for _ in range(50):
            x, y = generator.randint(0, width), generator.randint(0, height)
            assert abs(round(x / sx) * sx - x) <= sx / 2 + 1e-9
            assert abs(round(y / sy) * sy - y) <= sy / 2 + 1e-9
        frame = MODULES[family].frame(scale.processor, width, height)
        assert (frame[0] * sx, frame[1] * sy) == pytest.approx((width, height))


def test_scale_is_of_the_first_image_as_the_model_sees_it_and_read_once(tiny_model, tmp_path):
    """A photo that EXIF turns: 200 x 100 in the file, 100 x 200 upright."""
    sideways = Image.Exif()
    sideways[0x0112] = 6
    first, second = tmp_path / "first.jpg", tmp_path / "second.png"
    Image.new("RGB", (200, 100)).save(first, exif=sideways)
    Image.new("RGB", (77, 77)).save(second)
    scale = BoxScale(MODULES["qwen3_vl"], load_processor(tiny_model("qwen3_vl")))
    assert scale(Row((str(first), str(second)))) == (0.1, 0.2)
    first.unlink()
    assert scale(Row((str(first),))) == (0.1, 0.2)
    assert scale(Row(())) == (1.0, 1.0)
    with pytest.raises(InputError, match="does not exist"):
        scale(Row((str(tmp_path / "none.png"),)))
