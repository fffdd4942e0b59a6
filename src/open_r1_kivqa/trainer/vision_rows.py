"""Batches that mix rows with and without images.

TRL 1.16 and the Qwen and InternVL models fail on a micro-batch in which no row has an image (zero rows of pixel values), and under ZeRO-3 a rank that skips the vision tower leaves the others waiting for its
part of the weights. So an image-less slice runs without the image inputs, and, where parameters are sharded, with one dummy image row whose output is cut off.
"""

from dataclasses import dataclass

import torch
from PIL import Image
from transformers import ProcessorMixin
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

# Inputs with one entry per image, tile or patch, and the counts that tie them to rows.
IMAGE_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
    "image_position_ids",
    "num_images",
    "num_tiles",
)
IMAGES = ("pixel_values", "image_grid_thw")  # of these, what the models of our families take
# Inputs of shape (batch, length) beside input_ids and attention_mask.
TOKEN_INPUTS = ("token_type_ids", "mm_token_type_ids")


@dataclass
class DummyRow:
    """One tokenised row with one small black image, of shape (1, length) and the family's image inputs."""

    token_inputs: dict[str, torch.Tensor]
    image_inputs: dict[str, torch.Tensor]
    pad_token_id: int

    @classmethod
    def of(cls, processor: ProcessorMixin) -> "DummyRow":
        picture = {"type": "image", "image": Image.new("RGB", (56, 56))}
        inputs = processor.apply_chat_template(
            [[{"role": "user", "content": [picture]}]], tokenize=True, return_dict=True, return_tensors="pt"
        )
        image_inputs = {key: value for key, value in inputs.items() if key in IMAGE_INPUTS}
        token_inputs = {key: value for key, value in inputs.items() if key not in IMAGE_INPUTS}
        return cls(token_inputs, image_inputs, processor.tokenizer.pad_token_id)

    def append_to(self, token_inputs: dict[str, torch.Tensor], fill: dict[str, int]) -> dict[str, torch.Tensor]:
        """The (batch, length) inputs with this row below them, all left-padded to the longer of the two.

        Args:
            fill: what pads each input; an input that this row lacks (labels) is filled with it altogether.
        """
        batch, length = token_inputs["input_ids"].shape
        width = max(length, self.token_inputs["input_ids"].shape[1])
        joined = {}
        for key in [*token_inputs, *(key for key in self.token_inputs if key not in token_inputs)]:
            above = token_inputs.get(key)
            reference = token_inputs["input_ids"]
            if above is None:  # a text-only batch comes without token types: all its tokens are text
                above = reference.new_zeros(batch, length)
            below = self.token_inputs.get(key)
            out = above.new_full((batch + 1, width), fill[key])
            out[:batch, width - length :] = above
            if below is not None:
                out[batch, width - below.shape[1] :] = below[0].to(out)
            joined[key] = out
        return joined

    def fill(self, **more: int) -> dict[str, int]:
        return {"input_ids": self.pad_token_id, "attention_mask": 0, **dict.fromkeys(TOKEN_INPUTS, 0), **more}


class DummyRowMixin:
    """For a trainer whose ranks exchange the vision tower's weights or gradients: every rank must run the tower in every pass."""

    _dummy_row = None

    def needs_dummy_row(self) -> bool:
        """Whether a batch without any image needs one more row, since several ranks exchange the tower: under DeepSpeed and FSDP its weights or gradients, and plain DDP waits for every weight's gradient and sends buffers in every pass."""
        return self._is_vlm and self.accelerator.num_processes > 1

    def dummy_row(self) -> DummyRow:
        """The row, made when first wanted."""
        if self._dummy_row is None:
            self._dummy_row = DummyRow.of(self.processing_class)
        return self._dummy_row

    def with_dummy_row(self, token_inputs: dict[str, torch.Tensor], **fill: int) -> dict[str, torch.Tensor]:
        """The (batch, length) inputs with one row and its image below them. `fill` pads inputs beside the usual ones."""
        dummy, device = self.dummy_row(), token_inputs["input_ids"].device
        joined = dummy.append_to(token_inputs, dummy.fill(**fill))
        return {**joined, **{key: value.to(device) for key, value in dummy.image_inputs.items()}}


def images_by_row(inputs: dict, num_images: list[int]) -> list[dict[str, torch.Tensor]]:
    """Each row's part of IMAGES; {} for a row without images.

    Args:
        inputs: IMAGES of all rows one after the other, and `num_tiles` of each row where an image may have several; entries may be None, others are ignored.
    """
    if not sum(num_images):
        return [{} for _ in num_images]
    present = {key: inputs[key] for key in (*IMAGES, "num_tiles") if inputs.get(key) is not None}
    split = split_pixel_values_by_grid(present | {"num_images": num_images})
    return [{key: split[key][i] for key in IMAGES if key in split} if n else {} for i, n in enumerate(num_images)]


def slice_vision(vision: dict, start: int, end: int) -> dict:
    """The vision inputs of rows [start, end), without any image input where those rows have no image.

    Args:
        vision: TRL's vision keyword arguments for a whole batch; entries may be None.
    """
    present = {key: value for key, value in vision.items() if value is not None}
    rows = {key: value[start:end] for key, value in split_pixel_values_by_grid(present).items()}
    if sum(rows.get("num_images") or [0]) == 0:
        return {key: value for key, value in rows.items() if key not in (*IMAGE_INPUTS, *TOKEN_INPUTS)}
    return unsplit_pixel_values_by_grid(rows)
