"""The curriculum's metrics, by hand."""

import numpy as np

from open_r1_kivqa.curriculum.tally import Tally, spread

NAN = np.nan


def test_shares_of_groups_by_hand():
    tally = Tally()
    values = np.array([[0, 0], [1, 1], [1, 0], [NAN, NAN]])
    teaches = np.array([True, False, True, False])  # a format reward hides the first group's 0s
    tally.add(values, teaches, np.array([True, False, True, True]), np.array([0, 1, 0, 0]))
    assert tally.metrics() == {
        "zero_advantage_total": 0.5,
        "truncated": 1 / 8,
        "zero_advantage_signal": 2 / 3,
        "all_0": 1 / 3,
        "all_1": 1 / 3,
        "mixed": 1 - 2 / 3,
        "hit_mean": 0.25,
        "miss_mean": 1.0,
    }
    assert tally.metrics() == {}  # begun anew


def test_a_continuous_signal_without_spread_is_neither_all_0_nor_all_1():
    tally = Tally()
    tally.add(np.array([[0.5, 0.5]]), np.array([False]), np.array([True]), np.array([0]))
    found = tally.metrics()
    assert (found["zero_advantage_signal"], found["all_0"], found["all_1"]) == (1, 0, 0)


def test_draws_by_stratum():
    tally = Tally(["a", "b", "c"])
    tally.add_draw(np.array([0, 1, 0, 0]), exploration=1, lag=0)
    tally.add_draw(np.array([1, 0, 0, 0]), exploration=0, lag=1)
    found = tally.metrics()
    assert found == {"exploration": 1 / 8, "lag": 1.0, "draws/a": 0.75, "draws/b": 0.25, "draws/c": 0}


def test_draws_that_are_counted_together_still_tell_exploration_and_lag():
    tally = Tally()
    tally.add_draw(np.array([7, 30, 7, 2]), exploration=1, lag=3)
    assert tally.metrics() == {"exploration": 0.25, "lag": 3.0}


def test_spread_leaves_nan_out():
    assert spread(np.array([0.25, NAN, 1.0])) == 0.75
    assert spread(np.array([NAN])) == 0
