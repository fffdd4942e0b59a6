"""Candidate sets that give nothing away.

A set holds five entities that look alike and whose answers differ: a seed entity, drawn uniformly, and four of its twelve nearest. The gold is uniform inside the set, so any rule
that sees only the set (its medoid, its most common member, its likeliest answer) is right one time in five. A row can carry several sets: each further one is drawn from the
distribution of sets given the row's gold, which leaves the gold uniform in every one of them.
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np

NEIGHBOURS = 12
SIZE = 5  # of a candidate set, the gold included: chance is 1 in 5


def nearest(distance: np.ndarray) -> np.ndarray:
    """Distances (N, N) to the NEIGHBOURS nearest others of each, nearest first: (N, NEIGHBOURS) indices."""
    apart = distance + np.diag(np.full(len(distance), np.inf))
    return np.argsort(apart, axis=1, kind="stable")[:, :NEIGHBOURS]


class CandidateSets:
    """The distribution of candidate sets of one attribute over N entities, written out in full.

    Args:
        distance: (N, N), how different the entities' pictures are.
        clash: `clash(i, j)` says whether the two entities' answers could be taken for one another.
    Raises:
        ValueError: fewer entities than a seed with its neighbours.
    """

    def __init__(self, distance: np.ndarray, clash: Callable[[int, int], bool]):
        count = len(distance)
        if count <= NEIGHBOURS:
            raise ValueError(
                f"{count} entities, but a seed has {NEIGHBOURS} neighbours: lower NEIGHBOURS or use a larger group"
            )
        clashes = np.zeros((count, count), dtype=bool)
        for i, j in combinations(range(count), 2):
            clashes[i, j] = clashes[j, i] = clash(i, j)
        groups = []
        choices = np.array(list(combinations(range(NEIGHBOURS), SIZE - 1)))  # (495, 4)
        for seed, neighbours in enumerate(nearest(distance)):
            sets = np.insert(neighbours[choices], 0, seed, axis=1)
            groups.append(sets[~clashes[sets[:, :, None], sets[:, None, :]].any(axis=(1, 2))])
        groups = [sets for sets in groups if len(sets)]
        self.sets = np.concatenate(groups)  # (M, SIZE) indices, seed first
        self.probability = np.concatenate([np.full(len(sets), 1 / len(groups) / len(sets)) for sets in groups])  # (M,)

    def draw(self, rng: np.random.Generator) -> tuple[int, np.ndarray]:
        """A gold and its set, the gold uniform in the set; the set in random order, so that no place is special."""
        members = rng.permutation(self.sets[rng.choice(len(self.sets), p=self.probability)])
        return int(rng.choice(members)), members

    def draw_given(self, gold: int, rng: np.random.Generator) -> np.ndarray:
        """One more set of a gold, from P(set | gold), in random order."""
        weight = self.probability * (self.sets == gold).any(axis=1)
        return rng.permutation(self.sets[rng.choice(len(self.sets), p=weight / weight.sum())])
