"""The graph of samples: which rows resemble which, and how much; made once by `kivqa graph`, read by every run."""

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from ..data.aside import written_aside
from ..errors import InputError
from .compiled import njit, prange

FORMAT = 1
DTYPES = {
    "hashes": np.uint64,
    "indptr": np.int64,
    "indices": np.int32,
    "weights": np.float32,
    "returns": np.float32,
    "recipe": np.uint8,
    "format": np.int64,
}
# What numpy and zipfile raise for files that are cut off, damaged, or hold pickled objects.
UNREADABLE = (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class SampleGraph:
    """Neighbours of every row as a sparse matrix in compressed rows (CSR); N rows, E edges.

    The edges of row i are `indices[indptr[i]:indptr[i + 1]]` with the `weights` of the same places. An edge from i to j does not mean one from j to i: j is among the
    nearest of i, but i need not be among those of j.

    Attributes:
        ids: (N,) str, the rows the graph was built of, in their order.
        hashes: (N,) uint64, `data.jsonl.Rows.hashes`.
        indptr: (N+1,) int64.
        indices: (E,) int32, ascending within a row, never the row itself, none twice.
        weights: (E,) float32 > 0, similarities; not normalised.
        returns: (N,) float32 in [0, 1], diag(K²) of the row-normalised K: the chance that two random steps from a row lead back to it.
        recipe: how it was made, as JSON values.
    """

    ids: np.ndarray
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray
    returns: np.ndarray
    recipe: dict

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def isolated(self) -> int:
        """How many rows have no neighbour."""
        return int((np.diff(self.indptr) == 0).sum())

    @classmethod
    def from_edges(
        cls,
        ids: Sequence[str],
        hashes: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        weights: np.ndarray,
        recipe: dict,
        top_k: int | None = None,
    ) -> "SampleGraph":
        """The graph with an edge from `rows[e]` to `columns[e]` of `weights[e]`, in any order; not made symmetric.

        Edges of weight 0 and of a row to itself are dropped.

        Args:
            ids, hashes: (N,), see the class.
            rows, columns: (E,) integers in 0..N-1.
            weights: (E,) similarities >= 0.
            top_k: keep only the heaviest edges of each row, of equal ones those to the lower row; None keeps all.

        Raises:
            InputError: a similarity that is negative, infinite or NaN, a row out of range, an edge given twice, or no edge left.
        """
        ids = np.asarray(ids, dtype=np.str_)
        rows, columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        weights = np.asarray(weights, dtype=np.float32)
        size = len(ids)
        outside = np.flatnonzero((rows < 0) | (rows >= size) | (columns < 0) | (columns >= size))
        if len(outside):
            e = outside[0]
            raise InputError(
                f"An edge goes from row {rows[e]} to row {columns[e]}; there are {size:,} rows, counted from 0."
            )
        refuse_bad_weights(weights, lambda e: f"{str(ids[rows[e]])!r} and {str(ids[columns[e]])!r}")
        keep = (weights > 0) & (rows != columns)
        rows, columns, weights = rows[keep], columns[keep], weights[keep]
        order = np.argsort(rows * size + columns, kind="stable")
        rows, columns, weights = rows[order], columns[order], weights[order]
        repeated = np.flatnonzero((rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1]))
        if len(repeated):
            e = repeated[0]
            raise InputError(
                f"The edge from {str(ids[rows[e]])!r} to {str(ids[columns[e]])!r} is given twice; give each pair of rows one similarity."
            )
        if top_k is not None:
            heaviest = np.lexsort((columns, -weights, rows))
            starts = np.searchsorted(rows, rows)  # place of the row's first edge, for every edge
            kept = np.sort(heaviest[np.arange(len(rows)) - starts < top_k])
            rows, columns, weights = rows[kept], columns[kept], weights[kept]
        indptr = np.zeros(size + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=size), out=indptr[1:])
        return cls.from_neighbours(ids, hashes, indptr, columns.astype(np.int32), weights, recipe)

    @classmethod
    def from_neighbours(
        cls,
        ids: Sequence[str],
        hashes: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        weights: np.ndarray,
        recipe: dict,
    ) -> "SampleGraph":
        """The graph of these compressed rows, which hold what the class asks for. `InputError` if there is no edge."""
        if not len(indices):
            raise InputError(
                f"No two of the {len(ids):,} rows are similar, so the graph has no edge; give rows more to compare (entities, questions), or train without a graph."
            )
        return cls(
            ids=np.asarray(ids, dtype=np.str_),
            hashes=np.asarray(hashes, dtype=np.uint64),
            indptr=indptr,
            indices=indices,
            weights=weights,
            returns=returns_of(indptr, indices, weights),
            recipe=recipe,
        )

    def for_rows(self, ids: list[str], hashes: np.ndarray, path: str = "") -> "SampleGraph":
        """The subgraph of the rows with these ids, in their order; `returns` is that of the subgraph.

        Args:
            ids: of the rows, each once; they may be a part of the graph's.
            hashes: (len(ids),) uint64 of the same rows as they are now.
            path: where the graph was read, for the error.

        Raises:
            InputError: an id that the graph lacks, a row that has changed since it was built, or no edge between these rows.
        """
        wanted = np.asarray(ids, dtype=np.str_)
        if len(wanted) == len(self) and (wanted == self.ids).all() and (hashes == self.hashes).all():
            return self
        places = {id: place for place, id in enumerate(self.ids.tolist())}
        chosen = np.fromiter((places.get(id, -1) for id in ids), dtype=np.int64, count=len(ids))
        unknown = chosen < 0
        changed = ~unknown & (self.hashes[chosen] != hashes)
        if (unknown | changed).any():
            first = ids[int(np.argmax(unknown | changed))]
            raise InputError(
                f"--curriculum_graph {path} was built of other rows: {unknown.sum()} of {len(ids)} training rows are unknown to it and {changed.sum()} have changed since "
                f"(first: {first!r}); build it again with kivqa graph."
            )
        part = csr_array((self.weights, self.indices, self.indptr), shape=(len(self), len(self)))[chosen][:, chosen]
        part.sort_indices()
        if not part.nnz:
            raise InputError(
                f"--curriculum_graph {path} has no edge between any two of the {len(ids)} training rows; train with more of its rows, or without it."
            )
        indptr, indices = part.indptr.astype(np.int64), part.indices.astype(np.int32)
        returns = returns_of(indptr, indices, part.data)
        return replace(
            self, ids=wanted, hashes=hashes, indptr=indptr, indices=indices, weights=part.data, returns=returns
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes one uncompressed .npz. The same graph gives the same bytes."""
        arrays = {name: getattr(self, name) for name in ("ids", "hashes", "indptr", "indices", "weights", "returns")}
        recipe = np.frombuffer(json.dumps(self.recipe, sort_keys=True).encode(), dtype=np.uint8)
        with written_aside(path, "wb") as file:
            np.savez(file, **arrays, recipe=recipe, format=np.int64(FORMAT))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SampleGraph":
        """Reads what `save` wrote; `InputError` if there is no such file or anything in it is broken."""
        if not os.path.isfile(path):
            raise InputError(f"Graph file {path} does not exist; make it with kivqa graph.")
        if not zipfile.is_zipfile(path):
            raise InputError(f"{path} is no .npz file; make it with kivqa graph.")
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
        except UNREADABLE as error:
            raise InputError(
                f"{path} cannot be read as .npz ({error}); build it again with kivqa graph --output {path}."
            ) from None
        fault = _fault(arrays)
        if fault:
            raise InputError(f"{path} is no graph of samples: {fault}; build it again with kivqa graph.")
        recipe = json.loads(arrays["recipe"].tobytes())
        return cls(recipe=recipe, **{name: arrays[name] for name in arrays if name not in ("recipe", "format")})


def refuse_bad_weights(weights: np.ndarray, name) -> None:
    """`InputError` for the first similarity that is negative or not finite; `name(place)` says whose it is, as "'a' and 'b'"."""
    bad = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if len(bad):
        raise InputError(
            f"The similarity of {name(bad[0])} is {weights[bad[0]]}; similarities are finite numbers from 0 on, correct it or leave the pair out."
        )


def _fault(arrays: dict[str, np.ndarray]) -> str | None:
    """What is wrong with the arrays of a graph file; None if all is well."""
    expected = ["ids", *DTYPES]
    missing = [name for name in expected if name not in arrays]
    if missing:
        return f"it lacks the arrays {', '.join(missing)}"
    if arrays["format"].shape or arrays["format"].dtype != np.int64 or arrays["format"] != FORMAT:
        return f"its format is {arrays['format']}, and this version reads format {FORMAT}"
    unknown = [name for name in arrays if name not in expected]
    if unknown:
        return f"it holds arrays of another purpose, {', '.join(unknown)}"
    ids, indptr, indices, weights = (arrays[name] for name in ("ids", "indptr", "indices", "weights"))
    for name in expected[:-1]:
        array, kind = arrays[name], DTYPES.get(name, "a text")
        if array.ndim != 1 or (array.dtype != kind if name in DTYPES else array.dtype.kind != "U"):
            return f"{name} is an array of {array.dtype} with {array.ndim} axes, and one axis of {np.dtype(kind) if name in DTYPES else kind} is wanted"
    size, edges = len(ids), len(indices)
    sizes = {"hashes": size, "indptr": size + 1, "weights": edges, "returns": size}
    for name, length in sizes.items():
        if len(arrays[name]) != length:
            return (
                f"{name} has {len(arrays[name]):,} entries where {length:,} belong to {size:,} rows and {edges:,} edges"
            )
    if not edges:
        return "it has no edge"
    if len(set(ids.tolist())) < size:
        return "an id stands in it twice"
    if indptr[0] != 0 or indptr[-1] != edges or (np.diff(indptr) < 0).any():
        return "indptr does not ascend from 0 to the number of edges"
    if indices.min() < 0 or indices.max() >= size:
        return f"an edge leads outside the {size:,} rows"
    if not _rows_ascend(indptr, indices):
        return "the neighbours of a row are not ascending, repeat, or hold the row itself"
    if not ((weights > 0) & np.isfinite(weights)).all():
        return "a weight is zero, negative, infinite or NaN"
    if not ((arrays["returns"] >= 0) & (arrays["returns"] <= 1)).all():
        return "returns are not between 0 and 1"
    try:
        recipe = json.loads(arrays["recipe"].tobytes())
    except ValueError:
        return "its recipe is not JSON"
    return None if isinstance(recipe, dict) else "its recipe is no JSON object"


def returns_of(indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """diag(K²) of the row-normalised K: Σ_j K_ij K_ji for every row i, (N,) float32 in [0, 1]; 0 without neighbours.

    Args:
        indptr, indices, weights: (N+1,), (E,) ascending within a row, (E,) > 0.
    """
    return np.minimum(_returns(indptr, indices, weights, row_sums(indptr, weights)), 1).astype(np.float32)


@njit(parallel=True, cache=True)
def row_sums(indptr, weights):
    """(N,) float64 sum of each row's weights."""
    sums = np.zeros(len(indptr) - 1)
    for i in prange(len(sums)):
        for e in range(indptr[i], indptr[i + 1]):
            sums[i] += weights[e]
    return sums


@njit(parallel=True, cache=True)
def _returns(indptr, indices, weights, sums):
    returns = np.zeros(len(sums))
    for i in prange(len(sums)):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            # Where the way back j -> i stands in the ascending row of j.
            low, high = indptr[j], indptr[j + 1]
            while low < high:
                middle = (low + high) // 2
                if indices[middle] < i:
                    low = middle + 1
                else:
                    high = middle
            if low < indptr[j + 1] and indices[low] == i:
                total += weights[e] / sums[i] * (weights[low] / sums[j])
        returns[i] = total
    return returns


@njit(cache=True)
def _rows_ascend(indptr, indices):
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            if indices[e] == i or (e > indptr[i] and indices[e] <= indices[e - 1]):
                return False
    return True
