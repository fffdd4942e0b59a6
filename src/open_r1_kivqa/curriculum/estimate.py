"""What is known of every sample's difficulty, from its own rollouts and from its neighbours', and how samples are weighed by it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from .beta import beta_binomial_nll, beta_binomial_slopes, teaching
from .difficulty import Counts
from .propagation import Propagator

PRIOR_ROLLOUTS = 20  # a stratum's mean is drawn to the global mean as if by so many rollouts of it
PRIOR_SD = 0.25  # of a group, before anything is known: half of what values in [0, 1] can have
HISTORY = 2000  # groups that κ and ω are fitted to: the newest
REFIT = 64  # new groups between two fits
WARM_ITERATIONS = 2  # of an update: it begins where the last one ended, and the next one goes on from there
KAPPA, OMEGA = 4.0, 1.0  # before the first fit
KAPPA_BOUNDS, OMEGA_BOUNDS = (0.1, 100.0), (0.001, 10.0)


@dataclass
class Estimate:
    """Forecasts of each sample's next group of rollouts; (N,) float64 each, hit and miss mixed by the sample's share of hits.

    Attributes:
        mean: success share, in [0, 1].
        chance: chance that not all signals of the group are equal; of a continuous signal twice the expected standard deviation of
            its group.
        variance: expected p(1−p); of a continuous signal the expected standard deviation, squared.
    """

    mean: np.ndarray
    chance: np.ndarray
    variance: np.ndarray


class PaperEstimator:
    """Wiki-R1 as published: success shares, hit and miss together, 0 where nothing was observed, propagated by `Propagator.paper`."""

    def __init__(
        self,
        size: int,
        group_size: int,
        strata: np.ndarray,
        propagator: Propagator | None,
        alpha: float = 0.8,
        iterations: int = 10,
        epsilon: float = 1e-4,
    ) -> None:
        """The same arguments as `PosteriorEstimator`; strata play no part."""
        self.group_size = group_size
        self.propagator = propagator
        self._options = alpha, iterations, epsilon
        self._share = np.zeros(size)

    def update(self, counts: Counts, hit_share: np.ndarray) -> Estimate:
        """Takes counts (2, N) and gives the new estimate; H = mean, chance = 1 − H^G − (1−H)^G."""
        n, s = counts.n.sum(axis=0), counts.s.sum(axis=0)
        share = np.divide(s, n, out=np.zeros(len(n)), where=n > 0)
        self._share = share if self.propagator is None else self.propagator.paper(share, *self._options)
        return self.estimate(hit_share)

    def estimate(self, hit_share: np.ndarray) -> Estimate:
        """What the last update knew."""
        mean = np.clip(self._share, 0, 1, dtype=np.float64)
        chance = 1 - mean**self.group_size - (1 - mean) ** self.group_size
        return Estimate(mean, np.maximum(chance, 0), mean * (1 - mean))

    def record(self, rows: np.ndarray, hit: np.ndarray, values: np.ndarray) -> None:
        """Nothing is fitted."""

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"share": self._share}

    def load_state_dict(self, state: dict[str, np.ndarray], current: np.ndarray, saved: np.ndarray) -> None:
        share = np.zeros(len(self._share), state["share"].dtype)
        share[current] = state["share"][saved]
        self._share = share


class PosteriorEstimator:
    """A Beta distribution for each sample: its stratum's mean, its neighbours' rollouts and its own.

    a = κπ + ω(Ps) + s and b = κ(1−π) + ω(P(n−s)) + n − s, for miss and hit apart: nothing passes between them. P is
    `Propagator.spread`, without a sample's own mass. π is the success share of the sample's stratum × hit/miss, drawn to the global one
    by `PRIOR_ROLLOUTS`. κ and ω maximise the likelihood of the last `HISTORY` groups, each under the forecast made before it.

    A signal with any value that is neither 0 nor 1 is continuous from then on; its standard deviation is estimated likewise.
    """

    def __init__(
        self,
        size: int,
        group_size: int,
        strata: np.ndarray,
        propagator: Propagator | None,
        alpha: float = 0.8,
        iterations: int = 10,
        epsilon: float = 1e-4,
    ) -> None:
        """
        Args:
            size: N.
            group_size: G, rollouts of a prompt.
            strata: (N,) int codes from 0 on.
            propagator: None leaves neighbours out, and ω has no effect.
            alpha, iterations, epsilon: see `Propagator.spread`.
        """
        self.group_size = group_size
        self.propagator = propagator
        self.kappa, self.omega = KAPPA, OMEGA
        self.continuous = False
        self._strata = strata
        self._options = alpha, iterations, epsilon
        # What the last update held, (2, N): own counts, and what came from neighbours of successes, failures and standard deviations.
        self._counts = Counts(*(np.zeros((2, size)) for _ in Counts._fields))
        self._came = np.zeros((3, 2, size), np.float32)
        # The walk of the propagation of each, and which of the six columns had any mass.
        self._walk = np.zeros((size, 0), np.float32)
        self._active = np.zeros((3, 2), bool)
        self._history = np.zeros((0, 7))  # π, Ps, P(n−s), s, n−s, successes, rollouts of a group
        self._since_fit = 0
        self._set_priors()

    def update(self, counts: Counts, hit_share: np.ndarray) -> Estimate:
        """Takes what is known by now and gives the new estimate.

        Args:
            counts: (2, N) float64 each, decayed to now; kept, so don't write into them afterwards.
            hit_share: (N,) in [0, 1], share of a sample's prompts that show all evidence at the level of now.
        """
        if self.propagator is not None:
            self._propagate(counts)
        self._counts = counts
        self._set_priors()
        if self._since_fit >= REFIT:
            self._fit()
        return self.estimate(hit_share)

    def estimate(self, hit_share: np.ndarray) -> Estimate:
        """What the last update knew, mixed for another share of hits."""
        n, s, sd = self._counts
        successes, failures, deviations = self._came
        prior = self._prior[:, self._strata]
        a = self.kappa * prior
        b = self.kappa - a
        a += s
        a += self.omega * successes
        b += n - s
        b += self.omega * failures
        total = a + b
        mean = a / total
        if self.continuous:
            deviation = self.kappa * self._prior_sd[:, self._strata] + self.omega * deviations + sd
            deviation /= total
            return Estimate(_mix(mean, hit_share), _mix(2 * deviation, hit_share), _mix(deviation**2, hit_share))
        variance = mean * b / (total + 1)
        return Estimate(
            _mix(mean, hit_share), _mix(teaching(a, b, self.group_size), hit_share), _mix(variance, hit_share)
        )

    def record(self, rows: np.ndarray, hit: np.ndarray, values: np.ndarray) -> None:
        """Keeps groups next to what the last update knew about them; call it before an update that counts them.

        Args:
            rows: (P,) int.
            hit: (P,) bool, whether the prompt showed all evidence.
            values: (P, G) signals in [0, 1]; NaN is no observation.
        """
        seen = ~np.isnan(values)
        self.continuous |= bool(((values != 0) & (values != 1) & seen).any())
        kept = seen.any(axis=1)
        rows, hit = rows[kept], hit[kept].astype(np.int64)
        n, s = self._counts.n[hit, rows], self._counts.s[hit, rows]
        came = self._came[:2, hit, rows]
        outcome = np.nansum(values[kept], axis=1), seen[kept].sum(axis=1)
        groups = np.column_stack([self._prior[hit, self._strata[rows]], *came, s, n - s, *outcome])
        self._history = np.concatenate([self._history, groups])[-HISTORY:]
        self._since_fit += len(groups)

    def _propagate(self, counts: Counts) -> None:
        n, s, sd = counts
        masses = [s, n - s, sd] if self.continuous else [s, n - s]
        active = np.zeros((3, 2), bool)
        active[: len(masses)] = [mass.any(axis=1) for mass in masses]
        chosen = np.argwhere(active)
        walked = {tuple(place): column for column, place in enumerate(np.argwhere(self._active))}
        # Between updates all counts shrink by one factor, but for those of the new groups, which have grown besides. The last walk,
        # times that factor, is the new one but for the new groups.
        shrunk = [_smallest_ratio(n[part], self._counts.n[part]) for part in (0, 1)]
        mass = np.empty((n.shape[1], len(chosen)), np.float32)
        start = np.zeros_like(mass)
        for column, (kind, part) in enumerate(chosen):
            mass[:, column] = masses[kind][part]
            if (kind, part) in walked:
                np.multiply(self._walk[:, walked[kind, part]], shrunk[part], out=start[:, column])
        alpha, iterations, epsilon = self._options
        if start.any():
            iterations = min(iterations, WARM_ITERATIONS)
        values, self._walk = self.propagator.spread(mass, start, alpha, iterations, epsilon)
        self._active = active
        self._came[:] = 0
        for column, (kind, part) in enumerate(chosen):
            self._came[kind, part] = values[:, column]

    def _set_priors(self) -> None:
        n, s, sd = self._counts
        self._prior = _stratum_means(self._strata, n, s, 0.5)
        self._prior_sd = _stratum_means(self._strata, n, sd, PRIOR_SD)

    def _fit(self) -> None:
        prior, successes, failures, s, f, x, m = self._history.T

        def cost(logs):
            kappa, omega = np.exp(logs)
            a = kappa * prior + omega * successes + s
            b = kappa * (1 - prior) + omega * failures + f
            by_a, by_b = beta_binomial_slopes(a, b, x, m)
            slopes = kappa * (by_a @ prior + by_b @ (1 - prior)), omega * (by_a @ successes + by_b @ failures)
            return beta_binomial_nll(a, b, x, m) / len(x), np.array(slopes) / len(x)

        bounds = np.log([KAPPA_BOUNDS, OMEGA_BOUNDS])
        found = minimize(cost, np.log([self.kappa, self.omega]), jac=True, method="L-BFGS-B", bounds=bounds)
        self.kappa, self.omega = (float(value) for value in np.exp(found.x))
        self._since_fit = 0

    def state_dict(self) -> dict[str, np.ndarray]:
        """All that updates and records to come depend on."""
        return {
            "counts": np.stack(self._counts),
            "came": self._came,
            "walk": self._walk,
            "active": self._active,
            "history": self._history,
            "fitted": np.array([self.kappa, self.omega]),
            "since_fit": np.array(self._since_fit),
            "continuous": np.array(self.continuous),
        }

    def load_state_dict(self, state: dict[str, np.ndarray], current: np.ndarray, saved: np.ndarray) -> None:
        """Samples `current` take over what the state holds of its samples `saved`; of all others nothing is known. Without a propagator, nothing of neighbours is taken over."""
        size = len(self._strata)
        counts = np.zeros((3, 2, size))
        counts[:, :, current] = state["counts"][:, :, saved]
        self._counts = Counts(*counts)
        if self.propagator is not None:
            self._came[:] = 0
            self._came[:, :, current] = state["came"][:, :, saved]
            self._walk = np.zeros((size, state["walk"].shape[1]), np.float32)
            self._walk[current] = state["walk"][saved]
            self._active = state["active"].astype(bool)
        self._history = state["history"].astype(np.float64)
        self.kappa, self.omega = (float(value) for value in state["fitted"])
        self._since_fit = int(state["since_fit"])
        self.continuous = bool(state["continuous"])
        self._set_priors()


def _mix(values: np.ndarray, hit_share: np.ndarray) -> np.ndarray:
    """(2, N) values of miss and hit -> (N,) their means; exactly one of them where all or no prompts are hits"""
    return (1 - hit_share) * values[0] + hit_share * values[1]


def _smallest_ratio(now: np.ndarray, before: np.ndarray) -> float:
    """Smallest now/before where there was anything before; 0 if there was nothing."""
    known = before > 0
    return float(np.min(now[known] / before[known])) if known.any() else 0.0


def _stratum_means(strata: np.ndarray, n: np.ndarray, sums: np.ndarray, unknown: float) -> np.ndarray:
    """(2, strata) mean by miss/hit and stratum, drawn to the mean of all strata, and that to `unknown` by one rollout."""
    rollouts, total = n.sum(axis=1), sums.sum(axis=1)
    means = (total + unknown) / (rollouts + 1)
    if (rollouts > 0).any():
        means[rollouts == 0] = means[rollouts > 0][0]
    by_n = np.stack([np.bincount(strata, row) for row in n])
    by_sum = np.stack([np.bincount(strata, row) for row in sums])
    return (by_sum + PRIOR_ROLLOUTS * means[:, None]) / (by_n + PRIOR_ROLLOUTS)


ESTIMATORS = {"paper": PaperEstimator, "posterior": PosteriorEstimator}


def gaussian(mean: np.ndarray, sigma: float) -> np.ndarray:
    """exp(−(mean − ½)² / 2σ²), over that of the mean nearest to ½: only ratios matter, and a narrow σ would otherwise round all of them to 0."""
    square = (mean - 0.5) ** 2
    return np.exp((square.min() - square) / (2 * sigma**2))


WEIGHTINGS: dict[str, Callable[[Estimate, float], np.ndarray]] = {
    "gaussian": lambda estimate, sigma: gaussian(estimate.mean, sigma),
    "variance": lambda estimate, sigma: estimate.variance,
    "teaching": lambda estimate, sigma: estimate.chance,
    "uniform": lambda estimate, sigma: np.ones(len(estimate.mean)),
}
