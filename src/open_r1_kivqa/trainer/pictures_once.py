"""Each picture of a generation batch is preprocessed once.

TRL gives the processor every row's pictures twice, for generation and for the passes after it, and a prompt's rows are as many as its completions: 2 G times the same resizing and cutting. Within `once_per_picture`
the processor's image part works on a picture when it first sees it and hands out copies after that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import BatchFeature
from transformers.image_utils import make_flat_list_of_images


@contextmanager
def once_per_picture(processor) -> Iterator["OncePerPicture | None"]:
    """Within it `processor` preprocesses each picture once. A picture is known again by being the same object, as `prompts.decode_images` hands them out."""
    inner = getattr(processor, "image_processor", None)
    if inner is None or isinstance(inner, OncePerPicture):
        yield inner
        return
    processor.image_processor = once = OncePerPicture(inner)
    try:
        yield once
    finally:
        processor.image_processor = inner


class OncePerPicture:
    """Stands in for an image processor and has all its attributes.

    Attributes:
        worked_on: number of pictures that the image processor itself has seen.
    """

    def __init__(self, inner):
        self._inner = inner
        self._seen: dict[tuple[int, str], tuple[object, dict[str, torch.Tensor]]] = {}
        self.worked_on = 0

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def __call__(self, images=None, *args, return_tensors=None, **kwargs):
        """As the image processor's, but always tensors."""
        if images is None or args or kwargs.get("videos") is not None:
            return self._inner(images, *args, return_tensors=return_tensors, **kwargs)
        pictures = make_flat_list_of_images(images)
        keys = [(id(picture), repr(sorted(kwargs.items(), key=lambda item: item[0]))) for picture in pictures]
        fresh = {key: picture for key, picture in zip(keys, pictures, strict=True) if key not in self._seen}
        if fresh:
            self.worked_on += len(fresh)
            outputs = self._inner(images=list(fresh.values()), return_tensors="pt", **kwargs)
            for (key, picture), its in zip(fresh.items(), _by_picture(outputs, len(fresh)), strict=True):
                self._seen[key] = picture, its  # the picture is kept, or another could get its id
        parts = [self._seen[key][1] for key in keys]
        return BatchFeature({name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else {})})


def _by_picture(outputs, number: int) -> list[dict[str, torch.Tensor]]:
    """An image processor's outputs as one dict for each picture: what has an entry for each picture is cut there, pixel_values by the patches or tiles that a picture has."""
    if "image_grid_thw" in outputs:
        sizes = outputs["image_grid_thw"].prod(dim=-1).tolist()
    elif "num_patches" in outputs:
        sizes = torch.as_tensor(outputs["num_patches"]).tolist()
    else:
        sizes = [1] * number
    pixels = outputs["pixel_values"].split(sizes)
    others = {name: torch.as_tensor(value) for name, value in outputs.items() if name != "pixel_values"}
    return [
        {"pixel_values": pixels[i], **{name: value[i : i + 1] for name, value in others.items()}} for i in range(number)
    ]
