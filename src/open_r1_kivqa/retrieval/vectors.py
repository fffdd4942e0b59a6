"""Vectors in memory or on disk, as an index takes them: of length 1, some at a time."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ..errors import InputError

BATCH = 65_536  # vectors at a time


def usable(array: np.ndarray) -> np.ndarray:
    """(n,) bool: which vectors of an (n, dim) array have a direction, and are neither zero nor not finite. Read some at a time, since it may lie on disk."""
    found = np.zeros(len(array), dtype=bool)
    for start in range(0, len(array), BATCH):
        lengths = np.linalg.norm(np.asarray(array[start : start + BATCH], dtype=np.float32), axis=1)
        found[start : start + BATCH] = np.isfinite(lengths) & (lengths > 0)
    return found


class Vectors(Protocol):
    """Vectors of length 1 to index.

    Attributes:
        dim: length of each.
    """

    dim: int

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """All in order, (up to `size`, dim) float32 at a time."""
        ...


class ArrayVectors:
    """Vectors of an array, which may lie on disk, scaled to length 1.

    Args:
        array: (n, dim); must have `shape`, and give parts by slices.
        rows: ascending, those to take; None takes all.
    """

    def __init__(self, array: np.ndarray, rows: np.ndarray | None = None):
        self._array, self.dim = array, array.shape[1]
        self._rows = np.arange(len(array)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """All in order, (up to `size`, dim) float32 at a time; `InputError` for one that is zero or not finite."""
        for start in range(0, len(self._array), size):
            first, last = np.searchsorted(self._rows, [start, start + size])
            if first < last:
                yield self._unit(self._array[start : start + size], self._rows[first:last] - start, start)

    def take(self, places: np.ndarray) -> np.ndarray:
        """(places, dim) some of them."""
        rows = self._rows[places].tolist()
        return np.concatenate([self._unit(self._array[row : row + 1], np.array([0]), row) for row in rows])

    @staticmethod
    def _unit(part: np.ndarray, rows: np.ndarray, start: int) -> np.ndarray:
        vectors = np.asarray(part, dtype=np.float32)[rows]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if len(bad):
            raise InputError(
                f"Vector {start + int(rows[bad[0]])} (counted from 0) is zero or not finite; leave it out."
            )
        return vectors / lengths
