"""Keys met so far in a file of any size, to notice one that comes twice."""

import numpy as np

from ..data.packed import text_hash

RECENT = 2**17  # hashes kept in a set before they are sorted in


class SeenKeys:
    """Keys by 64-bit hashes, 8 bytes each: for 6 million keys the chance that two share one is one in a million."""

    def __init__(self):
        self._sorted, self._recent = np.zeros(0, dtype=np.uint64), set()

    def add(self, key: str) -> bool:
        """Whether it is new."""
        number = text_hash(key)
        if number in self._recent:
            return False
        wanted = np.uint64(number)
        place = int(np.searchsorted(self._sorted, wanted))
        if place < len(self._sorted) and self._sorted[place] == wanted:
            return False
        self._recent.add(number)
        if len(self._recent) == RECENT:
            recent = np.fromiter(self._recent, dtype=np.uint64, count=RECENT)
            self._sorted = np.sort(np.concatenate([self._sorted, recent]), kind="stable")
            self._recent.clear()
        return True
