"""Scores of forecasts, against single rollouts and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from open_r1_kivqa.curriculum.forecasts import KEPT, ForecastScores

NAN = float("nan")


def add(scores, *groups):
    """`groups`: (forecast, signals, exploration) each."""
    forecast, values, exploration = zip(*groups, strict=True)
    scores.add(np.array(forecast), np.array(values, dtype=np.float64), np.array(exploration))


def test_by_hand():
    scores = ForecastScores()
    add(scores, (0.5, [1, 0], False), (1.0, [1, NAN], True), (0.0, [0.5, NAN], True), (0.3, [NAN, NAN], True))
    assert scores.brier() == pytest.approx((0.25 + 0.25 + 0 + 0.25) / 4)
    assert scores.brier(True) == pytest.approx((0 + 0.25) / 2)
    assert scores.brier(False) == 0.25
    # Successes: 1 at .5, 1 at 1, .5 at 0. Failures: 1 at .5, .5 at 0.
    assert scores.auc() == pytest.approx((1 * (0.5 + 0.5) + 1 * 1.5 + 0.5 * 0.25) / (2.5 * 1.5))
    assert scores.auc(True) == pytest.approx((1 * 0.5 + 0.5 * 0.25) / (1.5 * 0.5))
    assert scores.auc(False) == 0.5


def test_without_outcomes_there_is_no_score():
    scores = ForecastScores()
    assert np.isnan([scores.brier(), scores.brier(True), scores.auc(), scores.auc(False)]).all()
    add(scores, (0.3, [NAN, NAN], True))
    assert np.isnan([scores.brier(), scores.auc()]).all()
    add(scores, (0.3, [1, 1], True))
    assert scores.brier() == pytest.approx(0.49)
    assert np.isnan([scores.auc(), scores.brier(False)]).all()  # no failure; no draw by weight


FORECASTS = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) | st.floats(0, 1)
SIGNALS = st.lists(st.sampled_from([0.0, 1.0, 0.3, 0.75, NAN]), min_size=3, max_size=3)


@given(st.lists(st.tuples(FORECASTS, SIGNALS, st.booleans()), min_size=1, max_size=30))
def test_equals_scores_of_single_rollouts(groups):
    scores = ForecastScores()
    add(scores, *groups)
    for wanted in (None, True, False):
        rollouts = [
            (forecast, value)
            for forecast, values, exploration in groups
            for value in values
            if value == value and wanted in (None, exploration)
        ]
        if not rollouts:
            assert np.isnan(scores.brier(wanted)) and np.isnan(scores.auc(wanted))
            continue
        forecast, value = np.array(rollouts).T
        assert scores.brier(wanted) == pytest.approx(np.mean((forecast - value) ** 2), abs=1e-12)
        if (value > 0).any() and (value < 1).any():
            truth = np.repeat([1, 0], len(value))
            expected = roc_auc_score(truth, np.tile(forecast, 2), sample_weight=np.concatenate([value, 1 - value]))
            assert scores.auc(wanted) == pytest.approx(expected, abs=1e-9)
        else:
            assert np.isnan(scores.auc(wanted))


def test_old_groups_are_forgotten():
    scores = ForecastScores()
    add(scores, *[(1.0, [0, 0], True)] * 5)
    add(scores, *[(0.0, [0, 0], True)] * (KEPT - 1))
    assert scores.brier() == pytest.approx(1 / KEPT)
    add(scores, (0.0, [0, 0], True))
    assert scores.brier() == 0


def test_a_saved_state_scores_on_the_same(tmp_path):
    generator = np.random.default_rng(0)
    scores, resumed = ForecastScores(), ForecastScores()

    def batch(size):
        forecast = generator.random(size)
        return forecast, generator.binomial(1, forecast[:, None], (size, 4)).astype(float), generator.random(size) < 0.1

    scores.add(*batch(KEPT - 3))
    np.savez(tmp_path / "state.npz", **scores.state_dict())
    resumed.load_state_dict(dict(np.load(tmp_path / "state.npz", allow_pickle=False)))
    further = batch(10)
    for each in (scores, resumed):
        each.add(*further)
    for wanted in (None, True, False):
        assert (resumed.brier(wanted), resumed.auc(wanted)) == (scores.brier(wanted), scores.auc(wanted))


def test_an_empty_state_can_be_saved():
    scores = ForecastScores()
    scores.load_state_dict(ForecastScores().state_dict())
    assert np.isnan(scores.brier())
