"""How accuracy depends on where the gold passage stood: among the row's candidates, and among the passages that its prompt showed."""

from collections.abc import Sequence

from rich.table import Table

SETTINGS = ("normal", "shuffled_passages")  # those that show what was retrieved
ABSENT = "absent"
SHOWN_SINGLY = 5  # places with a column of their own in the table; the others share one


def by_gold(records: Sequence[dict]) -> dict[str, dict]:
    """Of one split and setting, over the rows whose gold passage is known; {} where no row shows passages.

    Returns:
        gold_rank: {"1", "2", ..., "absent": {"n", "accuracy"}} by the first gold passage's rank among the row's first candidate list. gold_position: likewise by its place in the prompt.
        Accuracies are means over rows (of lenient answers), `n` the rows that are scored.
        recall: {"1", "2", ...: share of the rows that have a gold passage among the first k shown}, up to the most that a row shows.
    """
    records = [record for record in records if record["gold_position"] is not None]
    most = max((len(record["passages"]) for record in records), default=0)
    if not most:
        return {}
    recall = {
        str(k): sum(1 <= record["gold_position"] <= k for record in records) / len(records) for k in range(1, most + 1)
    }
    return {"gold_rank": _by_place(records, "gold_rank"), "gold_position": _by_place(records, "gold_position")} | {
        "recall": recall
    }


def _by_place(records: Sequence[dict], name: str) -> dict[str, dict]:
    scored: dict[int, list[float]] = {}
    for record in records:
        if record[name] is not None and record["correct_lenient"] is not None:
            scored.setdefault(record[name], []).append(record["correct_lenient"])
    order = sorted(scored, key=lambda place: (place == 0, place))
    return {
        str(place) if place else ABSENT: {"n": len(scored[place]), "accuracy": sum(scored[place]) / len(scored[place])}
        for place in order
    }


def rank_table(summary: dict) -> Table | None:
    """The figures of `by_gold` in a summary, for the terminal; None if it has none. Cells are accuracies in per cent with the numbers of rows."""
    lines = []
    for split, scores in summary["splits"].items():
        for setting, measures in scores["settings"].items():
            if "recall" in measures:
                lines += [[split, setting, *line] for line in _lines(measures)]
    if not lines:
        return None
    title = "Accuracy (rows) by the place of the first gold passage, and recall of what is shown"
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
    heads = ["split", "setting", "place", *map(str, range(1, SHOWN_SINGLY + 1)), f"{SHOWN_SINGLY + 1}+", ABSENT]
    filled = [i for i in range(len(heads)) if any(line[i] for line in lines)]
    for i in filled:
        table.add_column(heads[i], justify="left" if i < 3 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[i] for i in filled))
    return table


def _lines(measures: dict) -> list[list[str]]:
    """Of one split and setting: a name and a cell for each column of places."""
    recall = [f"{100 * share:.1f}" for share in measures["recall"].values()]
    single, last = recall[:SHOWN_SINGLY], recall[SHOWN_SINGLY:][-1:]
    return [
        ["among candidates", *_cells(measures["gold_rank"])],
        ["as shown", *_cells(measures["gold_position"])],
        ["recall", *single, *[""] * (SHOWN_SINGLY - len(single)), *(last or [""]), ""],
    ]


def _cells(places: dict[str, dict]) -> list[str]:
    single = [places.get(str(place)) for place in range(1, SHOWN_SINGLY + 1)]
    further = [part for place, part in places.items() if place != ABSENT and int(place) > SHOWN_SINGLY]
    return [_cell(part) for part in (*single, _together(further), places.get(ABSENT))]


def _together(parts: list[dict]) -> dict | None:
    """Several places as one."""
    n = sum(part["n"] for part in parts)
    return {"n": n, "accuracy": sum(part["accuracy"] * part["n"] for part in parts) / n} if parts else None


def _cell(part: dict | None) -> str:
    return "" if part is None else f"{100 * part['accuracy']:.1f} ({part['n']:,})"
