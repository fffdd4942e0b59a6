"""The graph's file, its checks, and its parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.curriculum.graph import SampleGraph, returns_of
from open_r1_kivqa.errors import InputError

IDS = ["a", "b", "c", "d"]


def graph(edges, ids=IDS, **more):
    """The graph of (row, column, weight) triples; row i's hash is 10 i."""
    rows, columns, weights = (list(values) for values in zip(*edges, strict=True)) if edges else ([], [], [])
    return SampleGraph.from_edges(ids, np.arange(len(ids)) * 10, rows, columns, weights, {"seed": 1}, **more)


def dense(graph):
    matrix = np.zeros((len(graph), len(graph)), np.float32)
    for i in range(len(graph)):
        span = slice(graph.indptr[i], graph.indptr[i + 1])
        matrix[i, graph.indices[span]] = graph.weights[span]
    return matrix


def test_edges_become_compressed_rows():
    made = graph([(2, 0, 2), (0, 1, 1), (1, 2, 0.5), (1, 0, 0.5), (3, 3, 1), (3, 0, 0)])
    assert made.indptr.tolist() == [0, 1, 3, 4, 4]  # the edge of d to itself and the one of weight 0 are gone
    assert made.indices.tolist() == [1, 0, 2, 0]
    assert made.weights.tolist() == [1, 0.5, 0.5, 2]
    assert made.isolated == 1 and len(made) == 4
    assert [made.indptr.dtype, made.indices.dtype, made.weights.dtype] == [np.int64, np.int32, np.float32]
    # a -> b -> a: 1 x 1/2. b -> a -> b: 1/2 x 1. c -> a -> b only.
    assert made.returns.tolist() == [0.5, 0.5, 0, 0]


def test_top_k_keeps_the_heaviest_and_of_equal_ones_the_lower_row():
    made = graph([(0, 3, 0.5), (0, 2, 0.5), (0, 1, 0.1), (1, 0, 0.1)], top_k=1)
    assert made.indices.tolist() == [2, 0]
    assert graph([(0, 3, 0.5), (0, 2, 0.5), (0, 1, 0.6)], top_k=2).indices.tolist() == [1, 2]


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
@settings(deadline=None)
def test_returns_are_the_diagonal_of_k_squared(values):
    weights = np.array(values, dtype=np.float32)
    np.fill_diagonal(weights, 0)
    rows, columns = np.nonzero(weights)
    if not len(rows):
        return
    made = graph(
        list(zip(rows, columns, weights[rows, columns], strict=True)), ids=[str(i) for i in range(len(weights))]
    )
    assert np.array_equal(dense(made), weights)
    sums = weights.sum(1, keepdims=True)
    k = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    np.testing.assert_allclose(made.returns, np.diag(k @ k), rtol=1e-5)


@pytest.mark.parametrize(
    "edges, message",
    [
        (
            [(0, 1, 1), (2, 1, np.nan)],
            "The similarity of 'c' and 'b' is nan; similarities are finite numbers from 0 on",
        ),
        ([(0, 1, -0.5)], "The similarity of 'a' and 'b' is -0.5;"),
        ([(0, 1, np.inf)], "The similarity of 'a' and 'b' is inf;"),
        ([(0, 4, 1)], "An edge goes from row 0 to row 4; there are 4 rows"),
        ([(-1, 0, 1)], "An edge goes from row -1 to row 0;"),
        ([(0, 1, 1), (1, 0, 1), (0, 1, 0.5)], "The edge from 'a' to 'b' is given twice;"),
        ([], "No two of the 4 rows are similar, so the graph has no edge;"),
        ([(0, 0, 1), (0, 1, 0)], "No two of the 4 rows are similar"),
    ],
)
def test_unusable_edges_are_refused(edges, message):
    with pytest.raises(InputError) as error:
        graph(edges)
    assert str(error.value).startswith(message)


def test_a_saved_graph_loads_as_it_was(tmp_path):
    made = graph([(0, 1, 1), (1, 0, 0.25), (2, 3, 0.5)], ids=["a", "é", "a longer id", "7"])
    made.save(tmp_path / "g.npz")
    loaded = SampleGraph.load(tmp_path / "g.npz")
    for name in ("ids", "hashes", "indptr", "indices", "weights", "returns"):
        assert np.array_equal(getattr(loaded, name), getattr(made, name)), name
        assert getattr(loaded, name).dtype == getattr(made, name).dtype
    assert loaded.recipe == {"seed": 1}
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "g.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.npz", "g.npz"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weights": None, "ids": None}, "it lacks the arrays ids, weights"),
        ({"format": np.int64(2)}, "its format is 2, and this version reads format 1"),
        ({"more": np.zeros(1)}, "it holds arrays of another purpose, more"),
        (
            {"indices": np.array([1.0, 0.0, 3.0])},
            "indices is an array of float64 with 1 axes, and one axis of int32 is wanted",
        ),
        ({"ids": np.arange(4)}, "ids is an array of int64 with 1 axes, and one axis of a text is wanted"),
        ({"hashes": np.zeros(3, np.uint64)}, "hashes has 3 entries where 4 belong to 4 rows and 3 edges"),
        ({"weights": np.ones(4, np.float32)}, "weights has 4 entries where 3 belong to"),
        ({"ids": np.array(["a", "a", "b", "c"])}, "an id stands in it twice"),
        ({"indptr": np.array([0, 2, 1, 3, 3])}, "indptr does not ascend"),
        ({"indptr": np.array([0, 1, 2, 2, 2])}, "indptr does not ascend"),
        ({"indices": np.array([1, 0, 4], np.int32)}, "an edge leads outside the 4 rows"),
        (
            {"indices": np.array([0, 0, 3], np.int32)},
            "the neighbours of a row are not ascending, repeat, or hold the row itself",
        ),
        ({"weights": np.array([1, 0, 1], np.float32)}, "a weight is zero, negative, infinite or NaN"),
        ({"weights": np.array([1, np.nan, 1], np.float32)}, "a weight is zero, negative, infinite or NaN"),
        ({"returns": np.array([0, 0, 0, np.nan], np.float32)}, "returns are not between 0 and 1"),
        ({"recipe": np.array([1, 2], np.uint8)}, "its recipe is not JSON"),
        ({"recipe": np.frombuffer(b"[1]", np.uint8)}, "its recipe is no JSON object"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, change, message):
    path = tmp_path / "g.npz"
    graph([(0, 1, 1), (1, 0, 0.25), (2, 3, 0.5)]).save(path)
    with np.load(path) as file:
        arrays = {name: array for name, array in {**file, **change}.items() if array is not None}
    np.savez(path, **arrays)
    with pytest.raises(InputError) as error:
        SampleGraph.load(path)
    assert str(error.value).startswith(f"{path} is no graph of samples: {message}")
    assert str(error.value).endswith("; build it again with kivqa graph.")


def test_files_that_are_no_npz_are_refused(tmp_path):
    path = tmp_path / "g.npz"
    with pytest.raises(InputError, match="does not exist; make it with kivqa graph"):
        SampleGraph.load(path)
    graph([(0, 1, 1)]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is no .npz file; make it with kivqa graph"):
            SampleGraph.load(path)
    path.write_bytes(whole.replace(np.float32(1).tobytes(), np.float32(2).tobytes()))  # the checksum differs
    with pytest.raises(InputError, match="cannot be read as .npz .Bad CRC"):
        SampleGraph.load(path)
    np.savez(path, ids=np.array([{}], dtype=object))  # only a pickle could hold it
    with pytest.raises(InputError, match="cannot be read as .npz .Object arrays"):
        SampleGraph.load(path)


def test_part_of_the_rows_in_another_order():
    made = graph([(0, 1, 1), (0, 2, 0.5), (1, 0, 0.25), (2, 0, 1), (2, 3, 3), (3, 1, 1)])
    part = made.for_rows(["c", "a", "b"], np.array([20, 0, 10], np.uint64))
    assert part.ids.tolist() == ["c", "a", "b"] and part.hashes.tolist() == [20, 0, 10]
    assert dense(part).tolist() == [[0, 1, 0], [0.5, 0, 1], [0, 0.25, 0]]
    assert part.indices.tolist() == [1, 0, 2, 1]
    assert part.indices.dtype == np.int32 and part.indptr.dtype == np.int64
    np.testing.assert_array_equal(part.returns, returns_of(part.indptr, part.indices, part.weights))
    # c -> a (its only neighbour now) -> c with 1/3; a -> c -> a with 1/3, a -> b -> a with 2/3.
    np.testing.assert_allclose(part.returns, [1 / 3, 1, 2 / 3], rtol=1e-6)
    assert made.for_rows(IDS, made.hashes) is made


@pytest.mark.parametrize(
    "ids, hashes, message",
    [
        (["a", "x", "b"], [0, 0, 11], "1 of 3 training rows are unknown to it and 1 have changed since (first: 'x')"),
        (["a", "b"], [0, 11], "0 of 2 training rows are unknown to it and 1 have changed since (first: 'b')"),
    ],
)
def test_other_rows_are_refused(ids, hashes, message):
    with pytest.raises(InputError) as error:
        graph([(0, 1, 1)]).for_rows(ids, np.array(hashes, np.uint64), "g.npz")
    assert (
        str(error.value)
        == f"--curriculum_graph g.npz was built of other rows: {message}; build it again with kivqa graph."
    )


def test_rows_without_any_edge_between_them_are_refused():
    with pytest.raises(InputError, match="has no edge between any two of the 2 training rows"):
        graph([(0, 1, 1)]).for_rows(["a", "c"], np.array([0, 20], np.uint64), "g.npz")
