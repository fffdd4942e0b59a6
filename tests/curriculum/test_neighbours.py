"""Neighbours against comparing all pairs, which of equal rows are taken, and threads."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.preprocessing import normalize

import open_r1_kivqa
from open_r1_kivqa.curriculum import neighbours as nb
from open_r1_kivqa.curriculum import similarity as sm
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase

DATA = Path(open_r1_kivqa.__file__).parent / "demo" / "data"


@pytest.fixture(scope="module")
def factbook():
    """The sides of the embedded training rows."""
    things = sm.look(Rows.open([str(DATA / "train.jsonl")], [os.sep], None))
    texts = sm.article_texts(KnowledgeBase.open(str(DATA / "knowledge.jsonl")), things.articles)
    return sm.article_side(things, sm.tfidf(texts, "articles")), sm.question_side(things)


def all_pairs(side):
    """(N, N) similarities of rows on one side, without the diagonal."""
    matrix = side.matrix.toarray() if hasattr(side.matrix, "toarray") else side.matrix
    between = matrix.copy() if side.given else np.maximum(matrix.astype(float) @ matrix.T.astype(float), 0)
    np.fill_diagonal(between, 1)
    rows = between[side.units][:, side.units]
    rows[side.units < 0] = 0
    rows[:, side.units < 0] = 0
    np.fill_diagonal(rows, 0)
    return rows


def check(first, second, weight, top_k, seed=0):
    """Every row has its nearest rows, with their similarities; which of equal ones is free. Returns (N, N) weights."""
    expected = weight * all_pairs(first) + ((1 - weight) * all_pairs(second) if second else 0)
    indptr, indices, weights = nb.nearest_rows(first, second, weight, top_k, seed, lambda what: None)
    made = np.zeros_like(expected)
    for i, row in enumerate(expected):
        span = slice(indptr[i], indptr[i + 1])
        own = indices[span]
        assert (np.diff(own) > 0).all() and i not in own
        np.testing.assert_allclose(weights[span], row[own], atol=1e-5)
        best = np.sort(row[row > 1e-6])[::-1][:top_k]
        np.testing.assert_allclose(np.sort(weights[span])[::-1], best, atol=1e-5)
        made[i, own] = weights[span]
    assert nb.measure_recall(first, second, weight, top_k, indptr, indices, seed) == 1
    return made


def test_embedded_rows_by_articles_and_questions(factbook):
    check(*factbook, 0.5, 100)


@pytest.mark.parametrize("side, weight", [(0, 1.0), (1, 1.0)])
def test_embedded_rows_by_one_side(factbook, side, weight):
    made = check(factbook[side], None, weight, 30) > 0
    assert (made.sum(1) == 30).all()
    # Far more than 30 rows ask the same question: each row gets others of them, none is everybody's neighbour, none nobody's.
    if side == 1:
        assert made.sum(0).max() < 60 and made.sum(0).min() > 5
        assert len({row.tobytes() for row in made}) > len(made) / 2


def units(size):
    return st.lists(st.integers(-1, size - 1), min_size=1, max_size=40)


@st.composite
def sides(draw):
    """Two sides of some rows: sparse, dense or given; rows without a unit; several rows of a unit."""
    rows = draw(st.integers(1, 40))
    made = []
    for kind in draw(st.tuples(*[st.sampled_from(["sparse", "dense", "given"])] * 2)):
        generator = np.random.default_rng(draw(st.integers(0, 2**31)))
        size = draw(st.integers(1, 12))
        matrix = generator.normal(size=(size, 4)) * (generator.random((size, 4)) < 0.6)
        if kind == "given":
            matrix = generator.random((size, size)) * (generator.random((size, size)) < 0.5)
            np.fill_diagonal(matrix, 0)
        else:
            matrix = normalize(matrix)
        matrix = matrix.astype(np.float32)
        of_rows = np.concatenate([np.arange(size), generator.integers(-1, size, max(0, rows - size))])[:rows]
        used = of_rows.max(initial=0) + 1
        matrix = matrix[:used, :used] if kind == "given" else matrix[:used]
        made.append(sm.Side(of_rows, matrix if kind == "dense" else csr_array(matrix), given=kind == "given"))
    return made


@given(sides(), st.sampled_from([0.2, 0.5, 0.9]), st.integers(1, 8), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_two_sides(two, weight, top_k, joined):
    # Looking at all cells of all units leaves no room for a miss.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nb, "DEPTH", 40)
        check(two[0], two[1] if joined else None, weight if joined else 1.0, top_k)


def test_a_unit_with_more_rows_than_neighbours_is_used_evenly():
    side = sm.Side(np.zeros(2000, np.int64), np.ones((1, 1), np.float32))
    indptr, indices, weights = nb.nearest_rows(side, None, 1.0, 10, 0, lambda what: None)
    assert (np.diff(indptr) == 10).all() and (weights == 1).all()
    used = np.bincount(indices, minlength=2000)
    assert used.min() >= 1 and used.max() <= 30  # 10 in the mean
    other = nb.nearest_rows(side, None, 1.0, 10, 1, lambda what: None)[1]
    assert (indices != other).mean() > 0.9  # another seed, other neighbours
    again = nb.nearest_rows(side, None, 1.0, 10, 0, lambda what: None)[1]
    assert (indices == again).all()


def test_few_cells_are_looked_at_when_many_are_equal(monkeypatch):
    """5000 cells of one question: with room for 20 of them a row still gets all its neighbours, those that its articles bring first."""
    generator = np.random.default_rng(0)
    articles = sm.Side(np.arange(5000), normalize(generator.normal(size=(5000, 8))).astype(np.float32))
    questions = sm.Side(np.zeros(5000, np.int64), np.ones((1, 1), np.float32))
    monkeypatch.setattr(nb, "SCAN", 2)
    indptr, indices, weights = nb.nearest_rows(articles, questions, 0.5, 10, 0, lambda what: None)
    assert (np.diff(indptr) == 10).all()
    assert nb.measure_recall(articles, questions, 0.5, 10, indptr, indices, 0) == 1


def test_recall_counts_rows_that_are_as_near(factbook):
    """By hand: row 0's true neighbour is 1; rows 2 and 3 tie for each other and for 4."""
    matrix = np.zeros((5, 5), np.float32)
    matrix[0, 1] = matrix[1, 0] = 0.9
    matrix[0, 2] = 0.1
    matrix[2, 3] = matrix[2, 4] = matrix[3, 2] = matrix[4, 2] = 0.5
    side = sm.Side(np.arange(5), csr_array(matrix), given=True)
    neighbours = np.array([2, 0, 4, 2, 2])  # wrong, right, as good as 3, right, right
    assert nb.measure_recall(side, None, 1.0, 1, np.arange(6), neighbours, 0) == pytest.approx(4 / 5)


def test_the_approximate_search_finds_nearly_all(monkeypatch):
    """Articles of 60 topics: what is near shares a topic."""
    generator = np.random.default_rng(0)
    topics = generator.normal(size=(60, 200))
    matrix = topics[generator.integers(60, size=6000)] + 0.7 * generator.normal(size=(6000, 200))
    matrix[np.abs(matrix) < 1] = 0
    matrix = normalize(np.maximum(matrix, 0)).astype(np.float32)
    monkeypatch.setattr(nb, "EXACT_UNITS", 0)
    for vectors in (matrix, csr_array(matrix)):
        side = sm.Side(np.arange(6000), vectors)
        indptr, indices, weights = nb.nearest_rows(side, None, 1.0, 20, 0, lambda what: None)
        assert (np.diff(indptr) == 20).all()
        np.testing.assert_allclose(
            weights[:20], (matrix[[0]] @ matrix[indices[:20]].T)[0], rtol=1e-5
        )  # exact all the same
        assert nb.measure_recall(side, None, 1.0, 20, indptr, indices, 0) > 0.8


SCRIPT = """
import hashlib, sys
from open_r1_kivqa.curriculum import neighbours as nb
nb.EXACT_UNITS = int(sys.argv[1])
sys.path.insert(0, sys.argv[2])
import test_neighbours
sides = test_neighbours.factbook.__wrapped__()
print(test_neighbours.digest(nb.nearest_rows(*sides, 0.5, 40, 3, lambda what: None)))
"""


def digest(arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize("exact_units", [0, 1000])
def test_the_number_of_threads_changes_nothing(exact_units):
    found = set()
    for threads in ("1", "3"):
        names = {name: threads for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}
        command = [sys.executable, "-c", SCRIPT, str(exact_units), str(Path(__file__).parent)]
        done = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
