"""When a level is left, by windows made by hand, and that the weighted mean undoes what the draws favour."""

import numpy as np
import pytest
from scipy.stats import beta

from open_r1_kivqa.curriculum.draws import Drawer
from open_r1_kivqa.curriculum.levels import Levels, parse_levels
from open_r1_kivqa.errors import InputError

NAN = float("nan")


def observe(levels, *means, importance=1.0):
    levels.observe(np.array(means), np.full(len(means), importance))


def test_levels_are_read_in_order():
    assert parse_levels("1,2,3,4,5,retrieved") == ("1", "2", "3", "4", "5", "retrieved")
    assert parse_levels(" gold, 02 ,none ") == ("gold", "2", "none")
    assert parse_levels("retrieved") == ("retrieved",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has an empty part"),
        ("1,,2", "has an empty part"),
        ("1,2,", "has an empty part"),
        ("1,0", "--curriculum_levels '0' is not known; use retrieved, gold"),
        ("1,all", "--curriculum_levels 'all' is not known"),
        ("2,2", "names '2' and '2', which are equal: both show the same"),
        ("2,02", "names '2' and '02', which are equal"),
        ("none,1,none", "names 'none' and 'none', which are equal"),
        ("1,2,gold", "names '1' and 'gold', which are equal: both show the gold passages alone"),
        ("gold,1", "names 'gold' and '1', which are equal: both show the gold passages alone"),
    ],
)
def test_levels_that_make_no_order_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_levels(text)


def test_a_full_window_above_the_threshold_promotes_and_is_cleared():
    levels = Levels(("1", "2", "retrieved"), window=4, threshold=0.5)
    observe(levels, 1, 1, 1)
    assert levels.step() == 0  # not full
    observe(levels, 0)
    assert (levels.raw_mean, levels.step(), levels.name) == (0.75, 1, "2")
    assert np.isnan(levels.raw_mean) and np.isnan(levels.weighted_mean)
    observe(levels, 1, 1, 0, 0)
    assert (levels.raw_mean, levels.step()) == (0.5, 0)  # not above
    observe(levels, 0.25, 1)  # the oldest two leave
    assert (levels.raw_mean, levels.step()) == (0.3125, 0)
    observe(levels, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0.25)
    assert (levels.raw_mean, levels.step(), levels.name) == (0.5625, 1, "retrieved")
    observe(levels, 1, 1, 1, 1)
    assert (levels.step(), levels.name, levels.raw_mean) == (0, "retrieved", 1)  # nowhere to go, nothing cleared


def test_a_full_window_below_the_lower_threshold_demotes():
    levels = Levels(("1", "2"), window=2, threshold=0.5, demotion_threshold=0.25, index=1)
    observe(levels, 0, 0.5)
    assert levels.step() == 0  # not below
    observe(levels, 0)
    observe(levels, 0.25)
    assert (levels.step(), levels.name) == (-1, "1")
    assert np.isnan(levels.raw_mean)
    observe(levels, 0, 0)
    assert (levels.step(), levels.name) == (0, "1")
    stays = Levels(("1", "2"), window=1, index=1)
    observe(stays, 0)
    assert stays.step() == 0


def test_groups_without_observation_are_left_out():
    levels = Levels(("1", "2"), window=2)
    levels.observe(np.array([NAN, 0.5, NAN]), np.array([9.0, 1.0, 9.0]))
    assert (levels.raw_mean, levels.weighted_mean, levels.step()) == (0.5, 0.5, 0)
    levels.observe(np.array([NAN]), np.array([1.0]))
    assert levels.step() == 0
    levels.observe(np.array([1.0]), np.array([0.25]))  # (.5/1 + 1/.25) / (1/1 + 1/.25)
    assert (levels.raw_mean, levels.weighted_mean) == (0.75, 0.9)


def test_the_mean_that_decides_is_the_one_asked_for():
    for mean, move in (("raw", 0), ("weighted", 1)):
        levels = Levels(("1", "2"), window=2, threshold=0.55, mean=mean)
        levels.observe(np.array([0.0, 1.0]), np.array([2.0, 0.5]))  # raw 1/2; weighted 2 / (1/2 + 2) = .8
        assert (levels.raw_mean, levels.weighted_mean) == (0.5, 0.8)
        assert levels.step() == move


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 0}, "--curriculum_window 0"),
        ({"threshold": 1.0}, r"--curriculum_threshold 1.0: .* in \[0, 1\)"),
        ({"threshold": -0.1}, "--curriculum_threshold -0.1"),
        ({"threshold": NAN}, "--curriculum_threshold nan"),
        ({"mean": "median"}, "--curriculum_window_mean 'median' is not known; use weighted or raw"),
        ({"demotion_threshold": 0.55}, "--curriculum_demotion_threshold 0.55: .* below the promotion threshold 0.55"),
        ({"demotion_threshold": 0.0}, "--curriculum_demotion_threshold 0.0: .* above 0"),
    ],
)
def test_numbers_without_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Levels(("1", "2"), **settings)


def test_a_saved_window_goes_on_at_the_level_of_the_same_name(tmp_path):
    levels = Levels(("1", "2", "retrieved"), window=3, index=1)
    levels.observe(np.array([0.1, 0.2, 1 / 3]), np.array([1.0, 0.7, 1 / 7]))
    np.savez(tmp_path / "state.npz", **levels.state_dict())
    state = dict(np.load(tmp_path / "state.npz", allow_pickle=False))

    other = Levels(("gold", "3", "2"), window=3, index=0)
    other.load_state_dict(state)
    assert (other.name, other.index) == ("2", 2)
    assert (other.raw_mean, other.weighted_mean) == (levels.raw_mean, levels.weighted_mean)
    for each in (levels, other):
        observe(each, 0.9)
    assert other.weighted_mean == levels.weighted_mean

    shorter = Levels(("2", "3"), window=2)
    shorter.load_state_dict(state)
    assert shorter.raw_mean == np.mean([0.2, 1 / 3])

    with pytest.raises(InputError, match="saved at level '2', which --curriculum_levels 1,retrieved lacks"):
        Levels(("1", "retrieved")).load_state_dict(state)


def test_an_empty_window_can_be_saved():
    levels = Levels(("1", "2"))
    levels.load_state_dict(Levels(("1", "2"), index=1).state_dict())
    assert levels.name == "2" and np.isnan(levels.raw_mean)


def rows_of(accuracy, size=20_000):
    """Accuracies of the rows of a model of this mean: even quantiles of a Beta distribution of concentration 2."""
    return beta.ppf((np.arange(size) + 0.5) / size, 2 * accuracy, 2 * (1 - accuracy))


def gaussian(accuracies, sigma):
    return np.exp(-((accuracies - 0.5) ** 2) / (2 * sigma**2))


@pytest.mark.parametrize(("accuracy", "sigma", "shown"), [(0.9, 0.1, 0.53), (0.3, 0.2, 0.42)])
def test_gaussian_draws_alone_show_a_mean_near_one_half(accuracy, sigma, shown):
    """A model of 90 % is not promoted at .55 by what σ = .1 shows of it."""
    accuracies = rows_of(accuracy)
    probability = gaussian(accuracies, sigma) / gaussian(accuracies, sigma).sum()
    generator = np.random.default_rng(0)
    rows = generator.choice(len(accuracies), 20_000, p=probability)
    levels = Levels(("1", "2"), window=len(rows), mean="raw")
    levels.observe(generator.binomial(4, accuracies[rows]) / 4, probability[rows] * len(accuracies))
    assert levels.raw_mean == pytest.approx(shown, abs=0.01)
    assert levels.step() == 0


@pytest.mark.parametrize("max_draws", [4, 10**6])
@pytest.mark.parametrize("sigma", [0.1, 0.2])
@pytest.mark.parametrize("accuracy", [0.9, 0.3])
def test_the_weighted_mean_is_that_of_uniform_draws(accuracy, sigma, max_draws):
    """From the rows that the cap leaves: those near one half go first, which moves the truth by .03 at most here."""
    accuracies = rows_of(accuracy)
    drawer = Drawer(len(accuracies), seed=1, exploration=0.1, max_draws=max_draws)
    drawer.set_weights(gaussian(accuracies, sigma))
    levels = Levels(("1", "2"), window=15_000)
    generator = np.random.default_rng(2)
    means, importance, truth = [], [], []
    for _ in range(150):
        truth.append(accuracies[drawer.drawn_in_epoch < max_draws].mean())
        draw = drawer.draw(100)
        means.append(generator.binomial(4, accuracies[draw.rows]) / 4)
        importance.append(draw.importance)
        levels.observe(means[-1], importance[-1])
    weights = 1 / np.concatenate(importance)
    error = np.sqrt(np.sum((weights * (np.concatenate(means) - accuracy)) ** 2)) / weights.sum()
    assert error < 0.01
    assert abs(levels.weighted_mean - np.mean(truth)) < 3 * error
    assert abs(np.mean(truth) - accuracy) < 0.03
    assert abs(levels.raw_mean - 0.5) < abs(accuracy - 0.5) - 6 * error
