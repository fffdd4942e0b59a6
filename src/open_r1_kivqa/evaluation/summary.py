"""From records of predictions to scores: macro averages, bootstrap intervals, and the gain that the picture brings.

Every measure of a split and setting is a mean over question types of the mean over the rows of that type, so that frequent types don't drown rare ones. Rows whose value is None
(the scorer doesn't apply, or no knowledge base) don't count.

Intervals are 95 % percentile bootstraps over entities: questions about one entity share its picture and its articles, so they are drawn together. A row without an entity is
its own. The settings of a split share the draws, so a difference of two settings is paired.
"""

import math

import numpy as np
from rich.table import Table

from .boxes import box_measures
from .official import guard_differences
from .ranks import SETTINGS as RANKED
from .ranks import by_gold

MEASURES = {
    "accuracy": "correct_lenient",
    "accuracy_strict": "correct_strict",
    "format": "format",
    "pick": "pick",
    "copy": "copy",
}
SHOWN = {"accuracy_strict": "strict", "format": "format", "pick": "pick", "copy": "copy"}  # measure: column
SHOWN |= {"iou": "IoU", "AP": "AP", "AP50": "AP50", "AP_strict": "AP strict"}
ALWAYS_SHOWN = ("accuracy_strict", "format")
RESAMPLES = 1000


def summarise(records: list[dict], *, seed: int = 0, resamples: int = RESAMPLES) -> dict:
    """Scores of the records of `predict`, all settings together.

    Returns {"splits": {split: scores}}; rows without a split are in "all". Of the scores, "accuracy" (lenient extraction), "accuracy_strict", "format", "pick", "copy" (each in
    [0, 1], None where nothing counts), "n" (rows), "scored" (those with an accuracy), "entities", "interval" ([low, high] of the accuracy) and "question_types" ({type: accuracy}) are those of the setting
    `normal`; each other setting evaluated stands by its name with its accuracy; "settings" has the measures of each setting. "gain" is the accuracy under `normal` minus that
    under `wrong_image`, with "gain_interval".

    Under `normal` and `shuffled_passages` a setting also has what `ranks.by_gold` tells, and with rows of a benchmark's method "guard", see `official.guard_differences`.

    Where rows have one box as answer, "iou" is the mean IoU; where they have lists of boxes, "AP", "AP50" and "AP_strict" are those of `box_measures`, over all rows at once.
    """
    splits: dict[str, dict[str, list[dict]]] = {}
    for record in records:
        splits.setdefault(record["split"] or "all", {}).setdefault(record["setting"], []).append(record)
    return {"splits": {split: _summarise_split(splits[split], seed, resamples) for split in sorted(splits)}}


def _summarise_split(by_setting: dict[str, list[dict]], seed: int, resamples: int) -> dict:
    entities = sorted({_cluster(record) for records in by_setting.values() for record in records})
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(len(entities), np.full(len(entities), 1 / len(entities)), size=resamples)
    settings, drawn = {}, {}
    for setting, records in by_setting.items():
        measures = {name: macro_average(records, key) for name, key in MEASURES.items()}
        one_box = [record for record in records if "iou" in record]
        measures |= {"iou": macro_average(one_box, "iou")} if one_box else {}
        measures |= box_measures(records)
        measures |= by_gold(records) if setting in RANKED else {}
        guard = guard_differences(records)
        measures |= {"guard": guard} if guard else {}
        sums, counts = _tally(records, "correct_lenient", entities)
        drawn[setting] = macro(draws @ sums, draws @ counts)
        settings[setting] = measures | {
            "n": len(records),
            "scored": sum(record["correct_lenient"] is not None for record in records),
            "entities": len({_cluster(record) for record in records}),
            "interval": _interval(drawn[setting]),
        }
    scores = dict(settings.get("normal", {}))
    scores |= {name: measures["accuracy"] for name, measures in settings.items() if name != "normal"}
    if "normal" in settings:
        types = sorted({record["question_type"] or "" for record in by_setting["normal"]})
        scores["question_types"] = {
            name: macro_average(
                [r for r in by_setting["normal"] if (r["question_type"] or "") == name], "correct_lenient"
            )
            for name in types
        }
        if scores["accuracy"] is not None and scores.get("wrong_image") is not None:
            scores["gain"] = scores["accuracy"] - scores["wrong_image"]
            scores["gain_interval"] = _interval(drawn["normal"] - drawn["wrong_image"])
    return scores | {"settings": settings}


def macro(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[..., types] sums and counts of values to their [...] mean over types of the mean in a type. Types with count 0 are left out; nan if all are."""
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    types = (counts > 0).sum(axis=-1)
    return np.divide(means.sum(axis=-1), types, out=np.full(types.shape, np.nan), where=types > 0)


def _cluster(record: dict) -> tuple[str, str]:
    """What the bootstrap draws: the row's entity, or the row itself if it names none."""
    return ("entity", record["entity"]) if record["entity"] else ("row", record["id"])


def _tally(records: list[dict], key: str, clusters: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of the values under `key`, both [clusters, question types]; None doesn't count."""
    row = {cluster: i for i, cluster in enumerate(clusters)}
    column = {name: i for i, name in enumerate(sorted({record["question_type"] or "" for record in records}))}
    sums, counts = np.zeros((2, len(row), len(column)))
    for record in records:
        if record[key] is not None:
            at = row[_cluster(record)], column[record["question_type"] or ""]
            sums[at] += record[key]
            counts[at] += 1
    return sums, counts


def macro_average(records: list[dict], key: str) -> float | None:
    """Mean over question types of the mean of the records' values under `key`; None if all are None."""
    sums, counts = _tally(records, key, sorted({_cluster(record) for record in records}))
    average = float(macro(sums.sum(axis=0), counts.sum(axis=0)))
    return None if math.isnan(average) else average


def _interval(drawn: np.ndarray) -> list[float] | None:
    """The 2.5th and 97.5th percentile of bootstrap draws; draws in which nothing counts are left out."""
    drawn = drawn[~np.isnan(drawn)]
    return [float(bound) for bound in np.percentile(drawn, [2.5, 97.5])] if drawn.size else None


def score_table(summary: dict) -> Table:
    """The summary for the terminal: a line for each split and setting, then the gain and the baselines of the split. Figures are percentages."""
    title = "Accuracy (lenient, mean over question types), 95 % interval"
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
    every = [measures for scores in summary["splits"].values() for measures in scores["settings"].values()]
    shown = [name for name in SHOWN if name in ALWAYS_SHOWN or any(one.get(name) is not None for one in every)]
    for column in ("split", "setting", "rows", "accuracy", "", *(SHOWN[name] for name in shown)):
        table.add_column(column, justify="left" if column in ("split", "setting") else "right", no_wrap=True)
    for split, scores in summary["splits"].items():
        for setting, measures in scores["settings"].items():
            figures = [_percent(measures.get(name)) for name in shown]
            accuracy, interval = _percent(measures["accuracy"]), _percents(measures["interval"])
            rows, scored = measures["n"], measures["scored"]
            count = f"{rows:,}" if scored == rows else f"{scored:,} of {rows:,}"
            table.add_row(split, setting, count, accuracy, interval, *figures)
        if "gain" in scores:
            gain, interval = _percent(scores["gain"]), _percents(scores["gain_interval"])
            table.add_row(split, "normal - wrong_image", "", gain, interval)
        if "rollouts" in scores:
            sampled = scores["rollouts"]
            for name in ("avg", "pass"):
                table.add_row(split, f"{name}@{sampled['rollouts']}", str(sampled["rows"]), _percent(sampled[name]))
        for rule, accuracy in scores.get("baselines", {}).items():
            if accuracy is not None:
                table.add_row(split, f"rule: {rule}", "", _percent(accuracy))
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{round(100 * share, 1) + 0.0:.1f}"  # + 0.0: not "-0.0"


def _percents(interval: list[float] | None) -> str:
    return "-" if interval is None else f"[{' '.join(_percent(bound) for bound in interval)}]"
