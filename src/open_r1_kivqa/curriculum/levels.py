"""The levels of the data curriculum, and the window of rewards that decides when to move on to the next."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError
from ..knowledge.context import NAMED_LEVELS, check_level

FLAG = "--curriculum_levels"
MOST = 2**31 - 1  # prompts of a window


def parse_levels(text: str) -> tuple[str, ...]:
    """ "1,2,retrieved" -> ("1", "2", "retrieved"), from the first level of training to the last.

    Raises:
        InputError: an empty part, a level that `knowledge.context.choose_passages` does not know, or two that show the same.
    """
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise InputError(
            f"{FLAG} {text!r} has an empty part; write levels separated by single commas, like 1,2,retrieved."
        )
    seen: dict[str, str] = {}  # what a level shows -> the level
    for level in parts:
        check_level(level, FLAG)
        shows = level if level in NAMED_LEVELS else str(int(level))
        shows = "1" if shows == "gold" else shows
        if shows in seen:
            reason = (
                "both show the gold passages alone" if shows == "1" and seen[shows] != level else "both show the same"
            )
            raise InputError(
                f"{FLAG} {text!r} names {seen[shows]!r} and {level!r}, which are equal: {reason}; remove one."
            )
        seen[shows] = level
    return tuple(level if level in NAMED_LEVELS else str(int(level)) for level in parts)


@dataclass
class Levels:
    """The current level, and the mean signals of the last prompts drawn at it (Wiki-R1, data curriculum).

    Draws that favour rows near an accuracy of ½ pull the mean of what was drawn toward ½ as well, whatever the model can do. The weighted mean Σ(r/p) / Σ(1/p), p = a row's draw probability over uniform's,
    estimates the mean over all rows instead.

    Attributes:
        names: the levels in order, as from `parse_levels`.
        window: how many prompts decide; 1 to `MOST`.
        threshold: promotion when the window's mean is above it; in [0, 1).
        mean: "weighted", or "raw" as published.
        demotion_threshold: demotion when the window's mean is below it; in (0, threshold), None for never.
        index: place of the current level in `names`.

    Raises:
        InputError: a number outside its range.
    """

    names: tuple[str, ...]
    window: int = 300
    threshold: float = 0.55
    mean: str = "weighted"
    demotion_threshold: float | None = None
    index: int = 0
    _means: deque[float] = field(init=False, repr=False)
    _importance: deque[float] = field(init=False, repr=False)

    def __post_init__(self):
        if not 1 <= self.window <= MOST:
            raise InputError(
                f"--curriculum_window {self.window}: give how many prompts decide on a promotion, from 1 to {MOST:,}."
            )
        if not 0 <= self.threshold < 1:
            raise InputError(
                f"--curriculum_threshold {self.threshold}: give a mean reward in [0, 1); none can be above 1, so no promotion would come."
            )
        if self.mean not in ("weighted", "raw"):
            raise InputError(f"--curriculum_window_mean {self.mean!r} is not known; use weighted or raw.")
        if self.demotion_threshold is not None and not 0 < self.demotion_threshold < self.threshold:
            raise InputError(
                f"--curriculum_demotion_threshold {self.demotion_threshold}: give a mean reward above 0 and below the promotion threshold {self.threshold}, or leave it out."
            )
        self._means = deque(maxlen=self.window)
        self._importance = deque(maxlen=self.window)

    @property
    def name(self) -> str:
        """The current level."""
        return self.names[self.index]

    def observe(self, means: np.ndarray, importance: np.ndarray) -> None:
        """Append groups to the window, newest last; the oldest leave it.

        Args:
            means: (P,) mean signal of each group, in [0, 1]; NaN groups are left out.
            importance: (P,) probability with which each prompt was drawn over uniform's, > 0.
        """
        known = ~np.isnan(means)
        self._means.extend(np.asarray(means, dtype=np.float64)[known].tolist())
        self._importance.extend(np.asarray(importance, dtype=np.float64)[known].tolist())

    @property
    def raw_mean(self) -> float:
        """Mean signal of the window; nan while it is empty."""
        return float(np.mean(self._means)) if self._means else float("nan")

    @property
    def weighted_mean(self) -> float:
        """Σ(r/p) / Σ(1/p) over the window; nan while it is empty."""
        return float(np.average(self._means, weights=1 / np.array(self._importance))) if self._means else float("nan")

    def step(self) -> int:
        """Move to the next or previous level if a full window says so, and clear the window.

        Returns:
            +1 promoted, -1 demoted, 0 stayed.
        """
        if len(self._means) < self.window:
            return 0
        mean = self.weighted_mean if self.mean == "weighted" else self.raw_mean
        move = 0
        if mean > self.threshold and self.index < len(self.names) - 1:
            move = 1
        elif self.demotion_threshold is not None and mean < self.demotion_threshold and self.index > 0:
            move = -1
        if move:
            self.index += move
            self._means.clear()
            self._importance.clear()
        return move

    def state_dict(self) -> dict[str, np.ndarray]:
        """What `load_state_dict` needs; the level by its name, so that others may be added or removed around it."""
        return {
            "level": np.array(self.name),
            "means": np.array(self._means, dtype=np.float64),
            "importance": np.array(self._importance, dtype=np.float64),
        }

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Go on where `state` was saved; of a longer window the newest prompts are kept.

        Raises:
            InputError: the saved level is not among `names`.
        """
        level = str(state["level"])
        if level not in self.names:
            raise InputError(
                f"The checkpoint was saved at level {level!r}, which {FLAG} {','.join(self.names)} lacks; add it, or begin a new curriculum with --curriculum_reset true."
            )
        self.index = self.names.index(level)
        self._means = deque(state["means"].tolist(), maxlen=self.window)
        self._importance = deque(state["importance"].tolist(), maxlen=self.window)
