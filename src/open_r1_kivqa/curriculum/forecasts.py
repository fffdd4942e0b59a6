"""How good the forecasts were: each is kept with what then came of its group."""

import numpy as np

KEPT = 512  # groups
FIELDS = ("forecast", "successes", "errors", "rollouts", "exploration")  # errors: sum of (forecast − value)²


class ForecastScores:
    """Scores over the last `KEPT` groups, each forecast before it was generated.

    Groups drawn uniformly (exploration) tell how good the forecasts are over all rows; the others were chosen by the forecasts themselves.
    """

    def __init__(self):
        self._groups = {name: np.zeros(0) for name in FIELDS}

    def add(self, forecast: np.ndarray, values: np.ndarray, exploration: np.ndarray) -> None:
        """Append groups; those without any value are left out.

        Args:
            forecast: (P,) success share that was expected, in [0, 1].
            values: (P, G) signals in [0, 1]; NaN is no value.
            exploration: (P,) bool, drawn uniformly.
        """
        rollouts = np.count_nonzero(~np.isnan(values), axis=1)
        errors = np.nansum(np.square(forecast[:, None] - values), axis=1)
        columns = (forecast, np.nansum(values, axis=1), errors, rollouts, exploration)
        for name, column in zip(FIELDS, columns, strict=True):
            added = np.asarray(column, dtype=np.float64)[rollouts > 0]
            self._groups[name] = np.concatenate([self._groups[name], added])[-KEPT:]

    def brier(self, exploration: bool | None = None) -> float:
        """Mean over rollouts of (forecast − value)², in [0, 1]; nan without any.

        Args:
            exploration: of exploration draws alone (True), of draws by weight alone (False), of all (None).
        """
        _, _, errors, rollouts = self._chosen(exploration)
        return float(errors.sum() / rollouts.sum()) if len(rollouts) else float("nan")

    def auc(self, exploration: bool | None = None) -> float:
        """Chance that a success had a higher forecast than a failure, ties half; nan unless there are both.

        A value v between 0 and 1 counts as v successes and 1 − v failures.

        Args:
            exploration: as for `brier`.
        """
        forecast, successes, _, rollouts = self._chosen(exploration)
        _, place = np.unique(forecast, return_inverse=True)
        success, failure = np.bincount(place, successes), np.bincount(place, rollouts - successes)
        if not (success.any() and failure.any()):
            return float("nan")
        lower = np.cumsum(failure) - failure
        return float((success * (lower + failure / 2)).sum() / (success.sum() * failure.sum()))

    def _chosen(self, exploration: bool | None) -> tuple[np.ndarray, ...]:
        """(forecast, successes, errors, rollouts) of the groups asked for."""
        *columns, explored = self._groups.values()
        return tuple(column if exploration is None else column[explored == exploration] for column in columns)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The kept groups, oldest first."""
        return dict(self._groups)

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state_dict` gave."""
        self._groups = {name: state[name] for name in FIELDS}
