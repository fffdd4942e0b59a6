"""What the curriculum tells of itself: sums over the groups since the last log, as metrics."""

from collections import Counter
from collections.abc import Sequence

import numpy as np


class Tally:
    """Sums since `metrics` was last called. A group's figures count on the signal unless named otherwise; groups without any observation are left out of them.

    Args:
        strata: names under which draws are counted, by code; () to count them together.
    """

    def __init__(self, strata: Sequence[str] = ()):
        self.strata = strata
        self.reset()

    def reset(self) -> None:
        self.groups = self.scored = self.truncated = self.rollouts = 0
        self.shares = Counter()  # groups that are all 0, all 1, mixed, without advantage on the signal or in total
        self.success = {True: [0.0, 0], False: [0.0, 0]}  # hit or miss: sum of the groups' means, groups
        self.draws = np.zeros(len(self.strata), dtype=np.int64)
        self.drawn = self.exploration = self.lag = 0

    def add(self, values: np.ndarray, teaches: np.ndarray, hit: np.ndarray, truncated: np.ndarray) -> None:
        """Counts P groups.

        Args:
            values: (P, G) signal in [0, 1]; NaN where there is none.
            teaches: (P,) bool, whether the total reward gives the group a non-zero advantage.
            hit: (P,) whether the prompt showed the evidence. truncated: (P,) rollouts that reached the length limit.
        """
        self.groups += len(values)
        self.rollouts += values.size
        self.truncated += int(truncated.sum())
        self.shares["total"] += int((~teaches).sum())
        for group, shown in zip(values, hit.tolist(), strict=True):
            group = group[~np.isnan(group)]
            if not len(group):
                continue
            self.scored += 1
            self.shares["signal"] += spread(group) == 0
            self.shares["all_0"] += group.max() == 0
            self.shares["all_1"] += group.min() == 1
            self.success[shown][0] += group.mean()
            self.success[shown][1] += 1

    def add_draw(self, codes: np.ndarray, exploration: int, lag: int) -> None:
        """Counts a draw: the strata (P,) of its rows, how many were exploration, and how many draws the weights were behind."""
        if self.strata:
            self.draws += np.bincount(codes, minlength=len(self.strata))
        self.drawn += len(codes)
        self.exploration += exploration
        self.lag = max(self.lag, lag)

    def metrics(self) -> dict[str, float]:
        """Shares and means since the last call; nothing of what was not seen."""
        found = {}
        if self.groups:
            found["zero_advantage_total"] = self.shares["total"] / self.groups
            found["truncated"] = self.truncated / self.rollouts
        if self.scored:
            flat = self.shares["all_0"] + self.shares["all_1"]
            found["zero_advantage_signal"] = self.shares["signal"] / self.scored
            found |= {name: self.shares[name] / self.scored for name in ("all_0", "all_1")}
            found["mixed"] = 1 - flat / self.scored
        for name, shown in (("hit_mean", True), ("miss_mean", False)):
            total, number = self.success[shown]
            if number:
                found[name] = total / number
        if self.drawn:
            found["exploration"] = self.exploration / self.drawn
            found["lag"] = float(self.lag)
            shares = (self.draws / self.drawn).tolist()
            found |= {f"draws/{name}": share for name, share in zip(self.strata, shares, strict=True)}
        self.reset()
        return found


def spread(group: np.ndarray) -> float:
    """Largest minus smallest number of a group, NaN left out; 0 if none is left."""
    group = group[~np.isnan(group)]
    return float(group.max() - group.min()) if len(group) else 0.0
