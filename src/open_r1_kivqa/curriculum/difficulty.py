"""How often each row was answered, and how often well: counts that fade, since the model changes."""

from typing import NamedTuple

import numpy as np

from ..errors import InputError


class Counts(NamedTuple):
    """Decayed sums over a row's rollouts, (2, N) float64 each: row 0 where the passages shown lacked evidence (miss), row 1 where they held all (hit).

    Attributes:
        n: rollouts.
        s: successes, the sum of signals.
        sd: standard deviation of the rollout's group.
    """

    n: np.ndarray
    s: np.ndarray
    sd: np.ndarray


class Difficulty:
    """What was observed of N rows. A row's counts halve every `half_life` optimizer steps.

    Attributes:
        last_step: (N,) int64, optimizer step of the last observation; -1 for none yet.
        last_level: (N,) int16, level of the last observation; -1.
        last_hit: (N,) int8, whether its passages held all evidence; -1.
        truncated: (N,) int64, truncated rollouts, ever.
        rollouts: (N,) int64, rollouts with a signal, ever; these do not decay.
    """

    def __init__(self, size: int, half_life: float):
        """
        Args:
            size: N.
            half_life: optimizer steps, > 0; infinity for no decay.

        Raises:
            InputError: a half-life that is not positive.
        """
        if not half_life > 0:
            raise InputError(
                f"--curriculum_half_life {half_life}: give how many optimizer steps halve what was observed, more than 0; inf forgets nothing."
            )
        self._size, self._half_life = size, half_life
        self._reset()

    def _reset(self) -> None:
        # Of each row as they were at its `last_step`: that way an observation touches its own rows only.
        self._sums = Counts(*(np.zeros((2, self._size)) for _ in Counts._fields))
        self.last_step = np.full(self._size, -1, dtype=np.int64)
        self.last_level = np.full(self._size, -1, dtype=np.int16)
        self.last_hit = np.full(self._size, -1, dtype=np.int8)
        self.truncated = np.zeros(self._size, dtype=np.int64)
        self.rollouts = np.zeros(self._size, dtype=np.int64)

    @property
    def observed(self) -> np.ndarray:
        """(N,) bool: rows with a signal so far."""
        return self.rollouts > 0

    def observe(
        self, step: int, level: int, rows: np.ndarray, values: np.ndarray, hit: np.ndarray, truncated: np.ndarray
    ) -> None:
        """Add groups of rollouts.

        Args:
            step: optimizer step, no earlier than any before.
            level: place of the level they were drawn at.
            rows: (P,) row of each group, all different.
            values: (P, G) signals in [0, 1]; NaN is no observation, and a group without any leaves all but `truncated` as it was.
            hit: (P,) bool, whether the passages shown held all evidence.
            truncated: (P,) truncated rollouts of each group.
        """
        self.truncated[rows] += truncated
        number = np.count_nonzero(~np.isnan(values), axis=1)
        known = number > 0
        rows, values, hit, number = rows[known], values[known], hit[known], number[known]
        decay = self._decay(step, rows)
        success, deviation = np.nansum(values, axis=1), np.nanstd(values, axis=1)
        for sums, added in zip(self._sums, (number, success, number * deviation), strict=True):
            sums[:, rows] *= decay
            sums[hit.astype(np.int64), rows] += added
        self.last_step[rows], self.last_level[rows], self.last_hit[rows] = step, level, hit
        self.rollouts[rows] += number

    def carry(self, share: float) -> None:
        """Keep this share of all counts: another level makes what was observed less true. 0 forgets, 1 keeps."""
        for sums in self._sums:
            sums *= share

    def counts(self, step: int) -> Counts:
        """Everything as of optimizer step `step`, which is no earlier than any observation."""
        decay = self._decay(step, slice(None))
        return Counts(*(sums * decay for sums in self._sums))

    def _decay(self, step: int, rows: np.ndarray | slice) -> np.ndarray:
        return np.exp2((self.last_step[rows] - step) / self._half_life)

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("last_step", "last_level", "last_hit", "truncated", "rollouts")
        return self._sums._asdict() | {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, state: dict[str, np.ndarray], current: np.ndarray, saved: np.ndarray) -> None:
        """Take over the rows `saved` (positions in `state`) as the rows `current` of this object; all others start anew."""
        self._reset()
        for name, array in self._arrays().items():
            array[..., current] = state[name][..., saved]
