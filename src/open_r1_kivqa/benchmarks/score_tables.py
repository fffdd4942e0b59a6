"""The scores of `kivqa score` as tables for the terminal. Figures are per cent."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

LEAST_WIDTH = 120  # rather broken lines than cut figures


def show(result: dict) -> None:
    """Prints what was scored, how, and the scores."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, LEAST_WIDTH)
    coverage = result["coverage"]
    share = 100 * coverage["answered"] / coverage["questions"]
    lines = [
        result["benchmark"],
        f"rule: {result['rule']}",
        f"judge: {result['judge']}",
        f"counting: {result['counting']}",
        f"coverage: {share:.2f} %, {coverage['answered']:,} of {coverage['questions']:,} questions have a prediction",
        *(f"{name.replace('_', ' ')}: {file['path']}" for name, files in result["files"].items() for file in files),
    ]
    console.print("\n".join(lines), markup=False)
    for table in TABLES[result["benchmark"]](result["scores"]):
        console.print()
        console.print(table)


def infoseek(scores: dict) -> list[Table]:
    """Split by question type, then both means."""
    kinds = list(scores["types"])
    table = _table("split", "questions", *kinds, "all")
    for name, part in [*scores["splits"].items(), ("all questions (mean)", scores | {"score": scores["mean"]})]:
        cells = (_percent(part["types"][kind]["score"]) for kind in kinds)
        table.add_row(name, f"{part['count']:,}", *cells, _percent(part["score"]))
    table.add_row("Score (harmonic mean of the splits, official)", "", *("" for _ in kinds), _percent(scores["score"]))
    return [table]


def evqa(scores: dict) -> list[Table]:
    """By question type, single-hop, all; how much of each score is exact match, and how much the judge's."""
    table = _table("question type", "questions", "score", "by exact match", "by the judge")
    for name, part in [*scores["types"].items(), ("single-hop", scores["single_hop"]), ("all", scores["all"])]:
        by_judge = None if part["score"] is None else part["score"] - part["exact"]
        figures = (part["score"], part["exact"], by_judge if "judged" in scores else None)
        table.add_row(name, f"{part['count']:,}", *map(_percent, figures))
    return [table]


def viquae(scores: dict) -> list[Table]:
    """The two figures."""
    table = _table("", "questions", "exact match", "F1")
    table.add_row("all", f"{scores['count']:,}", _percent(scores["exact_match"]), _percent(scores["f1"]))
    return [table]


def rows(scores: dict) -> list[Table]:
    """By split, then by question type within each."""
    splits = _table("split", "rows", "mean over rows", "mean over question types")
    for name, part in scores["splits"].items():
        splits.add_row(name, f"{part['count']:,}", _percent(part["mean"]), _percent(part["macro"]))
    for prefix, part in scores["harmonic"].items():
        name = f"harmonic mean of {prefix}unseen_question and {prefix}unseen_entity"
        splits.add_row(name, "", _percent(part["mean"]), _percent(part["macro"]))
    kinds = sorted({kind for part in scores["splits"].values() for kind in part["types"]})
    if set(kinds) <= {""}:  # none is named, or no row has a verdict
        return [splits]
    types = _table("question type", *(f"{name} (rows)" for name in scores["splits"]))
    for kind in kinds:
        found = (part["types"].get(kind) for part in scores["splits"].values())
        types.add_row(kind or "none given", *(f"{_percent(one['score'])} ({one['count']:,})" if one else "-" for one in found))  # fmt: skip
    return [splits, types]


TABLES: dict[str, Callable[[dict], list[Table]]] = {
    "InfoSeek": infoseek,
    "Encyclopedic-VQA": evqa,
    "ViQuAE": viquae,
    "rows": rows,
}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2f}"
