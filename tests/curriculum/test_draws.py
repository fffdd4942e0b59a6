"""Draws: their law against the mixture, the cap, strata, and that a saved state draws on the same."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from open_r1_kivqa.curriculum.draws import Drawer
from open_r1_kivqa.errors import InputError

UNCAPPED = 10**6


def importance_of_all(drawer):
    """(N,) importance of every row."""
    draw = drawer.draw(len(drawer.drawn_in_epoch))
    return draw.importance[np.argsort(draw.rows)]


@given(st.lists(st.sampled_from([0, 0, 1, 5, 1e-200, 1e308]), min_size=4, max_size=30).filter(any), st.data())
def test_rows_of_a_batch_are_distinct_and_importance_is_bounded(weights, data):
    size = len(weights)
    strata = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=size, max_size=size).map(np.array))
    drawer = Drawer(size, seed=5, exploration=0.25, max_draws=data.draw(st.integers(1, 3)), strata=strata)
    drawer.set_weights(np.array(weights))
    total = 0
    for number in range(20):
        count = data.draw(st.integers(1, size))
        draw = drawer.draw(count)
        total += count
        assert len(set(draw.rows.tolist())) == len(draw.rows) == count
        assert draw.rows.dtype == np.int64 and draw.exploration.dtype == bool
        assert (draw.importance >= 0.25).all() and np.isfinite(draw.importance).all()
        assert (drawer.number, drawer.total_drawn) == (number + 1, total)


def test_single_draws_follow_the_mixture():
    weights = np.array([0, 1, 2, 3, 10, 0.5])
    drawer = Drawer(6, seed=0, exploration=0.3, max_draws=UNCAPPED)
    drawer.set_weights(weights)
    draws = [drawer.draw(1) for _ in range(6000)]
    mixture = 0.3 / 6 + 0.7 * weights / weights.sum()
    counts = np.bincount([draw.rows[0] for draw in draws], minlength=6)
    assert chisquare(counts, mixture * 6000).pvalue > 0.01
    explored = np.bincount([draw.rows[0] for draw in draws if draw.exploration[0]], minlength=6)
    assert chisquare(explored).pvalue > 0.01
    assert explored.sum() == pytest.approx(1800, abs=3 * np.sqrt(6000 * 0.3 * 0.7))
    for draw in draws[:100]:
        assert draw.importance[0] == pytest.approx(mixture[draw.rows[0]] * 6)


def test_pairs_are_drawn_one_after_the_other_without_replacement():
    q = np.array([0.5, 0.3, 0.15, 0.05])
    drawer = Drawer(4, seed=3, exploration=0.2, max_draws=UNCAPPED)
    drawer.set_weights(q)
    pairs = list(combinations(range(4), 2))
    counts = Counter(tuple(sorted(drawer.draw(2).rows.tolist())) for _ in range(6000))
    expected = [
        0.8**2 * (q[a] * q[b] / (1 - q[a]) + q[b] * q[a] / (1 - q[b]))  # both by weight
        + 2 * 0.8 * 0.2 * (q[a] + q[b]) / 3  # one by weight, one from the other three
        + 0.2**2 / 6
        for a, b in pairs
    ]
    assert sum(expected) == pytest.approx(1)
    assert chisquare([counts[pair] for pair in pairs], np.array(expected) * 6000).pvalue > 0.01


def test_importance_by_hand():
    drawer = Drawer(4, seed=0, exploration=0.2)
    assert importance_of_all(drawer).tolist() == pytest.approx([1, 1, 1, 1])
    drawer.set_weights(np.array([1, 1, 2, 0]))
    assert importance_of_all(drawer).tolist() == pytest.approx([1, 1, 0.2 + 0.8 * 2, 0.2])
    assert importance_of_all(Drawer(3, seed=0, exploration=1)).tolist() == pytest.approx([1, 1, 1])


def test_importance_is_that_of_the_rows_below_the_cap():
    drawer = Drawer(4, seed=0, exploration=0.2, max_draws=1)
    drawer.set_weights(np.array([1, 1, 2, 0]))
    drawer.drawn_in_epoch[:] = [0, 1, 0, 0]
    draw = drawer.draw(3)  # q = 1/3, -, 2/3, 0 over three rows
    assert draw.importance[np.argsort(draw.rows)].tolist() == pytest.approx([0.2 + 0.8, 0.2 + 0.8 * 2, 0.2])
    drawer.drawn_in_epoch[:] = [1, 1, 1, 0]
    draw = drawer.draw(1)  # no weight left: uniform
    assert (draw.rows.tolist(), draw.importance.tolist(), draw.exploration.tolist()) == ([3], [1], [True])


def test_no_row_is_drawn_too_often_in_an_epochs_worth():
    size, count, most = 50, 8, 2
    drawer = Drawer(size, seed=1, max_draws=most)
    drawer.set_weights(np.exp(-np.arange(size) / 3))
    epoch, epochs = Counter(), 0
    for _ in range(200):
        if epoch.total() >= size or size - sum(n >= most for n in epoch.values()) < count:
            epoch, epochs = Counter(), epochs + 1
        epoch.update(drawer.draw(count).rows.tolist())
        assert max(epoch.values()) <= most
        assert drawer.drawn_in_epoch.tolist() == [epoch[row] for row in range(size)]
        if epoch.total() >= size:  # the heaviest were wanted more often than the cap lets them
            assert [epoch[row] for row in range(5)] == [most] * 5
    assert epochs == 200 * count // 56  # 7 draws of 8 reach 50


def test_a_new_epochs_worth_begins_when_too_few_rows_are_left():
    drawer = Drawer(5, seed=0, max_draws=1)
    first = drawer.draw(3).rows
    second = drawer.draw(3).rows  # two were left
    assert drawer.drawn_in_epoch.sum() == 3
    assert set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize("weights", [np.ones(12), np.arange(12)])
def test_with_one_draw_at_most_an_epochs_worth_is_a_permutation(weights):
    drawer = Drawer(12, seed=4, max_draws=1)
    drawer.set_weights(weights)
    epochs = [np.concatenate([drawer.draw(4).rows for _ in range(3)]) for _ in range(4)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_rows_by_weight_run_out():
    drawer = Drawer(10, seed=2, exploration=0.1, max_draws=UNCAPPED)
    drawer.set_weights(np.eye(10)[3] + np.eye(10)[7])
    by_weight = Counter()
    for _ in range(50):
        draw = drawer.draw(5)
        chosen = set(draw.rows[~draw.exploration].tolist())
        assert chosen <= {3, 7}
        by_weight.update(chosen)
    assert by_weight[3] > 45 and by_weight[7] > 45  # unless four of five slots were exploration


def test_places_in_a_batch_mean_nothing():
    drawer = Drawer(30, seed=6, exploration=0.2, max_draws=UNCAPPED)
    drawer.set_weights(np.where(np.arange(30) == 11, 1000, 1))
    draws = [drawer.draw(6) for _ in range(2000)]
    places = np.bincount([int(np.flatnonzero(draw.rows == 11)[0]) for draw in draws if 11 in draw.rows], minlength=6)
    assert places.sum() > 1900
    assert chisquare(places).pvalue > 0.01
    explored = np.sum([draw.exploration for draw in draws], axis=0)
    assert chisquare(explored).pvalue > 0.01
    assert explored.sum() == pytest.approx(0.2 * 12000, abs=3 * np.sqrt(12000 * 0.2 * 0.8))


def test_strata_keep_their_shares():
    strata = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    drawer = Drawer(10, seed=0, exploration=0.1, max_draws=UNCAPPED, strata=strata)
    drawer.set_weights(np.array([8, 1, 1, 0, 0, 1e-6, 3e-6, 0, 0, 0]))  # the last stratum has no weight
    q = np.array([0.4, 0.05, 0.05, 0, 0, 0.075, 0.225, 0, 0.1, 0.1])
    assert importance_of_all(drawer).tolist() == pytest.approx((0.1 + 0.9 * q * 10).tolist())
    rows = np.array([drawer.draw(1).rows[0] for _ in range(5000)])
    assert chisquare(np.bincount(strata[rows]), [2500, 1500, 1000]).pvalue > 0.01


def test_strata_keep_their_shares_among_the_rows_below_the_cap():
    drawer = Drawer(6, seed=0, exploration=0.1, max_draws=1, strata=np.array([0, 0, 0, 0, 1, 1]))
    drawer.set_weights(np.array([6, 3, 1, 0, 1, 0]))
    drawer.drawn_in_epoch[[0, 4]] = 1
    draw = drawer.draw(4)  # 2/3 over weights 3, 1, 0; 1/3 on the one row left, which has no weight of its own
    q = np.array([2 / 3 * 3 / 4, 2 / 3 * 1 / 4, 0, 1 / 3])
    assert draw.importance[np.argsort(draw.rows)].tolist() == pytest.approx((0.1 + 0.9 * q * 4).tolist())
    drawer.drawn_in_epoch[:] = [0, 1, 1, 1, 1, 1]
    assert drawer.draw(1).importance.tolist() == pytest.approx([1])  # a stratum without rows leaves its share


def test_effective_sample_size():
    drawer = Drawer(4, seed=0, exploration=0.2)
    assert drawer.effective_sample_size() == pytest.approx(4)
    drawer.set_weights(np.array([1, 0, 0, 0]))  # p = .85, .05, .05, .05
    assert drawer.effective_sample_size() == pytest.approx(1 / (0.85**2 + 3 * 0.05**2))
    drawer.set_weights(np.array([7, 7, 0, 0]))
    assert drawer.effective_sample_size() == pytest.approx(1 / (2 * 0.45**2 + 2 * 0.05**2))


def test_the_draws_never_change():
    """Golden: a change here changes every run."""
    drawer = Drawer(100, seed=42)
    drawer.set_weights(np.arange(100))
    assert [drawer.draw(5).rows.tolist() for _ in range(2)] == [[73, 67, 84, 47, 50], [83, 43, 98, 52, 28]]


def test_a_saved_state_draws_on_the_same(tmp_path):
    weights = np.random.default_rng(0).random(40)
    drawer = Drawer(40, seed=7, max_draws=2)
    drawer.set_weights(weights)
    for _ in range(5):
        drawer.draw(6)
    np.savez(tmp_path / "state.npz", **drawer.state_dict())
    further = [drawer.draw(6) for _ in range(20)]
    resumed = Drawer(40, seed=7, max_draws=2)
    resumed.load_state_dict(dict(np.load(tmp_path / "state.npz", allow_pickle=False)), np.arange(40), np.arange(40))
    assert (resumed.number, resumed.total_drawn) == (5, 30)
    for draw in further:
        again = resumed.draw(6)
        assert again.rows.tolist() == draw.rows.tolist()
        assert again.importance.tolist() == draw.importance.tolist()
        assert again.exploration.tolist() == draw.exploration.tolist()


def test_seeds_and_numbers_draw_differently():
    drawers = [Drawer(1000, seed) for seed in (0, 1)]
    batches = {tuple(drawer.draw(8).rows.tolist()) for drawer in drawers for _ in range(3)}
    assert len(batches) == 6


def test_a_saved_state_follows_its_rows():
    drawer = Drawer(3, seed=0, exploration=0.5, max_draws=2)
    drawer.set_weights(np.array([1, 3, 8]))
    drawer.draw(2)
    drawer.drawn_in_epoch[:] = [1, 0, 1]
    grown = Drawer(4, seed=0, exploration=0.5, max_draws=2)
    grown.load_state_dict(drawer.state_dict(), current=np.array([2, 0]), saved=np.array([0, 1]))
    assert (grown.number, grown.total_drawn) == (1, 2)
    assert grown.drawn_in_epoch.tolist() == [0, 0, 1, 0]
    # Weights 3, 2, 1, 2: those without a past get the mean of the known.
    assert importance_of_all(grown).tolist() == pytest.approx([0.5 + 0.5 * w / 8 * 4 for w in (3, 2, 1, 2)])


def test_a_saved_state_of_rows_without_weight_draws_uniformly():
    drawer = Drawer(3, seed=0)
    drawer.set_weights(np.array([0, 0, 1]))
    for saved in ([0, 1], []):
        other = Drawer(3, seed=0)
        other.load_state_dict(drawer.state_dict(), np.arange(len(saved)), np.array(saved, dtype=np.int64))
        assert importance_of_all(other).tolist() == pytest.approx([1, 1, 1])


def test_a_state_is_a_copy():
    drawer = Drawer(3, seed=0)
    state = drawer.state_dict()
    drawer.draw(2)
    drawer.set_weights(np.array([1, 2, 3]))
    assert (state["number"], state["drawn_in_epoch"].sum(), state["weights"].tolist()) == (0, 0, [1, 1, 1])


@pytest.mark.parametrize("exploration", [0, 0.05, 1.1, float("nan")])
def test_an_exploration_share_without_sense_is_refused(exploration):
    with pytest.raises(InputError, match="--curriculum_exploration"):
        Drawer(3, seed=0, exploration=exploration)


def test_other_faults_are_refused():
    with pytest.raises(InputError, match="--curriculum_max_draws 0"):
        Drawer(3, seed=0, max_draws=0)
    drawer = Drawer(3, seed=0)
    with pytest.raises(InputError, match="asks for 4 different rows, but there are 3"):
        drawer.draw(4)
    with pytest.raises(InputError, match="All weights are 0"):
        drawer.set_weights(np.zeros(3))
    for weight in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"weight of row 1 is {float(weight)}"):
            drawer.set_weights(np.array([1, weight, 1]))


def test_rows_left_out_are_not_drawn():
    drawer = Drawer(10, seed=1, max_draws=1)
    first = drawer.draw(4)
    second = drawer.draw(4, without=first.rows)
    third = drawer.draw(2, without=np.concatenate([first.rows, second.rows]))  # the last two of the epoch's worth
    assert sorted([*first.rows, *second.rows, *third.rows]) == list(range(10))
    fresh = drawer.draw(4, without=third.rows)  # a new epoch's worth, still without them
    assert not set(fresh.rows) & set(third.rows)
    with pytest.raises(InputError, match="asks for 4 different rows, but there are 3"):
        drawer.draw(4, without=np.arange(7))
