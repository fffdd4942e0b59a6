"""Pictures as endpoints take them: base64 in a data URL, upright, in RGB, no larger than wanted."""

import base64
import functools
import io
import math

from PIL import Image

from ..data.images import content_hash, load_image

REMEMBERED = 64  # data URLs kept, as the steps of a row ask for the same picture


class Pictures:
    """Encodes and names pictures by path. Its methods may be called from several threads.

    Args:
        max_pixels: larger pictures are scaled down to at most so many, keeping their shape.
    """

    def __init__(self, max_pixels: int):
        self.max_pixels = max_pixels
        self.url = functools.lru_cache(REMEMBERED)(self._url)
        self.name = functools.lru_cache(100_000)(self._name)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in which a picture of this size is sent."""
        if width * height <= self.max_pixels:
            return width, height
        scale = math.sqrt(self.max_pixels / (width * height))
        width, height = max(1, math.floor(width * scale)), max(1, math.floor(height * scale))
        return min(width, self.max_pixels), min(height, self.max_pixels)  # one row or column may still be too long

    def _url(self, path: str) -> str:
        """The data URL: JPEG for a JPEG file, else PNG, which changes no pixel. EXIF, which may tell where a photo was taken, stays behind.

        Raises:
            InputError: as `load_image`.
        """
        picture = load_image(path)
        size = self.size(*picture.size)
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.LANCZOS)
        with Image.open(path) as file:
            form = "JPEG" if file.format in ("JPEG", "MPO") else "PNG"
        buffer = io.BytesIO()
        picture.save(buffer, form, **({"quality": 95} if form == "JPEG" else {"compress_level": 1}))  # more takes long
        return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"

    def _name(self, path: str) -> str:
        """The same for the same picture, wherever its file lies."""
        return f"{content_hash(path)} up to {self.max_pixels}"
