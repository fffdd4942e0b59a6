"""Image files: their size from the header, their pixels, whether they decode, their content hash."""

import os

import numpy as np
from PIL import Image, ImageOps

from ..errors import InputError
from .cache import content_hash

__all__ = ["ImageError", "content_hash", "image_size", "load_image", "verify_image"]

ORIENTATION = 0x0112  # EXIF tag
TURNING = (b"XML:com.adobe.xmp", b"Raw profile type exif")  # PNG texts that may hold it as well
LONGEST_KEYWORD = 80  # bytes of a PNG text's name and the zero after it
SIDEWAYS = (5, 6, 7, 8)  # its values that swap width and height


class ImageError(InputError):
    """A picture that cannot be used; the message names its file."""


def image_size(path: str) -> tuple[int, int]:
    """(width, height) in pixels as the processor sees it, after EXIF rotation; reads the header only.

    Raises:
        ImageError: missing, empty or not an image.
    """
    with _open(path) as image:
        # A PNG's EXIF may follow its pixels, and asking for it decodes them; so only one that has some is asked.
        asked = image.format != "PNG" or "exif" in image.info or _png_may_be_turned(path)
        try:
            exif = image.getexif() if asked else {}
        except Exception as error:  # as in load_image
            raise ImageError(f"Image {path} is damaged ({error}); replace it or remove its rows.") from error
        width, height = image.size
        return (height, width) if exif.get(ORIENTATION) in SIDEWAYS else (width, height)


def _png_may_be_turned(path: str) -> bool:
    """Whether a PNG has a chunk, before or after its pixels, in which Pillow finds an orientation. Seeks from chunk to chunk; nothing is decoded."""
    with open(path, "rb") as file:
        file.seek(8)  # the signature
        while len(head := file.read(8)) == 8:
            length, kind = int.from_bytes(head[:4]), head[4:]
            if kind == b"eXIf":
                return True
            text = file.read(min(length, LONGEST_KEYWORD)) if kind in (b"iTXt", b"zTXt", b"tEXt") else b""
            if text.partition(b"\0")[0] in TURNING:
                return True
            file.seek(length - len(text) + 4, os.SEEK_CUR)  # 4: the checksum
    return False


def load_image(path: str) -> Image.Image:
    """The picture as every model gets it: the first frame, upright, in RGB of 8 bits.

    Processors that are given a path decode it with whichever library is there, and these differ: torchvision leaves a WebP lying on its side, hands over all frames of a GIF, and
    16-bit values without scaling them.

    Raises:
        ImageError: missing, empty, not an image, damaged (for example cut short), or of 32 bits, which have no fixed black and white.
    """
    with _open(path) as image:
        if image.mode in ("I", "F"):
            raise ImageError(f"Image {path} is not an image of 8 or 16 bits a channel; convert it to PNG or JPEG.")
        try:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):  # Pillow would cut off what is above 255
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return upright.convert("RGB")
        except Exception as error:  # decoders raise many kinds; each means that this file cannot be used
            raise ImageError(f"Image {path} is damaged ({error}); replace it or remove its rows.") from error


def verify_image(path: str) -> None:
    """Decode the whole image; `ImageError` as from `load_image`."""
    load_image(path)


def _open(path: str) -> Image.Image:
    if not os.path.isfile(path):
        raise ImageError(f"Image {path} does not exist; check --image_folders and the row's `image`.")
    if not os.path.getsize(path):
        raise ImageError(f"Image {path} is empty; replace it or remove its rows.")
    try:
        return Image.open(path)
    except Exception as error:  # as above
        raise ImageError(
            f"Image {path} is not an image that Pillow reads ({error}); convert it to PNG or JPEG."
        ) from error
