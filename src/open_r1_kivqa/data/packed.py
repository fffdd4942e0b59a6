"""Many short texts in a few arrays: a million names take some 60 MB as Python texts, and here their own length. Arrays can be kept in a cache entry."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence

import numpy as np


class Texts(Sequence[str]):
    """Texts in order, any length. `arrays` gives the two arrays that `Texts(*arrays)` makes them of again."""

    def __init__(self, joined: np.ndarray, ends: np.ndarray):
        self._joined, self._ends = joined, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts":
        """Packs them. Raises UnicodeEncodeError for a text that isn't Unicode (half of a surrogate pair)."""
        packer = Packer()
        for text in texts:
            packer.add(text)
        return packer.texts()

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(bytes,) uint8 in UTF-8, and (texts,) int64 where each one ends."""
        return self._joined, self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> str:
        i = range(len(self))[i]
        start = int(self._ends[i - 1]) if i else 0
        return self._joined[start : int(self._ends[i])].tobytes().decode("utf-8")


class Packer:
    """Packs texts as they come, so that none is kept as a Python text."""

    def __init__(self):
        self._joined, self._ends = bytearray(), array("q")

    def add(self, text: str) -> None:
        self._joined += text.encode("utf-8")
        self._ends.append(len(self._joined))

    def texts(self) -> Texts:
        """Those added; nothing can be added afterwards."""
        return Texts(np.frombuffer(self._joined, dtype=np.uint8), np.frombuffer(self._ends, dtype=np.int64))


def text_hash(text: str) -> int:
    """64 bits of blake2b: the same in every run. Texts of one hash must be compared."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def sort_hashes(hashes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) uint64 in order, and (n,) int64 with the place that each one had."""
    values = np.fromiter(hashes, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    return values[order], order


def places(hashes: np.ndarray, text: str) -> range:
    """Where the hash of a text stands among sorted hashes."""
    value = np.uint64(text_hash(text))
    return range(int(np.searchsorted(hashes, value)), int(np.searchsorted(hashes, value, side="right")))
