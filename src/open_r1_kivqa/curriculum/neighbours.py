"""The nearest rows of every row, by one side or two: nearest units first, then cells of rows, then rows.

A cell is a distinct pair of a unit of the first side and one of the second; its rows are alike in every respect, so neighbours are ranked once a cell. Nowhere are all
pairs of rows looked at: a cell looks at the cells of its units' nearest units, and at no more than `SCAN` x top_k of them on each side.
"""

from collections.abc import Callable
from typing import NamedTuple

import faiss
import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from .cells import expand, rank_cells, rescore
from .similarity import Side, heaviest

EXACT_UNITS = 50_000  # up to here all pairs of units are multiplied out
COMPONENTS = 128  # sparse vectors are reduced to these before the approximate search, not before they are compared
PROBES = 32  # cells of faiss' index that a search looks into
SURPLUS = 2  # the approximate search finds so many times the units wanted; exact similarities choose among them
DEPTH = 4  # x top_k nearest units are kept when two sides are joined,
ENTRIES = (
    50_000_000  # or fewer, so that the lists of all units hold no more than this (8 bytes each), but at least top_k + 1
)
SCAN = 40  # x top_k cells are looked at on each side, at most
BLOCK = 65_536  # cells ranked at a time
QUERIES = 1000  # rows that recall is measured on


class Table(NamedTuple):
    """A side's matrix as compiled code takes it: `kind` 0 nothing to compare, 1 sparse vectors, 2 dense vectors, 3 given similarities; `width`: of a sparse vector."""

    kind: int
    width: int
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    dense: np.ndarray


class Near(NamedTuple):
    """Nearest units of each unit, nearest first, the unit itself (similarity 1) at the front; compressed rows. `floor`: (U,) similarity that no other unit exceeds."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    floor: np.ndarray


class Cells(NamedTuple):
    """Distinct pairs of units, ascending.

    Attributes:
        first, second: (C,) int32 units, -1 for none.
        first_ptr: (U1+1,) the cells of the first side's unit u are first_ptr[u]..first_ptr[u+1].
        by_second, second_ptr: (C,) the cells by the second side's unit, (U2+1,) likewise.
        row_ptr, rows: (C+1,), (N,) the rows of each cell, shuffled.
    """

    first: np.ndarray
    second: np.ndarray
    first_ptr: np.ndarray
    by_second: np.ndarray
    second_ptr: np.ndarray
    row_ptr: np.ndarray
    rows: np.ndarray


def nearest_rows(
    first: Side, second: Side | None, weight: float, top_k: int, seed: int, progress: Callable[[str], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr, indices, weights) of every row's `top_k` nearest rows, ascending within a row: what `SampleGraph.from_neighbours` takes.

    Similarity is weight·S1 + (1−weight)·S2. Of equally similar rows a row gets some by the seed, not the first ones: each row others, so that all are used alike.
    A row never gets itself nor one of similarity 0, and may get fewer than `top_k`.

    Args:
        first, second: sides of the same N rows; second None: similarity is S1 and `weight` 1.
        seed: same inputs and seed give the same neighbours at any number of threads.
        progress: called with what has been done.
    """
    near, tables = [], []
    for side in (first, second or Side(np.full(len(first.units), -1), csr_array((0, 1), dtype=np.float32))):
        size = side.matrix.shape[0]
        depth = top_k + 1 if second is None else max(top_k + 1, min(DEPTH * top_k, ENTRIES // max(1, size)))
        tables.append(table(side))
        near.append(near_units(side, tables[-1], depth, seed))
        if size:
            progress(f"{size:,} units: {near[-1].indptr[-1] / size:.0f} nearest units each")
    cells = cells_of(first, second, seed)
    number = len(cells.first)
    parts = []
    for start in range(0, number, BLOCK):
        stop = min(start + BLOCK, number)
        ranked = rank_cells(start, stop, cells, *near, *tables, weight, top_k, SCAN * top_k, seed)
        parts.append(expand(start, stop, cells, *ranked, top_k, seed))
        progress(f"neighbours of {int(cells.row_ptr[stop]):,} of {len(first.units):,} rows")
    return _join(parts, cells.rows)


def _join(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], rows: np.ndarray):
    """Compressed rows, in the order of the rows, from (numbers, indices, weights) in the order of the cells."""
    numbers = np.concatenate([part[0] for part in parts])
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    indptr[rows + 1] = numbers
    np.cumsum(indptr, out=indptr)
    indices, weights = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    done = 0
    for place, (part_numbers, part_indices, part_weights) in enumerate(parts):
        target = indptr[rows[done : done + len(part_numbers)]]
        filled = np.arange(part_indices.shape[1]) < part_numbers[:, None]
        goal = (target[:, None] + np.arange(part_indices.shape[1]))[filled]
        indices[goal], weights[goal] = part_indices[filled], part_weights[filled]
        done += len(part_numbers)
        parts[place] = None  # its memory is given back before the next
    return indptr, indices, weights


def table(side: Side) -> Table:
    """The side's matrix for compiled code."""
    empty = np.zeros((0, 0), np.float32)
    if not issparse(side.matrix):
        dense = np.ascontiguousarray(side.matrix, dtype=np.float32)
        return Table(2, 0, np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), dense)
    kind = 0 if not side.matrix.shape[0] else 3 if side.given else 1
    matrix = side.matrix.sorted_indices()  # compiled code merges rows
    return Table(
        kind,
        matrix.shape[1] if kind == 1 else 0,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data,
        empty,
    )


def near_units(side: Side, compare: Table, depth: int, seed: int) -> Near:
    """The `depth` nearest units of each unit, itself among them: exact up to `EXACT_UNITS` units or for given similarities, else found by an approximate search."""
    size = side.matrix.shape[0]
    if not size:
        return Near(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))
    depth = min(depth, size)
    if side.given:
        blocks = _given_blocks(side.matrix, depth)
    elif size <= EXACT_UNITS:
        blocks = _exact_blocks(side.matrix, depth)
    else:
        blocks = _approximate_blocks(side.matrix, min(SURPLUS * depth, size), seed)
    numbers = np.zeros(size, np.int64)
    indices, values = np.empty((size, depth), np.int32), np.empty((size, depth), np.float32)
    for start, found in blocks:
        span = slice(start, start + len(found))
        numbers[span], indices[span], values[span] = rescore(start, found, compare, depth)
    filled = np.arange(depth) < numbers[:, None]
    # A full list was cut off where others of the same similarity may follow; after a list that isn't full come only zeros.
    floor = np.where(numbers == depth, values[:, -1], 0).astype(np.float32)
    return Near(np.concatenate([[0], np.cumsum(numbers)]), indices[filled], values[filled], floor)


def _exact_blocks(matrix, depth: int):
    """(first unit, (units, depth) nearest units) by multiplying blocks of units with all."""
    block = max(1, 2**24 // matrix.shape[0])
    for start in range(0, matrix.shape[0], block):
        products = matrix[start : start + block] @ matrix.T
        products = products.toarray() if issparse(products) else products
        yield start, np.argpartition(-products, depth - 1, axis=1)[:, :depth].astype(np.int32)


def _given_blocks(matrix: csr_array, depth: int):
    """The same for given similarities; -1 where a unit has fewer."""
    matrix = heaviest(matrix, depth - 1)
    numbers = np.diff(matrix.indptr)
    for start in range(0, matrix.shape[0], BLOCK):
        filled = np.arange(depth) < numbers[start : start + BLOCK, None]
        found = np.full(filled.shape, -1, dtype=np.int32)
        found[filled] = matrix.indices[matrix.indptr[start] : matrix.indptr[min(start + BLOCK, matrix.shape[0])]]
        yield start, found


def _approximate_blocks(matrix, depth: int, seed: int):
    """The same through faiss: an inverted file over vectors that are reduced first if they are sparse."""
    with threadpool_limits(1, user_api="blas"):  # the last bits of a product depend on the number of its threads
        if issparse(matrix):
            components = min(COMPONENTS, min(matrix.shape) - 1)
            matrix = normalize(TruncatedSVD(components, n_iter=3, random_state=seed).fit_transform(matrix))
        vectors = np.ascontiguousarray(matrix, dtype=np.float32)
        size, width = vectors.shape
        lists = int(4 * np.sqrt(size))
        quantizer = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(quantizer, width, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed, index.nprobe = seed % 2**31, PROBES
        sample = np.random.default_rng(seed).permutation(size)[: 40 * lists]
        index.train(vectors[np.sort(sample)])
        index.add(vectors)
        for start in range(0, size, 16_384):
            yield start, index.search(vectors[start : start + 16_384], depth)[1].astype(np.int32)


def cells_of(first: Side, second: Side | None, seed: int) -> Cells:
    """The cells of the rows of two sides; without a second one its units are all -1."""
    size, second_size = first.matrix.shape[0], second.matrix.shape[0] if second else 0
    second_units = second.units if second else np.full(len(first.units), -1)
    codes, cell_of = np.unique((first.units + 1) * (second_size + 1) + second_units + 1, return_inverse=True)
    one = (codes // (second_size + 1) - 1).astype(np.int32)
    two = (codes % (second_size + 1) - 1).astype(np.int32)
    by_second = np.argsort(two, kind="stable").astype(np.int32)
    shuffled = np.random.default_rng(seed).permutation(len(cell_of))
    rows = shuffled[np.argsort(cell_of[shuffled], kind="stable")]
    return Cells(
        one,
        two,
        np.searchsorted(one, np.arange(size + 1)),
        by_second,
        np.searchsorted(two[by_second], np.arange(second_size + 1)),
        np.concatenate([[0], np.cumsum(np.bincount(cell_of))]),
        rows,
    )


def measure_recall(
    first: Side, second: Side | None, weight: float, top_k: int, indptr: np.ndarray, indices: np.ndarray, seed: int
) -> float:
    """Share of the true `top_k` nearest rows that the neighbours are, over `QUERIES` random rows, by comparing each with all rows.

    A neighbour that is as similar as the true k-th (to 1e-5) is a true one: rows that tie stand for each other. Rows without any similar row are left out; 1 if all are.
    """
    size = len(first.units)
    queries = np.random.default_rng([seed, 1]).permutation(size)[:QUERIES]
    found = wanted = 0
    for i in queries.tolist():
        similarity = weight * _to_all(first, i)
        if second is not None:
            similarity = similarity + (1 - weight) * _to_all(second, i)
        similarity[i] = 0
        number = min(top_k, int((similarity > 1e-5).sum()))
        if number:
            threshold = np.partition(similarity, size - number)[size - number]
            neighbours = indices[indptr[i] : indptr[i + 1]]
            found += min(number, int((similarity[neighbours] >= threshold - 1e-5).sum()))
            wanted += number
    return found / wanted if wanted else 1.0


def _to_all(side: Side, i: int) -> np.ndarray:
    """(N,) similarity of row i to every row on one side."""
    unit = side.units[i]
    if unit < 0:
        return np.zeros(len(side.units))
    if side.given:
        values = side.matrix[[unit]].toarray()[0]
    else:
        values = side.matrix @ (side.matrix[[unit]].toarray()[0] if issparse(side.matrix) else side.matrix[unit])
    values = np.maximum(values, 0).astype(np.float64)
    values[unit] = 1
    return np.where(side.units < 0, 0, values[side.units])
