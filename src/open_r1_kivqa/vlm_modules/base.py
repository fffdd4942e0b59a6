"""What differs between families of vision-language models, and nothing else.

A module knows which checkpoints it serves (by the config's `model_type`), which parameters are vision tower, projector and language model, and how its processor turns an image into tokens. Everything else
about a family is transformers' and TRL's own. docs/add_a_model_family.md shows how to add one.
"""

from ..errors import InputError

PARTS = ("vision", "projector", "language")
THOUSANDTHS = (
    1000,
    1000,
)  # the frame of families that write coordinates in thousandths of the image's width and height


class VLMModule:
    """One family. Subclasses set the class attributes and define `limit_images`, `num_image_tokens`, `processor_limits` and `frame`.

    `vision`, `projector` and `language` hold prefixes of parameter names as `model.named_parameters()` gives them; where two prefixes match, the longer one decides (a projector may live inside the vision
    tower).
    """

    family: str
    model_types: tuple[str, ...]
    vision: tuple[str, ...]
    projector: tuple[str, ...]
    language: tuple[str, ...]
    vision_tokens: tuple[str, ...]  # tokens that stand for or around images and videos, which no completion may hold
    shares_prefix = False  # whether trainer/shared_prefix.py is exact for it; then `positions` is defined

    def prepare(self, processor) -> None:
        """Mends what in the family's processor doesn't fit how TRL calls it. The processor is saved with every checkpoint, so this may meet one that it has mended before."""

    def limit_images(self, processor, *, min_pixels=None, max_pixels=None, max_anyres_num=None) -> None:
        """Sets how large an image may become, on the processor itself, so that it is saved with every checkpoint. None leaves the processor's own setting.

        min_pixels, max_pixels: area in pixels after resizing; max_anyres_num: number of tiles. Raises InputError for a limit that the family has no use for.
        """
        raise NotImplementedError

    def num_image_tokens(self, processor, width: int, height: int) -> int:
        """Number of tokens that the processor puts in place of one image placeholder of the chat template, for an image of width x height pixels."""
        raise NotImplementedError

    def image_ids(self, processor, width: int, height: int) -> list[int]:
        """The tokens that the processor puts in place of one image placeholder, for an image of width x height pixels."""
        return [processor.image_token_id] * self.num_image_tokens(processor, width, height)

    def collapse_image_tokens(self, processor, ids: list[int], sizes: list[tuple[int, int]]) -> list[int]:
        """The prompt as it was before the processor widened its image placeholders: one token for each image, as vLLM wants it, which widens it itself.

        Args:
            ids: a prompt's tokens. sizes: (width, height) in pixels of its images, in their order.

        Raises:
            InputError: the prompt's image tokens are others than these images give.
        """
        collapsed, place = [], 0
        for width, height in sizes:
            image = self.image_ids(processor, width, height)
            while place < len(ids) and ids[place] != image[0]:
                collapsed.append(ids[place])
                place += 1
            if ids[place : place + len(image)] != image:
                raise InputError(
                    f"A prompt lacks the {len(image)} tokens that an image of {width} x {height} pixels is for the {self.family} processor: its chat template must put one placeholder for each image."
                )
            collapsed.append(processor.image_token_id)
            place += len(image)
        collapsed += ids[place:]
        if (found := collapsed.count(processor.image_token_id)) != len(sizes):
            raise InputError(
                f"A prompt has placeholders of {found} images and shows {len(sizes)}: its chat template must put one for each."
            )
        return collapsed

    def processor_limits(self, processor) -> dict:
        """The processor's image limits, as keyword arguments of a call of it: how another copy of the processor is made to treat images alike."""
        raise NotImplementedError

    def vision_token_ids(self, processor) -> list[int]:
        """Ids of those of `vision_tokens` that the processor's tokenizer knows, the image token among them."""
        added = processor.tokenizer.added_tokens_encoder
        ids = sorted(added[token] for token in self.vision_tokens if token in added)
        if processor.image_token_id not in ids:
            raise InputError(
                f"The image token {processor.image_token!r} of the processor is none of the family {self.family}: add it to vision_tokens in its module in open_r1_kivqa.vlm_modules."
            )
        return ids

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the frame in which the family's checkpoints learnt to write boxes, for an image of width x height pixels: a box [x1, y1, x2, y2] of the model has x up to the frame's width and y
        up to its height. The image's own pixels are the model's times width / frame width and height / frame height (see `boxes.BoxScale`).
        """
        raise NotImplementedError

    def positions(self, model, input_ids, attention_mask, *, mm_token_type_ids, images):
        """Positions of the tokens of left-padded prompts in the rotary embedding, (axes, batch, length); what stands at padding doesn't matter. A text that follows goes on by 1 on every axis.

        Args:
            model: the transformers model. input_ids, attention_mask (of booleans), mm_token_type_ids: (batch, length); the last may be None.
            images: for each prompt the inputs of its images, {} without.
        """
        raise NotImplementedError

    def parameter_part(self, name: str) -> str:
        """'vision', 'projector' or 'language' for a parameter's or submodule's name. Wrappers may have put names in front (`base_model.model.`, `module.`)."""
        found = [
            (len(prefix), part)
            for part in PARTS
            for prefix in getattr(self, part)
            if f".{prefix}." in f".{name}."  # whole path segments
        ]
        if not found:
            raise InputError(
                f"Parameter {name!r} belongs to no part of the family {self.family}: its module in open_r1_kivqa.vlm_modules names no prefix for it."
            )
        return max(found)[1]

    def check_prefixes(self, model) -> None:
        """Raises InputError for a prefix that matches no parameter of the model: freezing by it would silently do nothing."""
        # tied weights (lm_head) appear only with remove_duplicate=False
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for part in PARTS:
            for prefix in getattr(self, part):
                if not any(f".{prefix}." in f".{name}." for name in names):
                    raise InputError(
                        f"The family {self.family} expects parameters under {prefix!r} ({part}), and {type(model).__name__} has none: "
                        f"correct the prefix in open_r1_kivqa.vlm_modules. Its parameters start with {_heads(names)}."
                    )

    def refuse(self, **limits) -> None:
        """Raises InputError for the first limit that is set, since this family's processor has no such thing."""
        for name, value in limits.items():
            if value is not None:
                raise InputError(
                    f"--{name} {value} has nothing to act on: the {self.family} processor has no such limit. Leave the flag out."
                )


def _heads(names: list[str]) -> str:
    return ", ".join(sorted({".".join(name.split(".")[:2]) for name in names}))
