"""Drawing the rows of a generation batch: by weight, with a share drawn uniformly, no row too often."""

from dataclasses import dataclass

import numpy as np

from ..errors import InputError

# Weights so far below the largest count as 0: keys of a draw would overflow, and no run is long enough to draw them.
SMALLEST = 1e-290


@dataclass(frozen=True)
class Draw:
    """The rows of one generation batch; their order carries no meaning.

    Attributes:
        rows: (P,) int64, all different.
        importance: (P,) float64, the mixture's probability of the row over that of a uniform draw, both from the rows that were not yet drawn too often; at least the exploration share.
        exploration: (P,) bool, drawn uniformly instead of by weight.
    """

    rows: np.ndarray
    importance: np.ndarray
    exploration: np.ndarray


class Drawer:
    """Draws rows from a mixture: ε/N + (1−ε)·q, ε the exploration share and q the normalised weights.

    An epoch's worth is N draws (less when too few rows may still be drawn); within it no row is drawn more than `max_draws` times. Randomness depends on the seed and the number of draws made only, so what
    was saved goes on the same anywhere.

    Attributes:
        number: calls of `draw` so far.
        drawn_in_epoch: (N,) int32, how often each row was drawn in this epoch's worth.
        total_drawn: rows drawn so far.
    """

    def __init__(
        self, size: int, seed: int, exploration: float = 0.1, max_draws: int = 4, strata: np.ndarray | None = None
    ):
        """Starts with uniform weights.

        Args:
            size: N.
            seed: the run's.
            exploration: share of slots drawn uniformly, in [0.1, 1]: the bound on how far importance can fall.
            max_draws: most times a row may be drawn in an epoch's worth, at least 1.
            strata: (N,) int codes from 0 on: each stratum keeps its share of the rows, in expectation, whatever its weights. None: the weights alone decide.

        Raises:
            InputError: a number outside its range.
        """
        if not 0.1 <= exploration <= 1:
            raise InputError(
                f"--curriculum_exploration {exploration}: give the share of prompts drawn uniformly, from 0.1 to 1; below, a few prompts would decide the weighted mean."
            )
        if max_draws < 1:
            raise InputError(
                f"--curriculum_max_draws {max_draws}: give how often a row may be drawn within an epoch's worth of draws, 1 or more."
            )
        self._size, self._seed, self._exploration, self._max_draws = size, seed, exploration, max_draws
        self._strata = strata
        self._shares = None if strata is None else np.bincount(strata) / size
        self.number = 0
        self.total_drawn = 0
        self.drawn_in_epoch = np.zeros(size, dtype=np.int32)
        self.set_weights(np.ones(size))

    def set_weights(self, weights: np.ndarray) -> None:
        """Draw by these weights from now on.

        Args:
            weights: (N,) ≥ 0 and finite; only their ratios matter, with strata only those within each.

        Raises:
            InputError: a weight that is negative or not finite, or none above 0.
        """
        weights = np.array(weights, dtype=np.float64)
        right = np.isfinite(weights) & (weights >= 0)
        if not right.all():
            row = int(np.argmin(right))
            raise InputError(f"The weight of row {row} is {weights[row]}; weights must be finite numbers from 0 on.")
        if not weights.any():
            raise InputError("All weights are 0, so no row could be drawn; give at least one row a weight above 0.")
        weights /= weights.max()
        weights[weights < SMALLEST] = 0
        self._weights = weights
        self._probability = self._normalise(np.ones(self._size, dtype=bool))

    def _normalise(self, allowed: np.ndarray) -> np.ndarray:
        """(N,) probability of each row in a draw by weight from the rows `allowed` (N,) bool; all 0 if none of these has a weight."""
        weights = self._weights * allowed
        if self._strata is None:
            return weights / (weights.sum() or 1)
        weightless = np.bincount(self._strata, weights) == 0
        if weightless.any():
            weights = np.where(weightless[self._strata], allowed, weights)
        sums = np.bincount(self._strata, weights)
        shares = np.where(sums > 0, self._shares, 0)  # a stratum may have no row left
        scale = np.divide(shares, sums * shares.sum(), out=np.zeros_like(sums), where=sums > 0)
        return weights * scale[self._strata]

    def draw(self, count: int, without: np.ndarray | None = None) -> Draw:
        """The rows of the next generation batch, none of the rows `without`.

        Each of `count` slots is an exploration slot with probability ε. The others are filled one after the other by weight (without replacement; Efraimidis & Spirakis 2006: the smallest of exponential
        variables over their weights), then the exploration slots uniformly from the rest. If fewer rows with a weight are left than slots, the surplus slots become exploration.

        Raises:
            InputError: more rows than there are.
        """
        left_out = np.zeros(0, dtype=np.int64) if without is None else without
        if count > self._size - len(left_out):
            raise InputError(
                f"A generation batch asks for {count} different rows, but there are {self._size - len(left_out)}; use a smaller batch or more rows."
            )
        generator = np.random.default_rng([self._seed, self.number])
        allowed = self.drawn_in_epoch < self._max_draws
        allowed[left_out] = False
        if self.drawn_in_epoch.sum() >= self._size or np.count_nonzero(allowed) < count:
            self.drawn_in_epoch[:] = 0
            allowed[:] = True
            allowed[left_out] = False
        open_rows = np.count_nonzero(allowed)
        probability = self._probability if open_rows == self._size else self._normalise(allowed)

        by_weight = count - generator.binomial(count, self._exploration)
        by_weight = min(by_weight, np.count_nonzero(probability))
        with np.errstate(divide="ignore"):
            keys = generator.standard_exponential(self._size) / probability
        chosen = np.argpartition(keys, by_weight - 1)[:by_weight]
        allowed[chosen] = False
        rows = np.concatenate([chosen, generator.choice(np.flatnonzero(allowed), count - by_weight, replace=False)])
        order = generator.permutation(count)
        rows = rows[order]
        exploration = self._exploration if probability.any() else 1.0
        importance = exploration + (1 - exploration) * probability[rows] * open_rows
        self.number += 1
        self.total_drawn += count
        self.drawn_in_epoch[rows] += 1
        return Draw(rows=rows, importance=importance, exploration=order >= by_weight)

    def effective_sample_size(self) -> float:
        """(Σp)² / Σp² of the mixture p over all rows: N for uniform draws, 1 if a single row were drawn."""
        mixture = self._exploration / self._size + (1 - self._exploration) * self._probability
        return float(mixture.sum() ** 2 / np.square(mixture).sum())

    def state_dict(self) -> dict[str, np.ndarray]:
        """What `load_state_dict` needs to draw the same from here on."""
        return {
            "weights": self._weights.copy(),
            "number": np.array(self.number),
            "drawn_in_epoch": self.drawn_in_epoch.copy(),
            "total_drawn": np.array(self.total_drawn),
        }

    def load_state_dict(self, state: dict[str, np.ndarray], current: np.ndarray, saved: np.ndarray) -> None:
        """Take over the rows `saved` (positions in `state`) as the rows `current` of this object; all others get the mean weight and count as not drawn."""
        self.number, self.total_drawn = int(state["number"]), int(state["total_drawn"])
        self.drawn_in_epoch[:] = 0
        self.drawn_in_epoch[current] = state["drawn_in_epoch"][saved]
        known = state["weights"][saved]
        weights = np.full(self._size, known.mean() if known.any() else 1.0)
        weights[current] = known if known.any() else 1.0
        self.set_weights(weights)
