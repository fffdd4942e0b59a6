"""InternVL 2.5 to 3.5 in transformers' own form (checkpoints ending in -hf): an image is cut into tiles of one size, plus a thumbnail when there is more than one."""

from ..errors import InputError
from .base import THOUSANDTHS, VLMModule


class InternVL(VLMModule):
    """Writes boxes in thousandths of the whole image, not of a tile: <box>[[x1, y1, x2, y2]]</box> with coordinates from 0 to 1000 (its documentation, chat data format, grounding data)."""

    family = "InternVL"
    model_types = ("internvl",)
    vision = ("model.vision_tower",)
    projector = ("model.multi_modal_projector",)
    language = ("model.language_model", "lm_head")
    vision_tokens = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
    shares_prefix = True

    def positions(self, model, input_ids, attention_mask, *, mm_token_type_ids, images):
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[None]

    def limit_images(self, processor, *, min_pixels=None, max_pixels=None, max_anyres_num=None) -> None:
        self.refuse(min_pixels=min_pixels, max_pixels=max_pixels)
        if max_anyres_num is None:
            return
        image_processor = processor.image_processor
        if max_anyres_num < image_processor.min_patches:
            raise InputError(
                f"--max_anyres_num {max_anyres_num} is less than the processor's smallest number of tiles, {image_processor.min_patches}: give at least that."
            )
        image_processor.crop_to_patches = True
        image_processor.max_patches = max_anyres_num

    def num_image_tokens(self, processor, width: int, height: int) -> int:
        # <img> and </img> around the tiles' tokens. The processor cuts into tiles unless told otherwise, whatever its image processor's own default says.
        tiles = processor.image_processor.get_number_of_image_patches(height, width, {"crop_to_patches": True})
        return 2 + processor.image_seq_length * tiles

    def image_ids(self, processor, width: int, height: int) -> list[int]:
        tiles = [processor.image_token_id] * (self.num_image_tokens(processor, width, height) - 2)
        return [processor.start_image_token_id, *tiles, processor.end_image_token_id]

    def processor_limits(self, processor) -> dict:
        image_processor = processor.image_processor
        return {
            "crop_to_patches": True,
            "min_patches": image_processor.min_patches,
            "max_patches": image_processor.max_patches,
        }

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        return THOUSANDTHS
