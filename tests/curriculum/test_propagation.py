"""Propagation against dense matrices, hand-worked graphs and scikit-learn's label spreading."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array, diags_array
from sklearn.semi_supervised import LabelSpreading

from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.curriculum.propagation import Propagator


def graph(matrix):
    """The graph of a dense matrix of similarities."""
    matrix = np.asarray(matrix, np.float32)
    rows, columns = np.nonzero(matrix)
    ids = [str(i) for i in range(len(matrix))]
    return SampleGraph.from_edges(ids, np.zeros(len(ids), np.uint64), rows, columns, matrix[rows, columns], recipe={})


def similarities(size, degree, seed=0, symmetric=False):
    generator = np.random.default_rng(seed)
    matrix = np.zeros((size, size), np.float32)
    for i in range(size):
        others = np.delete(np.arange(size), i)
        matrix[i, generator.choice(others, degree, replace=False)] = generator.uniform(0.1, 1, degree)
    return np.maximum(matrix, matrix.T) if symmetric else matrix


def normalised(matrix):
    sums = matrix.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.divide(matrix, sums, out=np.zeros(matrix.shape), where=sums > 0)


def published(matrix, accuracy, alpha=0.8, iterations=10, epsilon=1e-4):
    """The published rule in plain numpy, float64."""
    k, now = normalised(matrix), accuracy
    for _ in range(iterations):
        now, before = alpha * k @ now + (1 - alpha) * accuracy, now
        if np.linalg.norm(now - before) < epsilon:
            break
    return now


@pytest.mark.parametrize("degree", [1, 3, 4, 7, 30])
def test_paper_is_the_published_rule(degree):
    matrix = similarities(60, degree)
    matrix[5] = 0  # no neighbours
    accuracy = np.where(np.arange(60) % 3, np.random.default_rng(1).random(60), 0)
    for options in ({}, {"alpha": 0.5, "iterations": 3}, {"iterations": 200, "epsilon": 1e-3}, {"iterations": 0}):
        found = Propagator(graph(matrix)).paper(accuracy, **options)
        np.testing.assert_allclose(found, published(matrix, accuracy, **options), rtol=1e-6, atol=1e-7)


def test_paper_by_hand():
    # 0 and 1 are each other's only neighbour, 2 has none. One iteration: .8 * other + .2 * own.
    matrix = [[0, 5, 0], [5, 0, 0], [0, 0, 0], [1, 1, 0]]
    matrix = np.hstack([matrix, np.zeros((4, 1))])
    propagator = Propagator(graph(matrix))
    np.testing.assert_allclose(propagator.paper([1, 0, 0.5, 0], iterations=1), [0.2, 0.8, 0.1, 0.4], rtol=1e-6)
    # The limit of the pair: x = .8 y + .2, y = .8 x: x = 5/9, y = 4/9. A sample without neighbours at .5 ends at .1.
    limit = propagator.paper([1, 0, 0.5, 0], iterations=500, epsilon=1e-7)
    np.testing.assert_allclose(limit, [5 / 9, 4 / 9, 0.1, 0.8 / 2], rtol=1e-5)


def test_paper_takes_unobserved_samples_for_failures():
    # A = 0 for half of the samples halves what arrives everywhere: the mean of A' is that of A, far below the truth.
    generator = np.random.default_rng(2)
    matrix = similarities(2000, 50)
    truth = generator.uniform(0.02, 1, 2000)
    observed = generator.permutation(2000) < 1000
    found = Propagator(graph(matrix)).paper(np.where(observed, truth, 0))
    assert truth[observed].mean() == pytest.approx(0.51, abs=0.01)
    assert found[observed].mean() == pytest.approx(0.31, abs=0.01)


def test_paper_reaches_the_fixed_point_of_label_spreading():
    # scikit-learn normalises symmetrically, D^-1/2 S D^-1/2; where all rows sum to the same, that is the row-normalised matrix.
    size = 40
    matrix = np.zeros((size, size))
    for i in range(size):
        for step, weight in ((1, 1.0), (2, 0.5), (7, 0.25)):
            matrix[i, (i + step) % size] = matrix[(i + step) % size, i] = weight
    labels = np.full(size, -1)
    labels[:16] = np.random.default_rng(3).integers(0, 2, 16)
    spreading = LabelSpreading(kernel=lambda x, y: matrix.copy(), alpha=0.8, max_iter=1000, tol=1e-9)
    spreading.fit(np.arange(size)[:, None], labels)
    each = [
        Propagator(graph(matrix)).paper((labels == value).astype(float), iterations=1000, epsilon=1e-7)
        for value in (0, 1)
    ]
    expected = spreading.label_distributions_
    np.testing.assert_allclose(each[1] / (each[0] + each[1]), expected[:, 1], rtol=1e-4)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6])
def test_walk_is_the_sum_of_powers(columns):
    matrix = similarities(70, 9)
    matrix[3] = 0
    masses = np.random.default_rng(4).gamma(1, 2, (70, columns))
    k = 0.8 * normalised(matrix)
    series = [np.linalg.matrix_power(k, t) @ masses for t in range(1, 11)]
    _, walk = Propagator(graph(matrix)).spread(masses, epsilon=0)
    np.testing.assert_allclose(walk, sum(series), rtol=1e-5, atol=1e-6)
    _, limit = Propagator(graph(matrix)).spread(masses, iterations=300, epsilon=1e-7)
    np.testing.assert_allclose(limit, np.linalg.solve(np.eye(70) - k, k @ masses), rtol=1e-5, atol=1e-6)


def many_rows(size=140_000):
    """A graph that is sorted into tiles: 18 of rows, and 3 blocks of columns."""
    generator = np.random.default_rng(9)
    rows = np.repeat(np.arange(size), 3)
    columns = (rows + generator.integers(1, size, len(rows))) % size
    matrix = csr_array((np.ones(len(rows), np.float32), (rows, columns)), (size, size))
    matrix.setdiag(0)
    matrix.sum_duplicates()
    rows, columns = matrix.nonzero()
    weights = generator.uniform(1, 2, len(rows))
    return SampleGraph.from_edges([str(i) for i in range(size)], np.zeros(size, np.uint64), rows, columns, weights, {})


def test_many_rows():
    found, generator = many_rows(), np.random.default_rng(10)
    size = len(found)
    k = csr_array((found.weights, found.indices, found.indptr), (size, size)).astype(np.float64)
    k = diags_array(0.8 / k.sum(axis=1)) @ k
    masses = generator.gamma(1, 2, (size, 5))
    once = k @ masses
    propagator = Propagator(found)
    np.testing.assert_allclose(propagator.spread(masses, iterations=2, epsilon=0)[1], once + k @ once, rtol=1e-5)
    accuracy = masses[:, 0] / masses.max()
    expected = k @ accuracy + 0.2 * accuracy
    np.testing.assert_allclose(propagator.paper(accuracy, iterations=1), expected, rtol=1e-5)


def test_returned_mass_of_two_steps_is_taken_off():
    matrix = similarities(50, 6, symmetric=True)
    propagator = Propagator(graph(matrix))
    masses = np.zeros((50, 1))
    masses[8] = 3.0
    k = 0.8 * normalised(matrix)
    values, walk = propagator.spread(masses, iterations=2, epsilon=0)
    expected = 0.2 * (k + k @ k) @ masses
    expected[8] = 0  # after two steps nothing else has come back
    np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize("iterations", [1, 2, 5, 10, 400])
def test_a_pair_does_not_hear_itself(iterations):
    propagator = Propagator(graph([[0, 2], [2, 0]]))
    silent, _ = propagator.spread(np.array([[0.0], [3.0]]), iterations=iterations, epsilon=0)
    loud, _ = propagator.spread(np.array([[50.0], [3.0]]), iterations=iterations, epsilon=0)
    assert silent[0, 0] > 0.4
    assert loud[0, 0] == pytest.approx(silent[0, 0], abs=1e-5)
    # What comes from the other: .2 * (.8 + .8^3 + .8^5 + ...) of its mass.
    powers = sum(0.8**t for t in range(1, iterations + 1, 2))
    assert silent[0, 0] == pytest.approx(0.2 * powers * 3, rel=1e-5)


def test_values_are_never_negative_and_zero_without_neighbours():
    generator = np.random.default_rng(5)
    matrix = similarities(40, 2, symmetric=True)
    matrix[7] = 0
    propagator = Propagator(graph(matrix))
    start = None
    for _ in range(5):
        values, start = propagator.spread(generator.gamma(0.1, 5, (40, 4)), start)
        assert (values >= 0).all() and (values[7] == 0).all()


def test_warm_start_has_the_same_limit_and_is_sooner_there():
    propagator = Propagator(graph(similarities(80, 5)))
    generator = np.random.default_rng(6)
    masses = generator.gamma(1, 4, (80, 3))
    _, start = propagator.spread(masses, iterations=300, epsilon=1e-7)
    masses[4] += 2
    cold = propagator.spread(masses, iterations=300, epsilon=1e-7)
    warm = propagator.spread(masses, start, iterations=300, epsilon=1e-7)
    for found, expected in zip(warm, cold, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # After the same few iterations the warm one is nearer.
    few_cold = propagator.spread(masses, iterations=4)[1]
    few_warm = propagator.spread(masses, start, iterations=4)[1]
    assert abs(few_warm - cold[1]).max() < 0.05 * abs(few_cold - cold[1]).max()


def test_columns_do_not_mix():
    propagator = Propagator(graph(similarities(60, 8)))
    masses = np.random.default_rng(7).gamma(1, 1, (60, 6))
    values, walk = propagator.spread(masses, epsilon=0)
    for column in range(6):
        alone = propagator.spread(masses[:, [column]], epsilon=0)
        np.testing.assert_allclose(alone[0][:, 0], values[:, column], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(alone[1][:, 0], walk[:, column], rtol=1e-5, atol=1e-6)


def test_a_new_column_beside_warm_ones_begins_cold():
    propagator = Propagator(graph([[0, 1], [1, 0]]))
    masses = np.array([[50.0, 50.0], [3.0, 3.0]])
    _, start = propagator.spread(masses, iterations=400, epsilon=1e-7)
    start[:, 1] = 0
    values, _ = propagator.spread(masses, start, iterations=3, epsilon=0)
    assert values[0, 1] == pytest.approx(0.2 * (0.8 + 0.8**3) * 3, rel=1e-5)
    assert values[0, 0] == pytest.approx(0.2 * 0.8 / (1 - 0.64) * 3, rel=1e-4)


def test_threads_make_no_difference():
    script = """
import numba, numpy as np
from hashlib import sha256
from test_propagation import graph, many_rows, similarities
from open_r1_kivqa.curriculum.propagation import Propagator
graphs, generator = (graph(similarities(300, 11)), many_rows()), np.random.default_rng(8)
for one in graphs:
    accuracy, masses = generator.random(len(one)), generator.gamma(1, 1, (len(one), 6))
    for threads in (1, 2):
        numba.set_num_threads(threads)
        propagator = Propagator(one)
        found = propagator.paper(accuracy), *propagator.spread(masses)
        print(*(sha256(part.tobytes()).hexdigest() for part in found))
"""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2", "PYTHONPATH": os.path.dirname(__file__)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    few, same, many, equal = ended.stdout.splitlines()
    assert few == same and many == equal
