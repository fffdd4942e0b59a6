"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images keep their shape and are resized to a pixel area; the projector (`merger`) sits inside the vision tower."""

from ..errors import InputError
from .base import THOUSANDTHS, VLMModule


class QwenVL(VLMModule):
    """What all of them share."""

    family = "Qwen-VL"
    vision = ("model.visual",)
    projector = ("model.visual.merger",)
    language = ("model.language_model", "lm_head")
    vision_tokens = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    shares_prefix = True

    def positions(self, model, input_ids, attention_mask, *, mm_token_type_ids, images):
        import torch

        grids = [its["image_grid_thw"] for its in images if its]
        if not grids:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0).expand(3, -1, -1)
        positions, _ = model.model.get_rope_index(
            input_ids,
            mm_token_type_ids=mm_token_type_ids,
            image_grid_thw=torch.cat(grids),
            attention_mask=attention_mask,
        )
        return positions

    def limit_images(self, processor, *, min_pixels=None, max_pixels=None, max_anyres_num=None) -> None:
        self.refuse(max_anyres_num=max_anyres_num)
        image_processor = processor.image_processor
        times = self.times_counted(image_processor)
        # Despite their names the two "edges" are areas in pixels.
        limits = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        size = {edge: image_processor.size[edge] if limit is None else times * limit for edge, limit in limits.items()}
        smallest, largest = (area // times for area in size.values())
        token = (image_processor.patch_size * image_processor.merge_size) ** 2
        if not 0 < smallest <= largest:
            raise InputError(
                f"Images cannot have at least {smallest} and at most {largest} pixels: give --min_pixels no larger than --max_pixels."
            )
        if largest < token:
            raise InputError(
                f"--max_pixels {largest} is less than the {token} pixels of one image token: give a larger one."
            )
        image_processor.size = size

    def processor_limits(self, processor) -> dict:
        size = processor.image_processor.size
        return {"size": {edge: size[edge] for edge in ("shortest_edge", "longest_edge")}}

    def times_counted(self, image_processor) -> int:
        """How many times the processor counts an image's area when it compares it with its limits."""
        return 1

    def num_image_tokens(self, processor, width: int, height: int) -> int:
        self.refuse_long(width, height)
        image_processor = processor.image_processor
        return image_processor.get_number_of_image_patches(height, width) // image_processor.merge_size**2

    def refuse_long(self, width: int, height: int) -> None:
        """InputError for a shape that the processor refuses."""
        if max(width, height) > 200 * min(width, height):
            raise InputError(
                f"An image of {width} x {height} pixels is too long for the {self.family} processor, which takes up to 200 to 1: crop it or leave it out."
            )


class Qwen2VL(QwenVL):
    """Writes boxes in thousandths of the image: (x1,y1),(x2,y2) with coordinates in [0, 1000) (arXiv 2409.12191, section 2.2.1)."""

    family = "Qwen2-VL"
    model_types = ("qwen2_vl",)

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        return THOUSANDTHS


class Qwen25VL(QwenVL):
    """Writes boxes in pixels of the image as the processor has resized it (arXiv 2502.13923, section 2.1; spatial_understanding.ipynb in the model's repository takes them off `image_grid_thw`)."""

    family = "Qwen2.5-VL"
    model_types = ("qwen2_5_vl",)

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize  # here, since it imports torch

        self.refuse_long(width, height)
        image_processor = processor.image_processor
        high, wide = smart_resize(
            height,
            width,
            factor=image_processor.patch_size * image_processor.merge_size,
            min_pixels=image_processor.size["shortest_edge"],
            max_pixels=image_processor.size["longest_edge"],
        )
        return wide, high


class Qwen3VL(QwenVL):
    """Qwen3-VL feeds features of several vision layers to the language model, each through a merger of its own.

    It writes boxes in thousandths of the image (arXiv 2511.21631, section on grounding; 2d_grounding.ipynb in the model's repository), unlike Qwen2.5-VL.
    """

    family = "Qwen3-VL"
    model_types = ("qwen3_vl",)
    projector = ("model.visual.merger", "model.visual.deepstack_merger_list")

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        return THOUSANDTHS
