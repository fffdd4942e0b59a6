"""Beta mathematics against numerical integration, scipy's distributions and cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from open_r1_kivqa.curriculum.beta import beta_binomial_nll, beta_binomial_slopes, teaching


@pytest.mark.parametrize("a, b", [(1, 1), (0.5, 0.5), (2.5, 7), (30, 4), (400, 600)])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_teaching_is_an_expectation(a, b, size):
    density = stats.beta(a, b).pdf
    expected, _ = integrate.quad(
        lambda p: density(p) * (1 - p**size - (1 - p) ** size), 0, 1, points=[a / (a + b)], limit=200
    )
    assert teaching(a, b, size) == pytest.approx(expected, rel=1e-6)


def test_teaching_by_hand():
    # Uniform: E[p^4] = 1/5, so 1 - 2/5. One rollout teaches nothing.
    np.testing.assert_allclose(teaching([1.0, 1.0], [1.0, 1.0], 4), 0.6)
    assert teaching(3.0, 5.0, 1) == pytest.approx(0, abs=1e-15)
    # Two rollouts: 2 E[p(1-p)] = 2ab / ((a+b)(a+b+1)).
    assert teaching(3.0, 5.0, 2) == pytest.approx(2 * 15 / (8 * 9))


@pytest.mark.parametrize("p, expected", [(0.1, 0.344), (0.3, 0.752), (0.5, 0.875)])
def test_teaching_of_a_known_chance(p, expected):
    assert teaching(1e12 * p, 1e12 * (1 - p), 4) == pytest.approx(1 - p**4 - (1 - p) ** 4, rel=1e-9)
    assert teaching(1e12 * p, 1e12 * (1 - p), 4) == pytest.approx(expected, abs=5e-4)


def test_teaching_of_tiny_and_lopsided_parameters():
    # All mass at 0 and 1: every group is all right or all wrong.
    assert teaching(1e-300, 1e-300, 8) == pytest.approx(0, abs=1e-12)
    # b -> 0: 1 - E[p^3] is b (1/2 + 1/3 + 1/4), and E[(1-p)^3] is b * 1 * 2 / (2 * 3 * 4).
    assert teaching(2.0, 1e-9, 3) == pytest.approx(1e-9 * (13 / 12 - 1 / 12), rel=1e-6)
    assert 0 <= teaching(1e15, 1e-15, 64) < 1e-12


@given(st.floats(1e-8, 1e8), st.floats(1e-8, 1e8), st.integers(1, 64))
def test_teaching_is_symmetric_and_grows_with_the_group(a, b, size):
    chance = teaching(a, b, size)
    assert 0 <= chance <= 1
    assert chance == pytest.approx(teaching(b, a, size), abs=1e-12)
    assert teaching(a, b, size + 1) >= chance - 1e-12


def test_teaching_keeps_the_shape():
    assert teaching(np.ones((2, 3)), np.full((2, 3), 2.0), 4).shape == (2, 3)


def test_nll_is_that_of_a_sequence():
    generator = np.random.default_rng(0)
    a, b, m = generator.gamma(2, 2, 50), generator.gamma(2, 2, 50), generator.integers(1, 20, 50)
    x = generator.integers(0, m + 1)
    orders = np.log([float(np.prod([(m_ - k) / (k + 1) for k in range(x_)])) for m_, x_ in zip(m, x, strict=True)])
    expected = -(stats.betabinom(m, a, b).logpmf(x) - orders).sum()
    assert beta_binomial_nll(a, b, x, m) == pytest.approx(expected)
    # By hand: a success and a failure under a uniform chance, 1/2 * 1/3.
    assert beta_binomial_nll(np.ones(1), np.ones(1), np.ones(1), np.full(1, 2)) == pytest.approx(np.log(6))


def test_slopes_are_the_derivatives():
    generator = np.random.default_rng(1)
    a, b, m = generator.gamma(2, 2, 6), generator.gamma(2, 2, 6), np.full(6, 8.0)
    x = generator.uniform(0, 8, 6)
    both = np.concatenate([a, b])
    expected = optimize.approx_fprime(both, lambda v: beta_binomial_nll(v[:6], v[6:], x, m), 1e-6)
    np.testing.assert_allclose(np.concatenate(beta_binomial_slopes(a, b, x, m)), expected, rtol=1e-4, atol=1e-5)
