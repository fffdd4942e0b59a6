"""Compiled loops of `neighbours.py`: exact similarities of units, ranking of cells, and from cells to rows.

Every cell and every row is worked out by itself, in one order, so the number of threads changes nothing.
"""

import numpy as np

from .compiled import njit, prange

CHUNK = 512  # cells that share scratch memory


@njit(cache=True)
def _mix(a, b, seed):
    """A well-mixed 64-bit number of three (splitmix64's finish)."""
    z = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xD1B54A32D192ED03) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, fastmath={"reassoc", "contract"})
def _dot(a, b):
    total = np.float32(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@njit(cache=True)
def _compare(table, a, b):
    """Similarity of units a and b, 0 to 1; 0 if either is -1."""
    if a < 0 or b < 0:
        return 0.0
    if a == b:
        return 1.0
    if table.kind == 2:
        return min(max(_dot(table.dense[a], table.dense[b]), 0.0), 1.0)
    p, p_end = table.indptr[a], table.indptr[a + 1]
    if table.kind == 3:
        p += np.searchsorted(table.indices[p:p_end], b)
        return table.data[p] if p < p_end and table.indices[p] == b else 0.0
    q, q_end = table.indptr[b], table.indptr[b + 1]
    total = 0.0
    while p < p_end and q < q_end:
        left, right = table.indices[p], table.indices[q]
        if left == right:
            total += table.data[p] * table.data[q]
        p += left <= right
        q += right <= left
    return min(max(total, 0.0), 1.0)


@njit(parallel=True, cache=True)
def rescore(start, found, table, depth):
    """(numbers, units, similarities), each list cut to `depth` and nearest first: the unit itself, then those of `found` (B, any) of similarity above 0. -1 is none."""
    size = len(found)
    numbers = np.zeros(size, np.int64)
    units, values = np.full((size, depth), -1, np.int32), np.zeros((size, depth), np.float32)
    for chunk in prange((size + CHUNK - 1) // CHUNK):
        _rescore_chunk(chunk * CHUNK, min((chunk + 1) * CHUNK, size), start, found, table, numbers, units, values)
    return numbers, units, values


@njit(cache=True)
def _rescore_chunk(first, last, start, found, table, numbers, units, values):
    words = np.zeros(table.width)  # the unit's sparse vector, spread out
    similarities = np.zeros(found.shape[1], np.float32)
    for row in range(first, last):
        own = start + row
        if table.kind == 1:
            for p in range(table.indptr[own], table.indptr[own + 1]):
                words[table.indices[p]] = table.data[p]
        for place in range(found.shape[1]):
            other = found[row, place]
            similarities[place] = 0
            if other < 0 or other == own:
                continue
            if table.kind == 1:
                total = 0.0
                for p in range(table.indptr[other], table.indptr[other + 1]):
                    total += words[table.indices[p]] * table.data[p]
                similarities[place] = min(total, 1.0)
            else:
                similarities[place] = _compare(table, own, other)
        if table.kind == 1:
            for p in range(table.indptr[own], table.indptr[own + 1]):
                words[table.indices[p]] = 0
        by_unit = np.argsort(found[row], kind="mergesort")
        order = by_unit[np.argsort(-similarities[by_unit], kind="mergesort")]
        units[row, 0], values[row, 0], number = own, 1, 1
        for place in order:
            if number == units.shape[1] or similarities[place] <= 0:
                break
            units[row, number], values[row, number] = found[row, place], similarities[place]
            number += 1
        numbers[row] = number


@njit(cache=True)
def _worse(score, key, other_score, other_key):
    return score < other_score or (score == other_score and key < other_key)


@njit(cache=True)
def _sink(scores, keys, cells, size):
    """Restores the heap, worst at the root, after its root was replaced."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and _worse(scores[child + 1], keys[child + 1], scores[child], keys[child]):
            child += 1
        if not _worse(scores[child], keys[child], scores[i], keys[i]):
            return
        scores[i], scores[child] = scores[child], scores[i]
        keys[i], keys[child] = keys[child], keys[i]
        cells[i], cells[child] = cells[child], cells[i]
        i = child


@njit(cache=True)
def _push(scores, keys, cells, size, score, key, cell):
    """Adds to a heap that keeps the best `len(scores)`; returns its size."""
    if size == len(scores):
        if _worse(scores[0], keys[0], score, key):
            scores[0], keys[0], cells[0] = score, key, cell
            _sink(scores, keys, cells, size)
        return size
    i = size
    while i and _worse(score, key, scores[(i - 1) // 2], keys[(i - 1) // 2]):
        scores[i], keys[i], cells[i] = scores[(i - 1) // 2], keys[(i - 1) // 2], cells[(i - 1) // 2]
        i = (i - 1) // 2
    scores[i], keys[i], cells[i] = score, key, cell
    return size + 1


@njit(parallel=True, cache=True)
def rank_cells(start, stop, cells, near1, near2, table1, table2, weight, keep, scan, seed):
    """Most similar cells of the cells start..stop, best first: (numbers, cells (B, keep), similarities (B, keep)).

    A cell itself counts if it has two rows. First come the cells of the near units of the first side, of any unit of the second, then those of the near units of the
    second; a unit that can't beat the worst of `keep` cells found ends the search. At most `scan` cells are looked at on either side; of a unit that has more cells than are left,
    those from a place on that differs from cell to cell.
    """
    size = stop - start
    numbers = np.zeros(size, np.int64)
    best, similarity = np.full((size, keep), -1, np.int32), np.zeros((size, keep), np.float32)
    for chunk in prange((size + CHUNK - 1) // CHUNK):
        span = (start + chunk * CHUNK, min(start + (chunk + 1) * CHUNK, stop))
        out = (numbers, best, similarity)
        _rank_chunk(span, start, cells, near1, near2, table1, table2, weight, scan, seed, out)
    return numbers, best, similarity


@njit(cache=True)
def _rank_chunk(span, start, cells, near1, near2, table1, table2, weight, scan, seed, out):
    numbers, best, similarity = out
    keep = best.shape[1]
    # Similarity of each unit to the cell's own where known, -1 elsewhere.
    known1 = np.full(len(near1.indptr) - 1, -1, np.float32)
    known2 = np.full(len(near2.indptr) - 1, -1, np.float32)
    scores, keys, heap = np.zeros(keep, np.float32), np.zeros(keep, np.uint64), np.zeros(keep, np.int32)
    for c in range(*span):
        one, two = cells.first[c], cells.second[c]
        from1, to1, floor1 = 0, 0, 0.0
        if one >= 0:
            from1, to1, floor1 = near1.indptr[one], near1.indptr[one + 1], near1.floor[one]
        from2, to2, floor2 = 0, 0, 0.0
        if two >= 0:
            from2, to2, floor2 = near2.indptr[two], near2.indptr[two + 1], near2.floor[two]
        for p in range(from2, to2):
            known2[near2.indices[p]] = near2.values[p]
        n, budget, whole, marked = 0, scan, True, from1
        for p in range(from1, to1):
            unit, share = near1.indices[p], weight * near1.values[p]
            if budget <= 0 or (n == keep and share + (1 - weight) <= scores[0]):
                floor1 = near1.values[p]
                break
            known1[unit] = near1.values[p]
            marked = p + 1
            first, number = cells.first_ptr[unit], cells.first_ptr[unit + 1] - cells.first_ptr[unit]
            take = min(number, budget)
            whole = whole and take == number
            shift = _mix(c, unit, seed) % np.uint64(number) if take < number else np.uint64(0)
            for t in range(take):
                other = first + (np.int64(shift) + t) % number
                if other == c and cells.row_ptr[c + 1] - cells.row_ptr[c] == 1:
                    continue
                other2 = cells.second[other]
                part = known2[other2] if other2 >= 0 else np.float32(0)
                if part < 0:
                    if n == keep and share + (1 - weight) * floor2 <= scores[0]:
                        continue
                    part = np.float32(_compare(table2, two, other2))
                score = np.float32(share + (1 - weight) * part)
                if score > 0:
                    n = _push(scores, keys, heap, n, score, _mix(c, other, seed), other)
            budget -= take
        budget = scan
        bound = floor1 if whole else 1.0
        for p in range(from2, to2):
            unit, share = near2.indices[p], (1 - weight) * near2.values[p]
            if budget <= 0 or (n == keep and share + weight * bound <= scores[0]):
                break
            first, number = cells.second_ptr[unit], cells.second_ptr[unit + 1] - cells.second_ptr[unit]
            take = min(number, budget)
            shift = _mix(c, unit, seed) % np.uint64(number) if take < number else np.uint64(0)
            for t in range(take):
                other = cells.by_second[first + (np.int64(shift) + t) % number]
                if other == c and cells.row_ptr[c + 1] - cells.row_ptr[c] == 1:
                    continue
                other1 = cells.first[other]
                part = np.float32(0)
                if one >= 0 and other1 >= 0:
                    part = known1[other1]
                    if part >= 0 and (whole or _among(heap, n, other)):
                        continue  # met on the first side
                    if part < 0:
                        if n == keep and share + weight * floor1 <= scores[0]:
                            continue
                        part = np.float32(_compare(table1, one, other1))
                score = np.float32(share + weight * part)
                if score > 0:
                    n = _push(scores, keys, heap, n, score, _mix(c, other, seed), other)
            budget -= take
        for p in range(from1, marked):
            known1[near1.indices[p]] = -1
        for p in range(from2, to2):
            known2[near2.indices[p]] = -1
        numbers[c - start] = n
        for place in range(n - 1, -1, -1):  # the worst of the heap goes last
            best[c - start, place], similarity[c - start, place] = heap[0], scores[0]
            scores[0], keys[0], heap[0] = scores[place], keys[place], heap[place]
            _sink(scores, keys, heap, place)


@njit(cache=True)
def _among(heap, size, cell):
    for i in range(size):
        if heap[i] == cell:
            return True
    return False


@njit(parallel=True, cache=True)
def expand(start, stop, cells, numbers, best, similarity, top_k, seed):
    """From ranked cells to rows: (numbers, indices (B, top_k) ascending, weights), one for each row of the cells start..stop, in the order of `cells.rows`.

    Of the last cell that fits only in part a row gets those from a place on that its own number decides; the rows of a cell are shuffled.
    """
    first, last = cells.row_ptr[start], cells.row_ptr[stop]
    found = np.zeros(last - first, np.int64)
    indices = np.zeros((last - first, top_k), np.int32)
    weights = np.zeros((last - first, top_k), np.float32)
    for c in prange(start, stop):
        out = (found, indices, weights)
        _expand_cell(c, first, cells, best[c - start, : numbers[c - start]], similarity[c - start], seed, out)
    return found, indices, weights


@njit(cache=True)
def _expand_cell(c, first, cells, best, similarity, seed, out):
    found, indices, weights = out
    top_k = indices.shape[1]
    for place in range(cells.row_ptr[c], cells.row_ptr[c + 1]):
        row, n, target = cells.rows[place], 0, place - first
        for rank, other in enumerate(best):
            begin, number = cells.row_ptr[other], cells.row_ptr[other + 1] - cells.row_ptr[other]
            shift = np.int64(_mix(row, other, seed) % np.uint64(number))
            for t in range(number):
                candidate = cells.rows[begin + (shift + t) % number]
                if n == top_k:
                    break
                if candidate != row:
                    indices[target, n], weights[target, n] = candidate, similarity[rank]
                    n += 1
            if n == top_k:
                break
        order = np.argsort(indices[target, :n], kind="mergesort")
        indices[target, :n], weights[target, :n] = indices[target, :n][order], weights[target, :n][order]
        found[target] = n
