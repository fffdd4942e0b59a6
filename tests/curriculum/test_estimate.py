"""Estimates: the formulas by hand, what must not influence what, fitting, and states that go on to the last bit."""

import numpy as np
import pytest
from scipy import stats

from open_r1_kivqa.curriculum.beta import beta_binomial_nll
from open_r1_kivqa.curriculum.difficulty import Counts
from open_r1_kivqa.curriculum.estimate import (
    ESTIMATORS,
    HISTORY,
    REFIT,
    WEIGHTINGS,
    Estimate,
    PaperEstimator,
    PosteriorEstimator,
)
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.curriculum.propagation import Propagator


def propagator_of(matrix):
    matrix = np.asarray(matrix, np.float32)
    rows, columns = np.nonzero(matrix)
    ids = [str(i) for i in range(len(matrix))]
    return Propagator(
        SampleGraph.from_edges(ids, np.zeros(len(ids), np.uint64), rows, columns, matrix[rows, columns], recipe={})
    )


def random_propagator(size, degree=5, seed=0):
    generator = np.random.default_rng(seed)
    matrix = np.zeros((size, size))
    for i in range(size):
        others = np.delete(np.arange(size), i)
        matrix[i, generator.choice(others, degree, replace=False)] = generator.uniform(0.1, 1, degree)
    return propagator_of(matrix)


def counts(size, miss=(), hit=(), sd=0.0):
    """Counts with (row, rollouts, successes) in miss and hit."""
    found = Counts(*(np.zeros((2, size)) for _ in range(3)))
    for part, groups in enumerate((miss, hit)):
        for row, n, s in groups:
            found.n[part, row], found.s[part, row], found.sd[part, row] = n, s, n * sd
    return found


def posterior(size, propagator=None, strata=None, group_size=4, **options):
    strata = np.zeros(size, np.int64) if strata is None else np.asarray(strata)
    return PosteriorEstimator(size, group_size, strata, propagator, **options)


def paper(size, propagator=None, group_size=4):
    return PaperEstimator(size, group_size, np.zeros(size, np.int64), propagator)


ALL = np.ones  # every prompt shows all evidence


def test_paper_without_a_graph():
    found = paper(3).update(counts(3, miss=[(0, 4, 0)], hit=[(0, 4, 4), (1, 8, 2)]), np.full(3, 0.3))
    np.testing.assert_allclose(found.mean, [0.5, 0.25, 0])  # hit and miss together; 0 where nothing is known
    np.testing.assert_allclose(found.chance, [1 - 2 / 16, 1 - 0.25**4 - 0.75**4, 0])
    np.testing.assert_allclose(found.variance, [0.25, 0.1875, 0])


def test_paper_takes_most_of_an_isolated_samples_value_away():
    matrix = np.zeros((3, 3))
    matrix[0, 1] = matrix[1, 0] = 1
    found = paper(3, propagator_of(matrix)).update(counts(3, hit=[(2, 8, 4)]), ALL(3))
    np.testing.assert_allclose(found.mean, [0, 0, 0.1], atol=1e-7)


def test_posterior_before_anything_is_seen():
    found = posterior(2, random_propagator(8), group_size=4).estimate(ALL(2))
    # Beta(2, 2): E[p^4] = (2*3*4*5)/(4*5*6*7) = 1/7; E[p(1-p)] = 4/(4*5).
    np.testing.assert_allclose(found.mean, 0.5)
    np.testing.assert_allclose(found.chance, 1 - 2 / 7)
    np.testing.assert_allclose(found.variance, 0.2)


def test_posterior_by_hand():
    # Two strata; of hits 8 of 10 rollouts of stratum 0 and 0 of 5 of stratum 1 succeeded, of misses 1 of 4.
    known = counts(4, miss=[(1, 4, 1)], hit=[(0, 10, 8), (2, 5, 0)])
    found = posterior(4, strata=[0, 0, 1, 1]).update(known, np.array([1, 0, 0.25, 1]))
    everywhere = np.array([(1 + 0.5) / 5, (8 + 0.5) / 16])
    prior = np.array(
        [
            [(1 + 20 * everywhere[0]) / 24, everywhere[0]],
            [(8 + 20 * everywhere[1]) / 30, 20 * everywhere[1] / 25],
        ]
    )
    hit = [
        (4 * prior[1, 0] + 8) / 14,
        prior[1, 0],
        4 * prior[1, 1] / 9,
        prior[1, 1],
    ]
    miss = [prior[0, 0], (4 * prior[0, 0] + 1) / 8, prior[0, 1], prior[0, 1]]
    np.testing.assert_allclose(found.mean, [hit[0], miss[1], 0.25 * hit[2] + 0.75 * miss[2], hit[3]])


def test_without_misses_the_prior_of_a_miss_is_that_of_a_hit():
    found = posterior(2).update(counts(2, hit=[(0, 10, 8)]), np.zeros(2))
    np.testing.assert_allclose(found.mean, (8 + 0.5) / 11)


def test_neighbours_add_their_rollouts_but_not_ones_own():
    # A pair: of the other's mass .2 * (.8 + .8^3 + ...) = 4/9 arrives in the limit.
    estimator = posterior(3, propagator_of([[0, 1, 0], [1, 0, 0], [0, 0, 0]]), iterations=100, epsilon=1e-7)
    found = estimator.update(counts(3, hit=[(0, 9, 9), (1, 90, 0)]), ALL(3))
    prior = (9 + 20 * 9.5 / 100) / 119
    share = 0.2 * 0.8 / (1 - 0.64)
    np.testing.assert_allclose(
        found.mean,
        [
            (4 * prior + 9) / (4 + 9 + share * 90),
            (4 * prior + share * 9) / (4 + 90 + share * 9),
            prior,
        ],
        rtol=1e-5,
    )


def test_nothing_passes_between_hit_and_miss():
    propagator = random_propagator(30)
    seen = [(i, 8, 6) for i in range(10)]
    for share in (0.0, 1.0):
        alone = {"miss": [(20, 8, 1)]} if share == 0 else {"hit": [(20, 8, 1)]}
        both = {"hit": seen, **alone} if share == 0 else {"miss": seen, **alone}
        one = posterior(30, propagator).update(counts(30, **alone), np.full(30, share))
        two = posterior(30, propagator).update(counts(30, **both), np.full(30, share))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.chance, two.chance)


def test_mixture_is_of_groups():
    # A sample that always succeeds with its evidence and never without: half of the groups are all right, half all wrong.
    known = counts(1, miss=[(0, 1e6, 0)], hit=[(0, 1e6, 1e6)])
    found = posterior(1).update(known, np.array([0.5]))
    assert found.mean[0] == pytest.approx(0.5, abs=1e-4)
    assert found.chance[0] < 1e-3 and found.variance[0] < 1e-3


def test_updates_come_to_what_one_update_finds():
    size, generator = 60, np.random.default_rng(3)
    estimator = posterior(size, random_propagator(size))
    known = counts(size)
    for _ in range(40):
        rows = generator.choice(size, 4, replace=False)
        known = Counts(0.99 * known.n, 0.99 * known.s, known.sd)
        known.n[1, rows] += 8
        known.s[1, rows] += generator.integers(0, 9, 4)
        warm = estimator.update(known, ALL(size))
    at_once = posterior(size, random_propagator(size), iterations=500, epsilon=1e-7).update(known, ALL(size))
    np.testing.assert_allclose(warm.mean, at_once.mean, atol=0.005)
    for _ in range(40):
        warm = estimator.update(known, ALL(size))
    np.testing.assert_allclose(warm.mean, at_once.mean, atol=1e-4)


def test_continuous_signal():
    size = 4
    estimator = posterior(size, group_size=8)
    estimator.record(np.array([0]), np.array([True]), np.array([[0, 1, 1, 0, 1, 0, 0, np.nan]]))
    assert not estimator.continuous
    estimator.record(np.array([0]), np.array([True]), np.array([[0.2, 0.4, 0.5, 0.1, 0.3, 0.3, 0.2, np.nan]]))
    assert estimator.continuous
    found = estimator.update(counts(size, hit=[(0, 10, 3)], sd=0.1), ALL(size))
    everywhere = (1 + 0.25) / 11
    prior = (1 + 20 * everywhere) / 30
    sd = np.array([(4 * prior + 1) / 14, prior, prior, prior])
    np.testing.assert_allclose(found.chance, 2 * sd)
    np.testing.assert_allclose(found.variance, sd**2)
    np.testing.assert_allclose(found.mean[1:], (3 + 20 * 3.5 / 11) / 30)


def test_deviation_is_propagated_too():
    estimator = posterior(2, propagator_of([[0, 1], [1, 0]]), iterations=100, epsilon=1e-7)
    estimator.record(np.array([0]), np.array([True]), np.array([[0.2, 0.4]]))
    known = counts(2, hit=[(0, 18, 6)], sd=0.1)
    share, prior = 4 / 9, (1.8 + 20 * (1.8 + 0.25) / 19) / 38
    found = estimator.update(known, ALL(2))
    assert found.chance[1] == pytest.approx(2 * (4 * prior + share * 1.8) / (4 + share * 18), rel=1e-5)


def simulated(kappa, omega, groups=HISTORY, seed=4):
    """An estimator whose history was drawn from its own model with these κ and ω."""
    # Families of five that are each other's neighbours: a third of them without any observation, the others with few or many.
    size, generator = 500, np.random.default_rng(seed)
    family = np.arange(size) // 5
    matrix = (family[:, None] == family) & ~np.eye(size, dtype=bool)
    estimator = posterior(size, propagator_of(matrix), strata=generator.integers(0, 3, size), group_size=8)
    known = counts(size)
    known.n[1] = generator.choice([0, 2, 20], size // 5)[family] * (np.arange(size) % 5 < 2)
    known.s[1] = generator.binomial(known.n[1].astype(int), generator.random(size // 5)[family])
    estimator.update(known, ALL(size))
    estimator.kappa, estimator.omega = kappa, omega
    # Beta(a, b) of the model, from what the estimator tells: mean and expected p(1-p) give both.
    found = estimator.estimate(ALL(size))
    spread = found.mean * (1 - found.mean)
    total = found.variance / (spread - found.variance)
    rows = generator.integers(0, size, groups)
    chance = stats.beta(found.mean[rows] * total[rows], (1 - found.mean[rows]) * total[rows]).rvs(
        random_state=generator
    )
    values = (generator.random((groups, 8)) < chance[:, None]).astype(float)
    for part in range(0, groups, 100):
        estimator.record(rows[part : part + 100], np.ones(100, bool), values[part : part + 100])
    estimator.kappa, estimator.omega = 4.0, 1.0
    return estimator, known


@pytest.mark.parametrize("kappa, omega", [(2.0, 3.0), (12.0, 0.5)])
def test_kappa_and_omega_are_recovered(kappa, omega):
    estimator, known = simulated(kappa, omega)
    estimator.update(known, ALL(500))
    assert estimator.kappa == pytest.approx(kappa, rel=0.3)
    assert estimator.omega == pytest.approx(omega, rel=0.3)


def test_the_fit_is_the_best():
    estimator, known = simulated(3.0, 0.5, groups=300)
    estimator.update(known, ALL(500))
    prior, successes, failures, s, f, x, m = estimator.state_dict()["history"].T

    def cost(kappa, omega):
        return beta_binomial_nll(
            kappa * prior + omega * successes + s, kappa * (1 - prior) + omega * failures + f, x, m
        )

    best = cost(estimator.kappa, estimator.omega)
    for kappa in np.geomspace(0.1, 100, 60):
        assert best <= min(cost(kappa, omega) for omega in np.geomspace(0.001, 10, 60)) + 1e-3


def test_a_fit_waits_for_new_groups():
    estimator, size = posterior(100), 100
    known = counts(size)
    always = np.ones((REFIT - 1, 4))
    estimator.record(np.arange(REFIT - 1), np.ones(REFIT - 1, bool), always)
    estimator.record(np.array([99]), np.array([True]), np.full((1, 4), np.nan))  # no observation
    estimator.update(known, ALL(size))
    assert (estimator.kappa, estimator.omega) == (4, 1)
    estimator.record(np.array([99]), np.array([True]), np.array([[1, np.nan, 1, 1]]))
    estimator.update(known, ALL(size))
    # All groups are all right under a mean of 1/2: the least κ, and without a graph ω stays.
    assert (estimator.kappa, estimator.omega) == (pytest.approx(0.1), 1)
    assert len(estimator.state_dict()["history"]) == REFIT
    assert estimator.state_dict()["history"][-1, -2:].tolist() == [3, 3]


def test_history_keeps_the_newest():
    estimator = posterior(10)
    for n in range(HISTORY // 5 + 3):
        estimator.record(np.arange(5), np.ones(5, bool), np.full((5, 2), float(n % 2)))
    history = estimator.state_dict()["history"]
    assert len(history) == HISTORY
    assert history[-1, 5] == 0 and history[-6, 5] == 2


def run(estimator, steps, generator, known, continuous):
    size = known.n.shape[1]
    for _ in range(steps):
        rows, hit = generator.choice(size, 16, replace=False), generator.random(16) < 0.7
        values = generator.random((16, 8)) if continuous else generator.integers(0, 2, (16, 8)).astype(float)
        estimator.record(rows, hit, values)
        known = Counts(*(0.98 * part for part in known))
        known.n[hit.astype(int), rows] += 8
        known.s[hit.astype(int), rows] += values.sum(axis=1)
        known.sd[hit.astype(int), rows] += 8 * values.std(axis=1)
        found = estimator.update(known, np.full(size, 0.7))
    return known, found


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("with_graph", [True, False])
@pytest.mark.parametrize("continuous", [True, False])
def test_resumed_state_goes_on_to_the_last_bit(name, with_graph, continuous, tmp_path):
    size, strata = 80, np.arange(80) % 3

    def new():
        return ESTIMATORS[name](size, 8, strata, random_propagator(size) if with_graph else None)

    straight, generator = new(), np.random.default_rng(5)
    known, last = run(straight, 7, generator, counts(size), continuous)
    np.savez(tmp_path / "state.npz", **straight.state_dict())
    again = np.random.default_rng(0)
    again.bit_generator.state = generator.bit_generator.state
    _, expected = run(straight, 9, generator, known, continuous)

    resumed = new()
    with np.load(tmp_path / "state.npz", allow_pickle=False) as state:
        resumed.load_state_dict(dict(state), np.arange(size), np.arange(size))
    for one, two in zip(vars(resumed.estimate(np.full(size, 0.7))).values(), vars(last).values(), strict=True):
        assert one.tobytes() == two.tobytes()
    _, found = run(resumed, 9, again, known, continuous)
    for field in vars(expected):
        assert getattr(found, field).tobytes() == getattr(expected, field).tobytes()
    if name == "posterior":
        assert (resumed.kappa, resumed.omega) == (straight.kappa, straight.omega) != (4, 1)


def test_state_follows_the_rows():
    old = posterior(6, strata=[0, 0, 0, 1, 1, 1])
    old.update(counts(6, hit=[(1, 8, 8), (4, 8, 0)]), ALL(6))
    new = posterior(4, strata=[1, 0, 0, 0])
    new.load_state_dict(old.state_dict(), np.array([0, 1]), np.array([4, 1]))
    expected = posterior(4, strata=[1, 0, 0, 0]).update(counts(4, hit=[(0, 8, 0), (1, 8, 8)]), ALL(4))
    np.testing.assert_array_equal(new.estimate(ALL(4)).mean, expected.mean)


def test_weightings():
    found = Estimate(np.array([0.5, 0.3]), np.array([0.8, 0.6]), np.array([0.25, 0.2]))
    np.testing.assert_allclose(WEIGHTINGS["gaussian"](found, 0.2), [1, np.exp(-0.5)])
    far = Estimate(np.array([0.0, 0.01, 1.0]), np.zeros(3), np.zeros(3))  # each weight by itself would be 0
    np.testing.assert_allclose(
        WEIGHTINGS["gaussian"](far, 0.01), [np.exp((0.49**2 - 0.25) / 0.0002), 1, np.exp((0.49**2 - 0.25) / 0.0002)]
    )
    assert WEIGHTINGS["teaching"](found, 0.2) is found.chance
    assert WEIGHTINGS["variance"](found, 0.2) is found.variance
    np.testing.assert_array_equal(WEIGHTINGS["uniform"](found, 0.2), [1, 1])
