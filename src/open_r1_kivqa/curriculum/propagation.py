"""Propagation of observations over the graph of samples.

`paper` is the rule of Wiki-R1 (arXiv 2603.05256); `spread` sums the same walks over masses, less what comes back to its own
sample. Both are repeated products of a row-normalised sparse matrix K with a few vectors. The time goes into reading those
vectors at the neighbours' positions. So they are float32, and edges lie in blocks of columns: while a block lasts, what is read
stays in a core's own cache, and a column's number in it needs two bytes.
"""

import numba
import numpy as np
from numba import njit, prange

from .graph import SampleGraph

BLOCK = 2**16  # columns: as many as two bytes count


class Propagator:
    """Products with a graph's row-normalised matrix, kept in a layout of its own, six bytes an edge.

    A row is summed in the same order whatever the number of threads: results are equal to the last bit.
    """

    def __init__(self, graph: SampleGraph) -> None:
        self.size, edges = len(graph.indptr) - 1, len(graph.indices)
        # Edges of block after block, within it row after row, those of row i from starts[block, i] to starts[block, i + 1].
        bounds = np.zeros((-(-self.size // BLOCK), self.size + 1), np.uint32 if edges < 2**32 else np.int64)
        columns, weights = np.empty(edges, np.uint16), np.empty(edges, np.float32)
        _in_blocks(graph.indptr, graph.indices, graph.weights, bounds, columns, weights)
        self._edges = bounds, columns, weights
        starts = graph.indptr[:-1]
        filled = starts < graph.indptr[1:]
        sums = np.add.reduceat(graph.weights, starts[filled], dtype=np.float64) if filled.any() else 0.0
        self._inverse = np.zeros(self.size)
        self._inverse[filled] = 1 / sums
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
            _one(*self._edges, scale, now, following, numba.get_num_threads())
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
                _one(*self._edges, scale, read[:, 0], following[:, 0], numba.get_num_threads())
            else:
                _four(*self._edges, scale, read, following, numba.get_num_threads())
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


@njit(parallel=True, cache=True)
def _in_blocks(indptr, indices, weights, starts, columns, reordered):
    """Fills the layout of `Propagator`: `starts` (blocks, N+1) zeros, `columns` and `reordered` (E,) empty."""
    blocks, size = starts.shape[0], starts.shape[1] - 1
    for i in prange(size):
        for e in range(indptr[i], indptr[i + 1]):
            starts[indices[e] // BLOCK, i + 1] += 1
    total = 0
    for block in range(blocks):
        starts[block, 0] = total
        for i in range(size):
            total += starts[block, i + 1]
            starts[block, i + 1] = total
    for i in prange(size):
        first = indptr[i]  # of the block's edges in this row, which ascend
        for e in range(indptr[i], indptr[i + 1]):
            block = indices[e] // BLOCK
            if block != indices[first] // BLOCK:
                first = e
            place = starts[block, i] + (e - first)
            columns[place] = indices[e] % BLOCK
            reordered[place] = weights[e]


@njit(parallel=True, cache=True, fastmath={"contract"})
def _one(starts, columns, weights, scale, read, out, parts):
    """out = scale · (weights · read), one column; rows in so many parts, one after another's thread."""
    size = len(out)
    for part in prange(parts):
        low, high = size * part // parts, size * (part + 1) // parts
        out[low:high] = 0
        for block in range(len(starts)):
            near, ends = read[block * BLOCK :], starts[block]
            for i in range(low, high):
                a = np.float32(0)
                for e in range(ends[i], ends[i + 1]):
                    a += weights[e] * near[columns[e]]
                out[i] += a
        for i in range(low, high):
            out[i] *= scale[i]


@njit(parallel=True, cache=True, fastmath={"contract"})
def _four(starts, columns, weights, scale, read, out, parts):
    """The same for four columns."""
    size = len(out)
    for part in prange(parts):
        low, high = size * part // parts, size * (part + 1) // parts
        out[low:high] = 0
        for block in range(len(starts)):
            near, ends = read[block * BLOCK :], starts[block]
            for i in range(low, high):
                a = b = c = d = np.float32(0)
                for e in range(ends[i], ends[i + 1]):
                    weight, j = weights[e], columns[e]
                    a += weight * near[j, 0]
                    b += weight * near[j, 1]
                    c += weight * near[j, 2]
                    d += weight * near[j, 3]
                out[i, 0] += a
                out[i, 1] += b
                out[i, 2] += c
                out[i, 3] += d
        for i in range(low, high):
            for column in range(4):
                out[i, column] *= scale[i]
