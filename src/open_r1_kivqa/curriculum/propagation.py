"""Propagation of observations over the graph of samples.

`paper` is the rule of Wiki-R1 (arXiv 2603.05256); `spread` sums the same walks over masses, less what comes back to its own
sample. Both are repeated products of a row-normalised sparse matrix K with a few vectors. The time goes into reading those
vectors at the neighbours' positions, so they are float32, and only as many columns are read together as a processor's cache
holds.
"""

import numpy as np
from numba import njit, prange

from .graph import SampleGraph

CACHED = 4 * 2**20  # bytes of a vector that is read at random: a share of a usual last-level cache


class Propagator:
    """Products with a graph's row-normalised matrix. The graph's arrays are used as they are, without a copy.

    A row is summed in the same order whatever the number of threads: results are equal to the last bit.
    """

    def __init__(self, graph: SampleGraph) -> None:
        self.size = len(graph.indptr) - 1
        # Unsigned, so that numba leaves out its test for negative positions.
        self._edges = graph.indptr, graph.indices.view(np.uint32), graph.weights
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
            _one(*self._edges, scale, now, following)
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
        number = masses.shape[1]
        walk = np.zeros((self.size, number), np.float32)
        values = np.empty_like(walk)
        width = 4 if self.size * 16 <= CACHED else 2 if self.size * 8 <= CACHED else 1
        returned = alpha**2 * self._returns.astype(np.float64)
        for first in range(0, number, width):
            block = slice(first, first + width)
            begin = None if start is None else start[:, block]
            walk[:, block], steps = self._walk(masses[:, block], begin, alpha, iterations, epsilon)
            for column in range(number)[block]:
                own = returned / (1 - returned)
                if start is None or not start[:, column].any():  # so many steps have been summed, not all
                    own *= 1 - returned ** (steps // 2)
                own *= masses[:, column]
                values[:, column] = (1 - alpha) * np.maximum(walk[:, column] - own, 0)
        return values, walk

    def _walk(self, masses, start, alpha, iterations, epsilon) -> tuple[np.ndarray, int]:
        """(walk, how many iterations) of up to four columns"""
        columns = masses.shape[1]
        width = 4 if columns == 3 else columns
        multiply = {1: _one, 2: _two, 4: _four}[width]
        mass = np.zeros((self.size, width), np.float32)
        mass[:, :columns] = masses
        now = np.zeros_like(mass)
        if start is not None:
            now[:, :columns] = start
        scale = (alpha * self._inverse).astype(np.float32)
        read, following = np.empty_like(mass), np.empty_like(mass)
        steps = 0
        while steps < iterations:
            steps += 1
            np.add(mass, now, out=read)
            multiply(*self._edges, scale, *((read[:, 0], following[:, 0]) if width == 1 else (read, following)))
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
    """out = scale · (weights · read), one column. Four sums side by side: one alone waits for each addition to end."""
    for i in prange(len(out)):
        first, stop = indptr[i], indptr[i + 1]
        even = first + (stop - first) // 4 * 4
        a = b = c = d = np.float32(0)
        for e in range(first, even, 4):
            a += weights[e] * read[indices[e]]
            b += weights[e + 1] * read[indices[e + 1]]
            c += weights[e + 2] * read[indices[e + 2]]
            d += weights[e + 3] * read[indices[e + 3]]
        for e in range(even, stop):
            a += weights[e] * read[indices[e]]
        out[i] = scale[i] * ((a + b) + (c + d))


@njit(parallel=True, cache=True, fastmath={"contract"})
def _two(indptr, indices, weights, scale, read, out):
    """The same for two columns."""
    for i in prange(len(out)):
        a = b = np.float32(0)
        for e in range(indptr[i], indptr[i + 1]):
            weight, j = weights[e], indices[e]
            a += weight * read[j, 0]
            b += weight * read[j, 1]
        out[i, 0] = scale[i] * a
        out[i, 1] = scale[i] * b


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
