"""Beta distributions over a sample's chance of success: what a group of rollouts would teach, and how well they forecast it."""

import numpy as np
from scipy.special import betaln, digamma

from .compiled import njit


def teaching(a: np.ndarray, b: np.ndarray, group_size: int) -> np.ndarray:
    """Expected chance that a group of binary rewards is neither all 0 nor all 1, if its chance of success is Beta(a, b).

    1 − [B(a+G, b) + B(a, b+G)] / B(a, b): the expectation of 1 − p^G − (1−p)^G. For whole G the quotients are products of G
    factors, which lose nothing where a and b are huge or tiny, as differences of log-Beta values would.

    Args:
        a, b: above 0, of one shape.
        group_size: G, at least 1.

    Returns:
        float64 in [0, 1], of the same shape.
    """
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    return _teaching(a.ravel(), b.ravel(), group_size).reshape(a.shape)


@njit(cache=True)
def _teaching(a, b, group_size):
    out = np.empty(len(a))
    for i in range(len(a)):
        total, won, lost = a[i] + b[i], 1.0, 1.0
        for k in range(group_size):
            inverse = 1 / (total + k)
            won *= (a[i] + k) * inverse
            lost *= (b[i] + k) * inverse
        out[i] = max(0.0, 1 - won - lost)
    return out


def beta_binomial_nll(a: np.ndarray, b: np.ndarray, x: np.ndarray, m: np.ndarray) -> float:
    """−Σ log B(a+x, b+m−x)/B(a, b): nats that it costs to have forecast x successes in m rollouts, in their order, by Beta(a, b).

    Sequences are counted, not sets: without the binomial coefficient, which does not depend on a and b. x may be fractional.
    """
    return float(np.sum(betaln(a, b) - betaln(a + x, b + m - x)))


def beta_binomial_slopes(a: np.ndarray, b: np.ndarray, x: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of `beta_binomial_nll` by each a and each b."""
    both = digamma(a + b + m) - digamma(a + b)
    return both - digamma(a + x) + digamma(a), both - digamma(b + m - x) + digamma(b)
