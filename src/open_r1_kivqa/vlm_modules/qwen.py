"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images keep their shape and are resized to a pixel area; the projector (`merger`) sits inside the vision tower."""

from ..errors import InputError
from .base import VLMModule


class QwenVL(VLMModule):
    """Qwen2-VL and Qwen2.5-VL."""

    family = "Qwen-VL"
    model_types = ("qwen2_vl", "qwen2_5_vl")
    vision = ("model.visual",)
    projector = ("model.visual.merger",)
    language = ("model.language_model", "lm_head")

    def limit_images(self, processor, *, min_pixels=None, max_pixels=None, max_anyres_num=None) -> None:
        self.refuse(max_anyres_num=max_anyres_num)
        image_processor = processor.image_processor
        # Despite their names the two "edges" are areas in pixels.
        smallest = image_processor.size["shortest_edge"] if min_pixels is None else min_pixels
        largest = image_processor.size["longest_edge"] if max_pixels is None else max_pixels
        token = (image_processor.patch_size * image_processor.merge_size) ** 2
        if not 0 < smallest <= largest:
            raise InputError(
                f"Images cannot have at least {smallest} and at most {largest} pixels: give --min_pixels no larger than --max_pixels."
            )
        if largest < token:
            raise InputError(
                f"--max_pixels {largest} is less than the {token} pixels of one image token: give a larger one."
            )
        image_processor.size = {"shortest_edge": smallest, "longest_edge": largest}

    def num_image_tokens(self, processor, width: int, height: int) -> int:
        if max(width, height) > 200 * min(width, height):
            raise InputError(
                f"An image of {width} x {height} pixels is too long for the {self.family} processor, which takes up to 200 to 1: crop it or leave it out."
            )
        image_processor = processor.image_processor
        return image_processor.get_number_of_image_patches(height, width) // image_processor.merge_size**2


class Qwen3VL(QwenVL):
    """Qwen3-VL feeds features of several vision layers to the language model, each through a merger of its own."""

    family = "Qwen3-VL"
    model_types = ("qwen3_vl",)
    projector = ("model.visual.merger", "model.visual.deepstack_merger_list")
