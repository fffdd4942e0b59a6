"""A prompt as OpenAI's chat completions have it, with the very pixels that a model in this process gets."""

import base64
import io
from collections.abc import Callable

from PIL import Image

from .data.images import load_image


def picture_url(path: str) -> str:
    """The picture as a data URL: PNG, upright, in RGB and without loss, as `load_image` decodes it.

    Raises:
        InputError: as `load_image`.
    """
    return _url(load_image(path))


def request_messages(prompt: list[dict], url_of: Callable[[str], str] = picture_url) -> list[dict]:
    """The messages of `build_prompt` for a request. What is text alone becomes one string, which servers without pictures know too; pictures stay where they stand among the texts.

    Args:
        url_of: path of a picture to what is sent of it.
    """
    return [_message(message, url_of) for message in prompt]


def small_request(*, with_picture: bool) -> list[dict]:
    """Messages of the first request to a server, which shows whether it can be used. Their picture is a grey square; vision towers want some pixels, and 56 x 56 are taken by all."""
    text = "Reply with one word: ready."
    if not with_picture:
        return [{"role": "user", "content": text}]
    picture = {"type": "image_url", "image_url": {"url": _url(Image.new("RGB", (56, 56), (128, 128, 128)))}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": text}]}]


def _message(message: dict, url_of: Callable[[str], str]) -> dict:
    blocks = message["content"]
    if all(block["type"] == "text" for block in blocks):
        return {"role": message["role"], "content": "".join(block["text"] for block in blocks)}
    return {"role": message["role"], "content": [_block(block, url_of) for block in blocks]}


def _block(block: dict, url_of: Callable[[str], str]) -> dict:
    return block if block["type"] == "text" else {"type": "image_url", "image_url": {"url": url_of(block["image"])}}


def _url(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)  # without loss at each level; more takes long
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
