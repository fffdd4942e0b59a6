"""Propagation over a graph of a million samples: `python bench/propagation.py [--rows 1000000] [--degree 100] [--threads 2]`.

Neighbours are random, the hardest case for a processor's caches. What is compared is measured in turns, in one run, and the medians
are given. Prints as its last line one JSON object:
  rows, degree, threads        of the graph; threads used
  seconds                      ten iterations of the published rule, one column, from nothing
  bandwidth_seconds            ten plain passes over the same positions and weights, which only sum them up
  ratio_to_bandwidth           the first over the second
  four_columns_seconds         ten iterations of four columns from nothing: successes and failures of hits and misses
  label_spreading_rows         size at which scikit-learn's LabelSpreading was run: same sparse matrix, one column, ten iterations
  label_spreading_seconds      its fit, the normalisation of the matrix included
  speedup_vs_label_spreading   how many times longer that is than here at the same size, the normalisation included
  speedup_of_iterations        the same for the ten iterations alone
  update_ms                    an update of the posterior's estimate after an optimizer step, over 40,000 samples
  peak_rss_mib                 peak resident memory of the process
"""

import argparse
import json
import resource
import statistics
import time
import warnings

import numba
import numpy as np
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelSpreading

from open_r1_kivqa.curriculum.difficulty import Counts
from open_r1_kivqa.curriculum.estimate import PosteriorEstimator
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.curriculum.propagation import Propagator

ITERATIONS = 10
UPDATE_ROWS = 40_000
PROMPTS, ROLLOUTS = 16, 8  # of an optimizer step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="samples of the graph")
    parser.add_argument("--degree", type=int, default=100, help="neighbours of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured")
    parser.add_argument("--label_spreading_rows", type=int, default=1_000_000, help="at most; 0 leaves it out")
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    found = {"rows": arguments.rows, "degree": arguments.degree, "threads": arguments.threads}
    graph = random_graph(arguments.rows, arguments.degree)
    found |= measure(graph, arguments.rounds)
    print(found, flush=True)
    rows = min(arguments.rows, arguments.label_spreading_rows)
    if rows:
        if rows < arguments.rows:
            graph = random_graph(rows, arguments.degree)
        found |= compare(graph, min(3, arguments.rounds))
    del graph
    found["update_ms"] = update_ms(arguments.degree)
    found["peak_rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(found))


def random_graph(rows: int, degree: int) -> SampleGraph:
    generator = np.random.default_rng(0)
    indices = generator.integers(0, rows, (rows, degree), dtype=np.int32)
    indices.sort(axis=1)
    return SampleGraph(
        ids=np.arange(rows).astype(str),
        hashes=np.zeros(rows, np.uint64),
        indptr=np.arange(rows + 1, dtype=np.int64) * degree,
        indices=indices.ravel(),
        weights=generator.random(rows * degree, dtype=np.float32) + np.float32(0.01),
        returns=np.zeros(rows, np.float32),
        recipe={},
    )


def measure(graph: SampleGraph, rounds: int) -> dict:
    propagator, generator = Propagator(graph), np.random.default_rng(1)
    accuracy, masses = generator.random(len(graph)), generator.gamma(1, 2, (len(graph), 4)).astype(np.float32)
    medians = in_turns(
        rounds,
        lambda: propagator.paper(accuracy, iterations=ITERATIONS, epsilon=0),
        lambda: [plain_pass(graph.indices, graph.weights) for _ in range(ITERATIONS)],
        lambda: propagator.spread(masses, iterations=ITERATIONS, epsilon=0),
    )
    return {
        "seconds": round(medians[0], 3),
        "bandwidth_seconds": round(medians[1], 3),
        "ratio_to_bandwidth": round(medians[0] / medians[1], 2),
        "four_columns_seconds": round(medians[2], 3),
    }


def compare(graph: SampleGraph, rounds: int) -> dict:
    """LabelSpreading normalises another way, which changes its numbers, not its work."""
    size = len(graph)
    matrix = csr_matrix((graph.weights.astype(np.float64), graph.indices, graph.indptr.astype(np.int32)), (size, size))
    labels = np.where(np.arange(size) % 2, 1, -1)
    accuracy, nothing = (labels == 1).astype(np.float32), np.zeros((size, 1))

    def spread(iterations: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            LabelSpreading(kernel=lambda x, y: matrix, alpha=0.8, max_iter=iterations, tol=0).fit(nothing, labels)

    propagator = Propagator(graph)
    theirs, theirs_once, ours, ours_alone = in_turns(
        rounds,
        lambda: spread(ITERATIONS),
        lambda: spread(1),
        lambda: Propagator(graph).paper(accuracy, iterations=ITERATIONS, epsilon=0),
        lambda: propagator.paper(accuracy, iterations=ITERATIONS, epsilon=0),
    )
    alone = (theirs - theirs_once) * ITERATIONS / (ITERATIONS - 1)
    return {
        "label_spreading_rows": size,
        "label_spreading_seconds": round(theirs, 2),
        "speedup_vs_label_spreading": round(theirs / ours, 1),
        "speedup_of_iterations": round(alone / ours_alone, 1),
    }


def update_ms(degree: int, steps: int = 150) -> float:
    """Median over the last steps of what rank 0 does after an optimizer step; fits of the two parameters are among them."""
    generator = np.random.default_rng(2)
    propagator = Propagator(random_graph(UPDATE_ROWS, degree))
    estimator = PosteriorEstimator(UPDATE_ROWS, ROLLOUTS, generator.integers(0, 12, UPDATE_ROWS), propagator)
    chance, share = generator.random(UPDATE_ROWS), np.full(UPDATE_ROWS, 0.7)
    counts, spent = Counts(*np.zeros((3, 2, UPDATE_ROWS))), []
    for _ in range(steps):
        rows, hit = generator.choice(UPDATE_ROWS, PROMPTS, replace=False), generator.random(PROMPTS) < 0.7
        values = (generator.random((PROMPTS, ROLLOUTS)) < chance[rows, None]).astype(float)
        counts = Counts(*(part * 2 ** (-1 / 200) for part in counts))
        counts.n[hit.astype(int), rows] += ROLLOUTS
        counts.s[hit.astype(int), rows] += values.sum(axis=1)
        start = time.perf_counter()
        estimator.record(rows, hit, values)
        estimator.update(counts, share)
        spent.append(time.perf_counter() - start)
    return round(1000 * statistics.median(spent[steps // 3 :]), 1)


@numba.njit(parallel=True, fastmath=True)
def plain_pass(indices, weights):
    positions, total = 0, np.float32(0)
    for e in numba.prange(len(indices)):
        positions += indices[e]
        total += weights[e]
    return positions, total


def in_turns(rounds: int, *functions) -> list[float]:
    """Median seconds of each, called one after the other, round after round; a first round is not counted."""
    spent = [[] for _ in functions]
    for _ in range(rounds + 1):
        for function, own in zip(functions, spent, strict=True):
            start = time.perf_counter()
            function()
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in spent]


if __name__ == "__main__":
    main()
