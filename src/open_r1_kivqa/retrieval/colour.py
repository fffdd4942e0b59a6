"""Colour thumbnails: vectors of pictures without a model, enough to tell flags."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

THUMBNAIL = (12, 9)  # width, height
VERSION = "colour-1"  # raise it when the vectors change


def colour_vectors(images: Sequence[Image.Image]) -> np.ndarray:
    """(n, 325) float32, rows of length 1: the colours of a small copy around middle grey, and a constant, so that no picture is without a direction."""
    rows = np.empty((len(images), THUMBNAIL[0] * THUMBNAIL[1] * 3 + 1), dtype=np.float32)
    for row, image in zip(rows, images, strict=True):
        small = image.resize(THUMBNAIL, Image.Resampling.BOX)
        row[:-1] = np.asarray(small, dtype=np.float32).reshape(-1) / 255 - 0.5
        row[-1] = 0.1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
