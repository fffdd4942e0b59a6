"""Which estimate forecasts best? Replays a training run's observations through several: `python bench/estimators.py --observations
OUTPUT_DIR/curriculum/observations.jsonl --graph graph.npz --data_file_paths rows.jsonl`.

Before the groups of a step are taken in, every estimator's forecast of them is kept (prequential: no estimator has seen what it is
scored on). Forecasts are of a rollout's success:
  global     mean over all rollouts so far          stratum   mean over the sample's file and question type, drawn to the global one
  nearest    mean over the ten heaviest neighbours in the graph that were observed, the sample itself before all; global if there is none
  paper      the published propagation              posterior  the default of --curriculum_estimate
  recorded   what the run itself had forecast: near to `posterior` if it used that
All see the same decayed counts. Scores, by rollout: log-loss in nats (forecasts clipped to [0.001, 0.999]), Brier, and AUC:
  exploration  groups drawn uniformly: how good forecasts are over all samples
  curriculum   groups drawn by weight: these were chosen by one of the forecasts, mostly near 1/2
  probe        rollouts made only to judge, of samples drawn uniformly (bench/probe_run.py); no estimator ever sees them
  hidden       all groups but probes, forecast without any observation of a sample of the same entity: entities are hidden fold after fold
Prints a table, and as its last line one JSON object:
  groups, rollouts   how many, by part
  scores             [part][estimator][log_loss, brier or auc]; null where there is none: AUC without a success and a failure
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.curriculum.difficulty import Counts, Difficulty
from open_r1_kivqa.curriculum.estimate import ESTIMATORS, PRIOR_ROLLOUTS
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.curriculum.propagation import Propagator
from open_r1_kivqa.curriculum.shown import look
from open_r1_kivqa.data.jsonl import Rows, split_paths

NEAREST = 10
CLIP = 1e-3
DEFAULTS = CurriculumArguments()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", required=True, type=Path, help="observations.jsonl of a run")
    parser.add_argument("--graph", required=True, help="made by `kivqa graph` of the run's rows")
    parser.add_argument("--data_file_paths", required=True, help="the run's rows, files separated by ':'")
    parser.add_argument("--num_passages", type=int, default=5, help="what level `retrieved` shows")
    parser.add_argument("--half_life", type=float, default=DEFAULTS.curriculum_half_life, help="optimizer steps")
    parser.add_argument("--carry", type=float, default=DEFAULTS.curriculum_carry, help="kept when the level moves")
    parser.add_argument("--folds", type=int, default=5, help="parts of the entities that are hidden in turn")
    arguments = parser.parse_args()

    rows = Rows.open(split_paths(arguments.data_file_paths), [os.sep], None)  # any image path lies in it
    groups = read_groups(arguments.observations, rows)
    graph = SampleGraph.load(arguments.graph).for_rows(rows.ids, rows.hashes, arguments.graph)
    # Without a knowledge base every prompt counts as a hit.
    shown = look(rows, groups.levels, arguments.num_passages, knowledge_base=not groups.hit.all())
    data = Data(
        graph=graph,
        strata=shown.files.astype(np.int64) * len(shown.question_type_names) + shown.question_types,
        entities=codes([sample.entity or f"\0{i}" for i, sample in enumerate(rows)]),
        hit_share=shown.hit_share,
    )
    report(judge(groups, data, arguments.half_life, arguments.carry, arguments.folds))


@dataclass
class Groups:
    """M recorded groups, in the order of the run."""

    levels: tuple[str, ...]  # in order of first appearance
    step: np.ndarray  # (M,) optimizer steps made before
    draw: np.ndarray  # (M,) number of the draw
    row: np.ndarray  # (M,)
    level: np.ndarray  # (M,) place in `levels`
    exploration: np.ndarray  # (M,) bool
    probe: np.ndarray  # (M,) bool, made only to judge
    hit: np.ndarray  # (M,) bool
    recorded: np.ndarray  # (M,) the run's own forecast
    values: np.ndarray  # (M, G), NaN where there was no observation


@dataclass
class Data:
    """What is known of N rows beside their observations."""

    graph: SampleGraph
    strata: np.ndarray  # (N,) int
    entities: np.ndarray  # (N,) int
    hit_share: np.ndarray  # (levels, N)


def read_groups(path: Path, rows: Rows) -> Groups:
    """The lines of an observations.jsonl; a row is found by its id."""
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    levels = tuple(dict.fromkeys(record["level"] for record in records))
    values = np.full((len(records), max(len(record["values"]) for record in records)), np.nan)
    for own, record in zip(values, records, strict=True):
        own[: len(record["values"])] = [np.nan if value is None else value for value in record["values"]]

    def column(name, dtype):
        return np.array([record[name] for record in records], dtype)

    return Groups(
        levels=levels,
        step=column("step", np.int64),
        draw=column("draw", np.int64),
        row=np.array([rows.index_of(record["id"]) for record in records]),
        level=np.array([levels.index(record["level"]) for record in records]),
        exploration=column("exploration", bool),
        probe=np.array([record.get("probe", False) for record in records]),
        hit=column("hit", bool),
        recorded=column("forecast", np.float64),
        values=values,
    )


class GlobalMean:
    """(S + ½) / (n + 1) of all rollouts, for every sample."""

    def __init__(self, data: Data, group_size: int):
        self.mean = np.full(len(data.strata), 0.5)

    def record(self, rows, hit, values) -> None:
        """Nothing is fitted."""

    def update(self, counts: Counts, hit_share: np.ndarray) -> None:
        self.mean[:] = (counts.s.sum() + 0.5) / (counts.n.sum() + 1)

    def forecast(self, rows: np.ndarray) -> np.ndarray:
        return self.mean[rows]


class StratumMean(GlobalMean):
    """Mean of a stratum's rollouts and `PRIOR_ROLLOUTS` of the global mean."""

    def __init__(self, data: Data, group_size: int):
        super().__init__(data, group_size)
        self.strata = data.strata

    def update(self, counts: Counts, hit_share: np.ndarray) -> None:
        super().update(counts, hit_share)
        n = np.bincount(self.strata, counts.n.sum(axis=0))
        s = np.bincount(self.strata, counts.s.sum(axis=0))
        self.mean = ((s + PRIOR_ROLLOUTS * self.mean[0]) / (n + PRIOR_ROLLOUTS))[self.strata]


class Nearest(GlobalMean):
    """Mean of the rollouts of a sample and its heaviest neighbours, `NEAREST` observed ones in all."""

    def __init__(self, data: Data, group_size: int):
        super().__init__(data, group_size)
        self.graph = data.graph

    def update(self, counts: Counts, hit_share: np.ndarray) -> None:
        super().update(counts, hit_share)
        self.n, self.s = counts.n.sum(axis=0), counts.s.sum(axis=0)

    def forecast(self, rows: np.ndarray) -> np.ndarray:
        means = self.mean[rows]
        for place, row in enumerate(rows):
            edges = slice(self.graph.indptr[row], self.graph.indptr[row + 1])
            order = np.argsort(-self.graph.weights[edges], kind="stable")
            near = np.concatenate([[row], self.graph.indices[edges][order]])
            near = near[self.n[near] > 0][:NEAREST]
            if len(near):
                means[place] = self.s[near].sum() / self.n[near].sum()
        return means


class OfTheCurriculum:
    """An estimator that training uses, with the default flags."""

    def __init__(self, name: str, data: Data, group_size: int):
        options = {"alpha": DEFAULTS.prop_alpha, "iterations": DEFAULTS.prop_iterations}
        self.inner = ESTIMATORS[name](
            len(data.strata), group_size, data.strata, Propagator(data.graph), **options, epsilon=DEFAULTS.prop_epsilon
        )
        self.record = self.inner.record

    def update(self, counts: Counts, hit_share: np.ndarray) -> None:
        self.mean = self.inner.update(counts, hit_share).mean

    def forecast(self, rows: np.ndarray) -> np.ndarray:
        return self.mean[rows]


FORECASTERS = {
    "global": GlobalMean,
    "stratum": StratumMean,
    "nearest": Nearest,
    "paper": lambda data, group_size: OfTheCurriculum("paper", data, group_size),
    "posterior": lambda data, group_size: OfTheCurriculum("posterior", data, group_size),
}


def replay(groups: Groups, data: Data, half_life: float, carry: float, hidden: np.ndarray | None = None) -> dict:
    """{estimator: (M,) forecast of each group, made before any group of its step was taken in}.

    Args:
        half_life, carry: as in training.
        hidden: (N,) bool, rows whose observations are kept from all estimators.
    """
    size, group_size = len(data.strata), groups.values.shape[1]
    difficulty = Difficulty(size, half_life)
    forecasters = {name: make(data, group_size) for name, make in FORECASTERS.items()}
    forecasts = {name: np.empty(len(groups.row)) for name in forecasters}
    level = int(groups.level[0])
    for step, members in in_order(groups.step, np.arange(len(groups.row))):
        if groups.level[members[0]] != level:
            level = int(groups.level[members[0]])
            difficulty.carry(carry)
        counts = difficulty.counts(step)
        for name, forecaster in forecasters.items():
            forecaster.update(counts, data.hit_share[level])
            forecasts[name][members] = forecaster.forecast(groups.row[members])
        for _, draw in in_order(groups.draw[members], members):
            if groups.probe[draw[0]]:
                continue
            seen = draw if hidden is None else draw[~hidden[groups.row[draw]]]
            taken = groups.row[seen], groups.values[seen], groups.hit[seen]
            for forecaster in forecasters.values():
                forecaster.record(groups.row[seen], groups.hit[seen], groups.values[seen])
            difficulty.observe(step, level, *taken, truncated=np.zeros(len(seen), np.int64))
    return forecasts


def replay_hidden(groups: Groups, data: Data, half_life: float, carry: float, folds: int) -> dict:
    """The same, but each group is forecast without any observation of its entity: entities fall into folds, hidden one at a time."""
    fold = np.random.default_rng(0).permutation(data.entities.max() + 1)[data.entities] % folds
    forecasts = {name: np.empty(len(groups.row)) for name in FORECASTERS}
    for number in range(folds):
        chosen = fold[groups.row] == number
        for name, values in replay(groups, data, half_life, carry, hidden=fold == number).items():
            forecasts[name][chosen] = values[chosen]
    return forecasts


def in_order(keys: np.ndarray, members: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(key, its members) for runs of equal keys, as they come."""
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    yield from zip(keys[starts].tolist(), np.split(members, starts[1:]), strict=True)


def scores(forecast: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Log-loss, Brier and AUC over the rollouts of M groups; nan where there are none, or for AUC without a success and a failure.

    A value v between 0 and 1 is v of a success and 1 − v of a failure.
    """
    seen = ~np.isnan(values)
    value, p = values[seen], np.broadcast_to(forecast[:, None], values.shape)[seen]
    if not len(value):
        return {"log_loss": np.nan, "brier": np.nan, "auc": np.nan}
    clipped = np.clip(p, CLIP, 1 - CLIP)
    both = value.sum() > 0 and (1 - value).sum() > 0
    truth, weight = np.repeat([1, 0], len(value)), np.concatenate([value, 1 - value])
    return {
        "log_loss": float(-(value * np.log(clipped) + (1 - value) * np.log(1 - clipped)).mean()),
        "brier": float(np.square(p - value).mean()),
        "auc": float(roc_auc_score(truth, np.tile(p, 2), sample_weight=weight)) if both else np.nan,
    }


def judge(groups: Groups, data: Data, half_life: float, carry: float, folds: int) -> dict:
    """{"groups": {part: number}, "rollouts": {part: number}, "scores": {part: {estimator: scores}}}"""
    known = replay(groups, data, half_life, carry) | {"recorded": groups.recorded}
    trained = ~groups.probe
    parts = {
        "exploration": (groups.exploration & trained, known),
        "curriculum": (~groups.exploration & trained, known),
        "probe": (groups.probe, known),
        "hidden": (trained, replay_hidden(groups, data, half_life, carry, folds)),
    }
    parts = {name: (chosen, forecasts) for name, (chosen, forecasts) in parts.items() if chosen.any()}
    return {
        "groups": {name: int(chosen.sum()) for name, (chosen, _) in parts.items()},
        "rollouts": {name: int((~np.isnan(groups.values[chosen])).sum()) for name, (chosen, _) in parts.items()},
        "scores": {
            name: {one: scores(forecast[chosen], groups.values[chosen]) for one, forecast in forecasts.items()}
            for name, (chosen, forecasts) in parts.items()
        },
    }


def report(found: dict) -> None:
    for part, by_estimator in found["scores"].items():
        print(f"\n{part}: {found['groups'][part]} groups, {found['rollouts'][part]} rollouts")
        print(f"  {'':12}{'log-loss':>10}{'Brier':>10}{'AUC':>10}")
        for name, own in by_estimator.items():
            print(f"  {name:12}{own['log_loss']:10.4f}{own['brier']:10.4f}{own['auc']:10.4f}")
    print()
    rounded = {
        part: {
            name: {score: None if value != value else round(value, 4) for score, value in own.items()}
            for name, own in by_estimator.items()
        }
        for part, by_estimator in found["scores"].items()
    }
    print(json.dumps(found | {"scores": rounded}))


def codes(names: list[str]) -> np.ndarray:
    """(N,) numbers from 0 on, equal for equal names"""
    return np.unique(np.array(names), return_inverse=True)[1]


if __name__ == "__main__":
    main()
