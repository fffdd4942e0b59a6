"""Image files: their size from the header, whether they decode, their content hash."""

import os

from PIL import Image

from ..errors import InputError
from .cache import content_hash

__all__ = ["content_hash", "image_size", "verify_image"]

ORIENTATION = 0x0112  # EXIF tag
SIDEWAYS = (5, 6, 7, 8)  # its values that swap width and height


def image_size(path: str) -> tuple[int, int]:
    """(width, height) in pixels as the processor sees it, after EXIF rotation; reads the header only.

    Raises:
        InputError: missing, empty or not an image.
    """
    with _open(path) as image:
        # A PNG's EXIF may follow its pixels; asking for it would decode them, so one that is not there yet is not asked for.
        exif = image.getexif() if image.format != "PNG" or "exif" in image.info else {}
        width, height = image.size
        return (height, width) if exif.get(ORIENTATION) in SIDEWAYS else (width, height)


def verify_image(path: str) -> None:
    """Decode the whole image.

    Raises:
        InputError: missing, empty, not an image, or damaged (for example cut short).
    """
    with _open(path) as image:
        try:
            image.convert("RGB")
        except Exception as error:  # decoders raise many kinds; each means that this file cannot be used
            raise InputError(f"Image {path} is damaged ({error}); replace it or remove its rows.") from error


def _open(path: str) -> Image.Image:
    if not os.path.isfile(path):
        raise InputError(f"Image {path} does not exist; check --image_folders and the row's `image`.")
    if not os.path.getsize(path):
        raise InputError(f"Image {path} is empty; replace it or remove its rows.")
    try:
        return Image.open(path)
    except Exception as error:  # as above
        raise InputError(
            f"Image {path} is not an image that Pillow reads ({error}); convert it to PNG or JPEG."
        ) from error
