"""The distribution of candidate sets, on random points whose sets can be written out."""

import numpy as np
import pytest

from open_r1_kivqa.demo.confusion import NEIGHBOURS, SIZE, CandidateSets, nearest


@pytest.fixture(scope="module")
def sets():
    points = np.random.default_rng(0).normal(size=(20, 3))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    return distance, CandidateSets(distance, lambda i, j: {i, j} == {0, 1})


def test_sets_are_a_seed_and_four_of_its_neighbours(sets):
    distance, candidate_sets = sets
    neighbours = nearest(distance)
    assert neighbours.shape == (20, NEIGHBOURS)
    for members in candidate_sets.sets:
        assert len(set(members)) == SIZE
        assert set(members[1:]) <= set(neighbours[members[0]])
        assert not {0, 1} <= set(members)  # their answers clash
    assert candidate_sets.probability.sum() == pytest.approx(1)
    by_seed = np.bincount(candidate_sets.sets[:, 0], candidate_sets.probability)
    assert by_seed == pytest.approx(1 / 20)


def test_gold_is_uniform_in_a_first_and_in_a_further_set(sets):
    """The rank of the gold in its set by distance to the others (the medoid first) is uniform, for the drawn set and for one drawn given the gold."""
    distance, candidate_sets = sets
    rng = np.random.default_rng(1)
    ranks = np.zeros((2, SIZE))
    for _ in range(4000):
        gold, members = candidate_sets.draw(rng)
        for row, one in enumerate((members, candidate_sets.draw_given(gold, rng))):
            among = distance[np.ix_(one, one)].sum(axis=1)
            ranks[row, (among < among[list(one).index(gold)]).sum()] += 1
    assert ranks / 4000 == pytest.approx(np.full((2, SIZE), 0.2), abs=0.03)  # 4.7 standard errors


def test_too_few_entities():
    with pytest.raises(ValueError, match="12 neighbours"):
        CandidateSets(np.ones((12, 12)), lambda i, j: False)
