"""What the curriculum tells of itself: sums over the groups since the last log, as metrics."""

from collections import Counter

import numpy as np


class Tally:
    """Sums since `metrics` was last called. A group's figures count on the signal unless named otherwise; groups without any observation are left out of them."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.groups = self.scored = self.truncated = self.rollouts = 0
        self.shares = Counter()  # groups that are all 0, all 1, mixed, without advantage on the signal or in total
        self.success = {True: [0.0, 0], False: [0.0, 0]}  # hit or miss: sum of the groups' means, groups
        self.strata = Counter()
        self.exploration = self.lag = 0

    def add(self, values: np.ndarray, totals: np.ndarray, hit: np.ndarray, truncated: np.ndarray) -> None:
        """Counts P groups.

        Args:
            values, totals: (P, G) signal in [0, 1] and total reward; NaN where there is none.
            hit: (P,) whether the prompt showed the evidence. truncated: (P,) rollouts that reached the length limit.
        """
        self.groups += len(values)
        self.rollouts += values.size
        self.truncated += int(truncated.sum())
        self.shares["total"] += sum(spread(group) == 0 for group in totals)
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

    def add_draw(self, strata: list[str], exploration: int, lag: int) -> None:
        """Counts a draw: the names of its rows' strata, how many were exploration, and how many draws the weights were behind."""
        self.strata.update(strata)
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
        drawn = sum(self.strata.values())
        if drawn:
            found["exploration"] = self.exploration / drawn
            found["lag"] = float(self.lag)
            if len(self.strata) > 1:
                found |= {f"draws/{name}": number / drawn for name, number in sorted(self.strata.items())}
        self.reset()
        return found


def spread(group: np.ndarray) -> float:
    """Largest minus smallest number of a group, NaN left out; 0 if none is left."""
    group = group[~np.isnan(group)]
    return float(group.max() - group.min()) if len(group) else 0.0
