"""The curriculum of a run: draws rows, takes in what came of them, moves the level and the weights.

    batch = curriculum.draw(prompts)            # rank 0; the other ranks get it from there
    curriculum.observe(step, batch, ...)        # every rank, once the rewards are gathered
    curriculum.end_step(step)                   # every rank, after the optimizer step
    curriculum.save(path), curriculum.load(path)

Only the rank that leads (rank 0) estimates and draws; on the others nothing but the level moves, by the same observations. So ranks cannot drift apart by the last bit of a sum.
"""

import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..data.aside import written_aside
from ..errors import InputError
from .arguments import CurriculumArguments
from .difficulty import Difficulty
from .draws import Drawer
from .estimate import ESTIMATORS, WEIGHTINGS, Estimate, PosteriorEstimator
from .forecasts import ForecastScores
from .graph import UNREADABLE, SampleGraph
from .levels import Levels
from .propagation import Propagator
from .shown import Shown
from .tally import Tally

STATE_FILE = "curriculum.npz"  # in a checkpoint
FORMAT = 1  # of a saved state
FEW = 0.2  # effective share of the rows below which the weights are worth a warning
MANY_STRATA = 12  # more are not logged one by one


@dataclass(frozen=True)
class Batch:
    """One draw of P rows.

    Attributes:
        rows: (P,) int64, distinct. importance: (P,) draw probability over uniform's. exploration: (P,) whether drawn uniformly.
        forecast: (P,) success share that was expected. level: what the prompts show. number: of the draw, from 0.
    """

    rows: np.ndarray
    importance: np.ndarray
    exploration: np.ndarray
    forecast: np.ndarray
    level: str
    number: int


class Curriculum:
    """See the module.

    Args:
        ids, hashes: (N,) of the training rows; they name a row in a saved state.
        shown: what each level shows of each row.
        levels: the levels and the window.
        settings: the flags.
        group_size: completions a prompt.
        graph: of these rows in this order; None to propagate nothing.
        leads: False on all ranks but rank 0.

    Raises:
        InputError: the window is larger than the data, or all weights are zero.
    """

    def __init__(
        self,
        ids: list[str],
        hashes: np.ndarray,
        shown: Shown,
        levels: Levels,
        settings: CurriculumArguments,
        *,
        group_size: int,
        seed: int,
        graph: SampleGraph | None = None,
        leads: bool = True,
    ):
        self.ids, self.hashes, self.shown, self.levels, self.settings = ids, hashes, shown, levels, settings
        self.leads = leads
        size = len(ids)
        if len(levels.names) > 1 and levels.window > size:
            raise InputError(
                f"--curriculum_window {levels.window} is larger than the data, {size} rows: lower it, so that promotion does not wait for samples seen twice."
            )
        kinds = len(shown.question_type_names)
        self.drawer = Drawer(
            size,
            seed,
            settings.curriculum_exploration,
            settings.most_draws(),
            {"none": None, "file": shown.files, "question_type": shown.question_types}[settings.curriculum_balance],
        )
        self.difficulty = Difficulty(size, settings.curriculum_half_life)
        self.estimator = ESTIMATORS[settings.curriculum_estimate](
            size,
            group_size,
            shown.files.astype(np.int64) * kinds + shown.question_types,
            Propagator(graph) if graph is not None else None,
            alpha=settings.prop_alpha,
            iterations=settings.prop_iterations,
            epsilon=settings.prop_epsilon,
        )
        self.scores = ForecastScores()
        self.strata, names = self._strata_to_log()
        self.tally = Tally(names)
        self.drawn_since_update = 0
        self.estimate: Estimate | None = None
        if leads:
            self._reweight(0)

    @property
    def level(self) -> str:
        """What prompts show from now on."""
        return self.levels.name

    def draw(self, count: int, without: np.ndarray | None = None) -> Batch:
        """The next `count` rows, all different and none of the rows `without`."""
        number = self.drawer.number
        draw = self.drawer.draw(count, without)
        self.tally.add_draw(self.strata[draw.rows], int(draw.exploration.sum()), self.drawn_since_update)
        self.drawn_since_update += 1
        forecast = self.estimate.mean[draw.rows]
        return Batch(draw.rows, draw.importance, draw.exploration, forecast, self.level, number)

    def observe(
        self,
        step: int,
        batch: Batch,
        values: np.ndarray,
        teaches: np.ndarray,
        hit: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Take in the groups of a draw.

        Args:
            step: optimizer steps made so far.
            values: (P, G) the signal of each rollout in [0, 1]; NaN is no observation.
            teaches: (P,) whether the total reward gives the group a non-zero advantage.
            hit: (P,) whether the prompt showed all evidence. truncated: (P,) rollouts cut at the length limit.
        """
        if batch.level == self.level:  # a rollout counts for the level that its prompt was built at
            scored = ~np.isnan(values).all(axis=1)
            self.levels.observe(np.nanmean(values[scored], axis=1), batch.importance[scored])
        if not self.leads:
            return
        level = self.levels.names.index(batch.level)
        self.estimator.record(batch.rows, hit, values)
        self.difficulty.observe(step, level, batch.rows, values, hit, truncated)
        self.scores.add(batch.forecast, values, batch.exploration)
        self.tally.add(values, teaches, hit, truncated)

    def end_step(self, step: int) -> int:
        """After an optimizer step, `step` made in all: promote or demote, and weigh anew. Returns by how much the level moved: 1, 0 or -1."""
        moved = self.levels.step()
        if self.leads:
            if moved:
                self.difficulty.carry(self.settings.curriculum_carry)
            self._reweight(step)
        return moved

    def _reweight(self, step: int) -> None:
        counts = self.difficulty.counts(step)
        self.estimate = self.estimator.update(counts, self.shown.hit_share[self.levels.index])
        weights = WEIGHTINGS[self.settings.curriculum_weighting](self.estimate, self.settings.curriculum_sigma)
        if not weights.any():
            if step == 0:
                raise InputError(
                    f"--curriculum_weighting {self.settings.curriculum_weighting} on --curriculum_estimate {self.settings.curriculum_estimate} gives every row the weight 0 "
                    "before anything is observed: use the gaussian weighting, or the estimate posterior."
                )
            weights = np.ones(len(weights))  # no row is expected to teach, so none is better than another
        self.drawer.set_weights(weights)
        self.drawn_since_update = 0

    # What a person sees

    def _strata_to_log(self) -> tuple[np.ndarray, list[str]]:
        """(N,) codes and the names under which draws are logged: by file, or by question type when that is balanced. No names if there is one alone, or too many."""
        if self.settings.curriculum_balance == "question_type":
            codes, names = self.shown.question_types, [name or "none" for name in self.shown.question_type_names]
        else:
            codes, names = self.shown.files, [Path(name).stem for name in self.shown.file_names]
            if len(set(names)) < len(names):
                names = list(self.shown.file_names)
        return codes, names if 1 < len(names) <= MANY_STRATA else []

    def metrics(self) -> dict[str, float]:
        """For the log of rank 0, since the last call: names begin with "curriculum/"."""
        found = {
            "level": float(self.levels.index),
            "window_raw": self.levels.raw_mean,
            "window_weighted": self.levels.weighted_mean,
            "effective_sample_size": self.drawer.effective_sample_size() / len(self.ids),
            "coverage": float(self.difficulty.observed.mean()),
            "forecast_mean": float(self.estimate.mean.mean()),
            "brier": self.scores.brier(),
            "auc": self.scores.auc(),
            "brier_exploration": self.scores.brier(True),
            "auc_exploration": self.scores.auc(True),
            **self._fitted(),
            **self.tally.metrics(),
        }
        return {f"curriculum/{name}": value for name, value in found.items() if value == value}  # without NaN

    def _fitted(self) -> dict[str, float]:
        if not isinstance(self.estimator, PosteriorEstimator):
            return {}
        return {"kappa": self.estimator.kappa, "omega": self.estimator.omega}

    def describe(self) -> str:
        """What the run begins with, in words."""
        lines = [
            f"Curriculum: levels {' -> '.join(self.levels.names)}, now at {self.level}; weighting {self.settings.curriculum_weighting} on the estimate {self.settings.curriculum_estimate}"
        ]
        few = [(name, int(n)) for name, n in zip(self.levels.names, self.shown.too_few, strict=True) if n]
        if few:
            told = ", ".join(f"{n} at level {name}" for name, n in few)
            lines.append(f"  rows with fewer passages than the level shows: {told} (of {len(self.ids)})")
        if self.shown.no_evidence and len(self.levels.names) > 1:
            lines.append(f"  rows without evidence, to which no passage can be forced: {self.shown.no_evidence}")
        balance = self.settings.curriculum_balance
        kinds = {"file": len(self.shown.file_names), "question_type": len(self.shown.question_type_names)}.get(balance)
        if kinds == 1:
            lines.append(
                f"  --curriculum_balance {balance} has nothing to balance: there is one {balance.replace('_', ' ')}"
            )
        return "\n".join(lines)

    def warning(self) -> str | None:
        """A sentence when the weights concentrate on few rows."""
        share = self.drawer.effective_sample_size() / len(self.ids)
        if share >= FEW:
            return None
        return (
            f"Curriculum: the weights are worth {share:.0%} of the rows (effective sample size), so the same few are drawn again and again. "
            f"Raise {'--curriculum_sigma or ' if self.settings.curriculum_weighting == 'gaussian' else ''}--curriculum_exploration."
        )

    # State

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything that the next draw depends on, by row (id, content hash)."""
        parts = {
            "levels": self.levels.state_dict(),
            "difficulty": self.difficulty.state_dict(),
            "estimator": self.estimator.state_dict(),
            "drawer": self.drawer.state_dict(),
            "scores": self.scores.state_dict(),
            "estimate": asdict(self.estimate),
        }
        state = {f"{part}/{name}": value for part, own in parts.items() for name, value in own.items()}
        return {"format": np.array(FORMAT), "ids": np.array(self.ids, dtype=str), "hashes": self.hashes, **state}

    def load_state_dict(self, state: dict[str, np.ndarray], source: str = "the saved curriculum") -> str:
        """Take a saved state over for the rows that are still there, by id and content.

        New rows start unobserved, changed ones anew. Another estimator than the saved one starts from the saved counts. Returns in words how many new rows there are; "" if all rows are known.

        Raises:
            InputError: fewer than half of the rows are known, the state is of another level list or format, or it is none.
        """
        self._refuse_foreign(state, source)
        places = {id: place for place, id in enumerate(state["ids"].tolist())}
        found = np.array([places.get(id, -1) for id in self.ids], dtype=np.int64)
        there = found >= 0
        same = there & (state["hashes"][found] == self.hashes)
        current, saved = np.flatnonzero(same), found[same]
        if 2 * len(current) < len(self.ids):
            raise InputError(
                f"{source} is of other data: it knows {len(current)} of the {len(self.ids)} rows, and fewer than half is too little to go on from. "
                "Give the data of its run, or begin a new curriculum with --curriculum_reset true."
            )
        own = {part: part_of(state, part) for part in ("levels", "difficulty", "estimator", "drawer", "scores")}
        self.levels.load_state_dict(own["levels"])
        self.difficulty.load_state_dict(own["difficulty"], current, saved)
        hit_share = self.shown.hit_share[self.levels.index]
        if self.estimator.state_dict().keys() == own["estimator"].keys():
            self.estimator.load_state_dict(own["estimator"], current, saved)
            self.estimate = self.estimator.estimate(hit_share)
        else:  # as of the last observation: from there to now all counts fade alike
            self.estimate = self.estimator.update(self.difficulty.counts(self.difficulty.last_step.max()), hit_share)
        self.drawer.load_state_dict(own["drawer"], current, saved)
        self.scores.load_state_dict(own["scores"])
        self.drawn_since_update = 0
        new, changed = int((~there).sum()), int((there & ~same).sum())
        gone = len(places) - int(there.sum())
        if not (new or changed or gone):
            return ""
        return f"Curriculum: {len(current)} of {len(self.ids)} rows are known from {source}; {new} are new, {changed} have changed and start anew, {gone} of its rows are gone."

    def _refuse_foreign(self, state: dict[str, np.ndarray], source: str) -> None:
        """InputError unless `state` has the format of this version and all that every saved state has."""
        parts = {"levels": self.levels, "difficulty": self.difficulty, "drawer": self.drawer, "scores": self.scores}
        wanted = ["format", "ids", "hashes"]
        wanted += [f"{part}/{name}" for part, own in parts.items() for name in own.state_dict()]
        missing = [name for name in wanted if name not in state]
        if missing:
            raise InputError(
                f"{source} is no state of a curriculum, since it lacks {missing[0]}: resume from another checkpoint, or begin a new curriculum with --curriculum_reset true."
            )
        if state["format"] != FORMAT:
            raise InputError(
                f"{source} has the format {state['format']}, and this version reads {FORMAT}: begin a new curriculum with --curriculum_reset true."
            )

    def save(self, path: Path) -> None:
        """Writes the state."""
        with written_aside(path, "wb") as file:
            np.savez_compressed(file, **self.state_dict())

    def load(self, path: Path) -> str:
        """`load_state_dict` of a file that `save` wrote; `InputError` if it is none."""
        return self.load_state_dict(read_state(path), str(path))


def read_state(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a saved state; `InputError` if the file is missing or damaged."""
    if not path.is_file():
        raise InputError(
            f"{path} is missing: the checkpoint is of a run without a curriculum. Begin one with --curriculum_reset true, or leave --curriculum out."
        )
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"{path} is damaged (it is no .npz file): resume from another checkpoint, or add --curriculum_reset true."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except UNREADABLE as error:
        raise InputError(
            f"{path} is damaged ({error}): resume from another checkpoint, or add --curriculum_reset true."
        ) from error


def part_of(state: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The entries of one part, under their own names."""
    return {name.removeprefix(f"{part}/"): value for name, value in state.items() if name.startswith(f"{part}/")}
