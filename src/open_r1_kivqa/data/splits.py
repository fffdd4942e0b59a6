"""Split rows for validation so that no entity and no image is on both sides."""

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ..errors import InputError
from .jsonl import Rows


def train_validation_split(rows: Rows, ratio: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the training and of the validation rows, each ascending.

    Rows that share an entity or an image (by path), directly or through other rows, stay together. Which go to validation is
    drawn by `seed`; their number comes as close to `ratio` of the rows as such groups allow, and is at least one.

    Args:
        ratio: share of the rows for validation, 0 <= ratio < 1; 0 gives no validation rows.

    Raises:
        InputError: ratio out of range, all rows hang together, or a row cannot be used.
    """
    if not 0 <= ratio < 1:
        raise InputError(f"The validation ratio is {ratio}; give a number from 0 up to, but not, 1.")
    if ratio == 0:
        return list(range(len(rows))), []
    groups = _groups(rows)
    sizes = np.bincount(groups)
    if len(sizes) == 1:
        raise InputError(
            f"All {len(rows)} rows hang together by entities and images, so none can be set aside; give validation rows in a "
            f"file of their own or set the validation ratio to 0."
        )
    order = np.random.default_rng(seed).permutation(len(sizes))
    target = max(1, round(len(rows) * ratio))
    chosen = order[_closest_sum(sizes[order], target)]
    validation = np.isin(groups, chosen)
    return np.flatnonzero(~validation).tolist(), np.flatnonzero(validation).tolist()


def _groups(rows: Rows) -> np.ndarray:
    """Number of the connected component of each row, over rows and what they share."""
    shared: dict[tuple[str, str], int] = {}
    left, right = [], []
    for i in range(len(rows)):
        sample = rows[i]
        things = [("image", path) for path in sample.images]
        if sample.entity is not None:
            things.append(("entity", sample.entity))
        for thing in things:
            left.append(i)
            right.append(len(rows) + shared.setdefault(thing, len(shared)))
    nodes = len(rows) + len(shared)
    graph = coo_matrix((np.ones(len(left), dtype=np.int8), (left, right)), shape=(nodes, nodes))
    return np.unique(connected_components(graph, directed=False)[1][: len(rows)], return_inverse=True)[1]


def _closest_sum(sizes: np.ndarray, target: int) -> list[int]:
    """Places of some, not all, of `sizes` whose sum is as close to `target` as can be; early places are preferred."""
    total, chosen = 0, []
    for i, size in enumerate(sizes.tolist()):
        if total + size <= target:
            total += size
            chosen.append(i)
    if total == target and len(chosen) < len(sizes):
        return chosen
    # Subset sum: bit s of `reachable` is set once some sizes add up to s; `last[s]` is the size that closed s first.
    limit = min(max(2 * target, int(sizes.min())), int(sizes.sum()) - 1)
    mask = (1 << (limit + 1)) - 1
    reachable, last = 1, {}
    for i, size in enumerate(sizes.tolist()):
        new = (reachable << size) & mask & ~reachable
        reachable |= new
        while new:
            lowest = new & -new
            last[lowest.bit_length() - 1] = i
            new ^= lowest
        if target in last:
            break
    total = min(last, key=lambda s: (abs(s - target), s))
    chosen = []
    while total:  # last[s] came later than the size that closed the rest, so none is taken twice
        chosen.append(last[total])
        total -= int(sizes[last[total]])
    return chosen
