"""Propagation of observations over the graph of samples.

`paper` is the rule of Wiki-R1 (arXiv 2603.05256); `spread` sums the same walks over masses, less what comes back to its own
sample. Both are repeated products of a row-normalised sparse matrix K with a few vectors. The time goes into reading those
vectors at the neighbours' positions, so they are float32 and each core is to find what it reads in its own cache. Few samples'
vectors fit there. Of many, edges are sorted into tiles: a tile's rows are few enough that their sums stay in the cache, and its
edges follow the columns, so the vector is read from front to back.
"""

import numpy as np

from .compiled import njit, prange
from .graph import SampleGraph, row_sums

BLOCK = 2**16  # columns whose numbers fit two bytes; vectors of no more are read in any order
BAND = 2**10  # columns; a block has a whole number of bands
TILE = 2**13  # rows whose sums of one column fit a core's first cache, 32 KiB


class Propagator:
    """Products with a graph's row-normalised matrix: with its arrays as they are up to `BLOCK` samples, with a sorted copy beyond.

    A row is summed in the same order whatever the number of threads: results are equal to the last bit.
    """

    def __init__(self, graph: SampleGraph) -> None:
        self.size = len(graph.indptr) - 1
        if self.size <= BLOCK:
            # Unsigned, so that numba leaves out its test for negative positions.
            self._edges = graph.indptr, graph.indices.view(np.uint32), graph.weights
            self._one, self._four = _one, _four
        else:
            self._edges = _tiled(graph.indptr, graph.indices.view(np.uint32), graph.weights)
            self._one, self._four = _one_tiled, _four_tiled
        sums = row_sums(graph.indptr, graph.weights)
        self._inverse = np.divide(1, sums, out=np.zeros(self.size), where=sums > 0)
        self._returns = graph.returns

    def paper(
        self, accuracy: np.ndarray, alpha: float = 0.8, iterations: int = 10, epsilon: float = 1e-4
    ) -> np.ndarray:
        """A' = α·K·A' + (1−α)·A from A' = A until the L2 norm of the change is below `epsilon`, at most `iterations` times.

        The published rule as it stands: a sample without observations has A = 0, so it counts as a failure, and a sample
        without neighbours ends at (1−α)·A.

        Args:
            accuracy: A, (N,), in [0, 1].

        Returns:
            A', (N,) float32.
        """
        own = ((1 - alpha) * np.asarray(accuracy, np.float64)).astype(np.float32)
        scale = (alpha * self._inverse).astype(np.float32)
        now = np.array(accuracy, np.float32)
        following = np.empty_like(now)
        for _ in range(iterations):
            self._one(*self._edges, scale, now, following)
            following += own
            now -= following
            # Not np.linalg.norm: it asks BLAS, whose sums depend on its threads.
            change = np.sqrt(np.square(now, out=now).sum(dtype=np.float64))
            now, following = following, now
            if change < epsilon:
                break
        return now

    def spread(
        self,
        masses: np.ndarray,
        start: np.ndarray | None = None,
        alpha: float = 0.8,
        iterations: int = 10,
        epsilon: float = 1e-4,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masses of other samples, as they arrive at each sample by walks over the graph.

        walk = Σ_{t≥1} (αK)^t · masses, by repeating walk ← αK(masses + walk) until no entry changes by more than `epsilon`
        of its column's largest, at most `iterations` times. values = (1−α)·(walk − own), where own is a sample's own mass
        that came back to it after 2, 4, 6, ... steps. It is exact for two samples that are each other's only neighbour, and
        the share of 2 steps is exact in any graph; what comes back by longer ways is not followed.

        Args:
            masses: (N, C), at least 0; columns don't mix.
            start: walk of an earlier call, (N, C); None is 0. The limit is the same, it is reached sooner.

        Returns:
            values, (N, C) float32, at least 0; and walk, (N, C) float32, the next call's start.
        """
        walk = np.zeros(masses.shape, np.float32)
        values = np.empty_like(walk)
        returned = alpha**2 * self._returns.astype(np.float64)
        for first in range(0, masses.shape[1], 4):
            four = slice(first, first + 4)
            begin = None if start is None else start[:, four]
            walk[:, four], steps = self._walk(masses[:, four], begin, alpha, iterations, epsilon)
            for column in range(masses.shape[1])[four]:
                own = returned / (1 - returned)
                if start is None or not start[:, column].any():  # so many steps have been summed, not all
                    own *= 1 - returned ** (steps // 2)
                own *= masses[:, column]
                values[:, column] = (1 - alpha) * np.maximum(walk[:, column] - own, 0)
        return values, walk

    def _walk(self, masses, start, alpha, iterations, epsilon) -> tuple[np.ndarray, int]:
        """(walk, how many iterations) of up to four columns"""
        columns = masses.shape[1]
        width = 1 if columns == 1 else 4
        mass, now = np.zeros((2, self.size, width), np.float32)
        mass[:, :columns] = masses
        if start is not None:
            now[:, :columns] = start
        scale = (alpha * self._inverse).astype(np.float32)
        read, following = np.empty_like(mass), np.empty_like(mass)
        steps = 0
        while steps < iterations:
            steps += 1
            np.add(mass, now, out=read)
            if width == 1:
                self._one(*self._edges, scale, read[:, 0], following[:, 0])
            else:
                self._four(*self._edges, scale, read, following)
            now, following = following, now
            changed, largest = _largest(following, now)
            if (changed <= epsilon * largest).all():
                break
        return now[:, :columns], steps


@njit(cache=True)
def _largest(before, after):
    """Of each column, the largest |after − before| and the largest after. numpy's maximum over so short rows takes ten times as long."""
    changed, largest = np.zeros(after.shape[1], np.float32), np.zeros(after.shape[1], np.float32)
    for i in range(after.shape[0]):
        for column in range(after.shape[1]):
            changed[column] = max(changed[column], abs(after[i, column] - before[i, column]))
            largest[column] = max(largest[column], after[i, column])
    return changed, largest


@njit(parallel=True, cache=True, fastmath={"contract"})
def _one(indptr, indices, weights, scale, read, out):
    """out = scale · (weights · read), one column."""
    for i in prange(len(out)):
        a = np.float32(0)
        for e in range(indptr[i], indptr[i + 1]):
            a += weights[e] * read[indices[e]]
        out[i] = scale[i] * a


@njit(parallel=True, cache=True, fastmath={"contract"})
def _four(indptr, indices, weights, scale, read, out):
    """The same for four columns."""
    for i in prange(len(out)):
        a = b = c = d = np.float32(0)
        for e in range(indptr[i], indptr[i + 1]):
            weight, j = weights[e], indices[e]
            a += weight * read[j, 0]
            b += weight * read[j, 1]
            c += weight * read[j, 2]
            d += weight * read[j, 3]
        out[i, 0] = scale[i] * a
        out[i, 1] = scale[i] * b
        out[i, 2] = scale[i] * c
        out[i, 3] = scale[i] * d


@njit(parallel=True, cache=True)
def _tiled(indptr, indices, weights):
    """Edges by tile of rows, within it by column: (starts, rows, columns, weights).

    The edges of tile t and column block b are from starts[t, b] to starts[t, b + 1]; rows and columns are counted from the first of
    the tile and of the block. Edges of a column ascend by row, so a row's sum is over ascending columns, as in the graph.
    """
    size = len(indptr) - 1
    tiles, blocks, bands = -(-size // TILE), -(-size // BLOCK), -(-size // BAND)
    starts = np.empty((tiles, blocks + 1), np.int64)
    rows, columns = np.empty(len(indices), np.uint16), np.empty(len(indices), np.uint16)
    ordered = np.empty(len(indices), np.float32)
    for tile in prange(tiles):
        first, last = tile * TILE, min(size, (tile + 1) * TILE)
        low, high = indptr[first], indptr[last]
        # First by band of columns, then by column within each: two sorts by counting, whose counts fit the cache.
        ends = np.zeros(bands + 1, np.int64)
        for e in range(low, high):
            ends[indices[e] // BAND + 1] += 1
        ends = np.cumsum(ends)
        places = ends.copy()
        row, column, weight = (
            np.empty(high - low, np.uint16),
            np.empty(high - low, np.uint16),
            np.empty_like(ordered[low:high]),
        )
        for i in range(first, last):
            for e in range(indptr[i], indptr[i + 1]):
                band = indices[e] // BAND
                place = places[band]
                row[place], column[place], weight[place] = i - first, indices[e] % BAND, weights[e]
                places[band] = place + 1
        within = np.empty(BAND + 1, np.int64)
        for band in range(bands):
            within[:] = 0
            for e in range(ends[band], ends[band + 1]):
                within[column[e] + 1] += 1
            within[0] = low + ends[band]
            for one in range(BAND):
                within[one + 1] += within[one]
            offset = band * BAND % BLOCK
            for e in range(ends[band], ends[band + 1]):
                place = within[column[e]]
                rows[place], columns[place], ordered[place] = row[e], column[e] + offset, weight[e]
                within[column[e]] = place + 1
        for block in range(blocks + 1):
            starts[tile, block] = low + ends[min(bands, block * (BLOCK // BAND))]
    return starts, rows, columns, ordered


@njit(parallel=True, cache=True, fastmath={"contract"})
def _one_tiled(starts, rows, columns, weights, scale, read, out):
    """`_one` of `_tiled`."""
    for tile in prange(len(starts)):
        own, factor = out[tile * TILE : (tile + 1) * TILE], scale[tile * TILE : (tile + 1) * TILE]
        own[:] = 0
        for block in range(starts.shape[1] - 1):
            near = read[block * BLOCK :]
            for e in range(starts[tile, block], starts[tile, block + 1]):
                own[rows[e]] += weights[e] * near[columns[e]]
        for i in range(len(own)):
            own[i] *= factor[i]


@njit(parallel=True, cache=True, fastmath={"contract"})
def _four_tiled(starts, rows, columns, weights, scale, read, out):
    """`_four` of `_tiled`."""
    for tile in prange(len(starts)):
        own, factor = out[tile * TILE : (tile + 1) * TILE], scale[tile * TILE : (tile + 1) * TILE]
        own[:] = 0
        for block in range(starts.shape[1] - 1):
            near = read[block * BLOCK :]
            for e in range(starts[tile, block], starts[tile, block + 1]):
                i, j, weight = rows[e], columns[e], weights[e]
                own[i, 0] += weight * near[j, 0]
                own[i, 1] += weight * near[j, 1]
                own[i, 2] += weight * near[j, 2]
                own[i, 3] += weight * near[j, 3]
        for i in range(len(own)):
            for column in range(4):
                own[i, column] *= factor[i]
