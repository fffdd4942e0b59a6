"""Colour thumbnails: vectors of pictures without a model, enough to tell flags."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

# Of the sizes and weights tried on the Factbook's training pictures the ones that found most flags; see docs/retrieval.md.
THUMBNAIL = (7, 5)  # width, height
TINT = 0.5  # share of the picture's average colour that is taken away, since light tints
BRIGHTNESS = 0.7  # weight of brightness beside colour
FLOOR = 0.01  # a constant, so that a picture in one grey has a direction too
VERSION = f"colour-1 {THUMBNAIL} {TINT} {BRIGHTNESS} {FLOOR}"  # raise its number when the vectors change otherwise


def colour_vectors(images: Sequence[Image.Image]) -> np.ndarray:
    """(n, 141) float32, rows of length 1: colours and brightness of a small copy, each around the picture's own average."""
    rows = np.empty((len(images), THUMBNAIL[0] * THUMBNAIL[1] * 4 + 1), dtype=np.float32)
    for row, image in zip(rows, images, strict=True):
        small = np.asarray(image.resize(THUMBNAIL, Image.Resampling.BOX), dtype=np.float32) / 255
        brightness = small.mean(axis=-1, keepdims=True)
        colour = small - brightness
        colour -= TINT * colour.mean(axis=(0, 1))
        row[:-1] = np.concatenate([colour, BRIGHTNESS * (brightness - brightness.mean())], axis=-1).reshape(-1)
        row[-1] = FLOOR
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
