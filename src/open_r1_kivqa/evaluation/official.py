"""What the benchmarks' own scripts would report: the official figures of InfoSeek, Encyclopedic-VQA and ViQuAE, their prediction files, and where the rewards' guards judge otherwise.

The official figures count questions. Where a question stands in several rows with a picture each (same `data_id`), its first row counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from ..benchmarks import evqa, infoseek, viquae
from ..data.samples import Sample
from ..errors import InputError
from ..rewards.official import OFFICIAL
from .records import write_records

FORMS = ("lenient", "strict")
EXAMPLES = 5  # ids named for each kind of difference
EXACT_ONLY = "exact match only, no BEM"
JUDGES = {"infoseek": "official rule", "evqa": EXACT_ONLY, "viquae": "official rule"}

Pair = tuple[dict, Sample]  # a record and its row


def official_scores(records: Sequence[dict], samples: Sequence[Sample]) -> dict[str, dict[str, dict]]:
    """{setting: {benchmark: figures}} for the rows with references whose method is one of `rewards.official.OFFICIAL`; {} without such rows.

    Args:
        samples: the records' rows, in their order.

    Returns:
        Of each benchmark "judge", "questions" and "rows" (how many), and under "lenient" and "strict" the figures as `benchmarks.<name>.summarise` gives them, in per cent, each from
        the answers read so. Where rows are more than questions, "lenient_all_rows" counts every picture. Rows that the benchmark's rule or table doesn't take are in "left_out".
    """
    scores: dict[str, dict[str, dict]] = {}
    for (setting, method), pairs in _groups(records, samples).items():
        pairs = [pair for pair in pairs if pair[1].answers]
        if method in OFFICIAL and pairs:
            scores.setdefault(setting, {})[method] = _scores(method, pairs)
    return scores


def _scores(method: str, pairs: list[Pair]) -> dict:
    taken = [pair for pair in pairs if pair[0]["correct_lenient"] is not None and _type(method, pair[1]) is not None]
    first = _first_of_each_question(taken)
    scores = {"judge": JUDGES[method], "questions": len(first), "rows": len(taken), "left_out": len(pairs) - len(taken)}
    scores |= {form: _summary(method, first, form) for form in FORMS}
    if len(taken) > len(first):
        scores["lenient_all_rows"] = _summary(method, taken, "lenient")
    return scores


def _summary(method: str, pairs: list[Pair], form: str) -> dict:
    correct = f"correct_{form}"
    if method == "infoseek":
        return infoseek.summarise([(row.split, _type(method, row), record[correct]) for record, row in pairs])
    if method == "evqa":
        return evqa.summarise([(_type(method, row), record[correct]) for record, row in pairs])
    words = [viquae.f1(record[f"answer_{form}"] or "", row.answers) for record, row in pairs]
    return viquae.summarise([(record[correct], f1) for (record, _), f1 in zip(pairs, words, strict=True)])


def _type(method: str, sample: Sample) -> str | None:
    """The official question type of a row. InfoSeek's shows in the form of the answers as well; None for a row of Encyclopedic-VQA's rule that names none of its types."""
    if method == "infoseek":
        kind = sample.question_type.capitalize()
        return kind if kind in infoseek.QUESTION_TYPES else "Numerical" if _is_range(sample) else "String"
    if method == "evqa":
        return sample.question_type if sample.question_type in evqa.QUESTION_TYPES else None
    return ""


def _is_range(sample: Sample) -> bool:
    return isinstance(sample.answers, dict)


def figures(method: str, summary: dict) -> list[tuple[str, float | None, int]]:
    """A benchmark's `summarise` as lines: (name, score in per cent or None, questions), the figures that papers quote first."""
    if method == "viquae":
        return [(name, summary[name], summary["count"]) for name in ("exact_match", "f1")]
    if method == "evqa":
        parts = {"single_hop": summary["single_hop"], "all": summary["all"], **summary["types"]}
        return [(name, part["score"], part["count"]) for name, part in parts.items()]
    splits = [(name, part["score"], part["count"]) for name, part in summary["splits"].items()]
    means = [(name, summary[key], summary["count"]) for name, key in (("harmonic_mean", "score"), ("mean", "mean"))]
    return [*splits, *means, *((name, part["score"], part["count"]) for name, part in summary["types"].items())]


def guard_differences(records: Sequence[dict]) -> dict[str, dict[str, dict]]:
    """Verdicts in which the official rule and training's guarded reward differ, of one split and setting; {} where no row has both.

    Returns:
        For "lenient" and "strict" each {"official_only": right by the official rule alone, "guarded_only": by the reward alone}, as {"count", "ids" (up to EXAMPLES)}.
    """
    both = [record for record in records if record.get("guarded_lenient") is not None]
    if not both:
        return {}
    differences = {}
    for form in FORMS:
        pairs = [(record["id"], record[f"correct_{form}"], record[f"guarded_{form}"]) for record in both]
        kinds = {
            "official_only": [id for id, official, guarded in pairs if official > guarded],
            "guarded_only": [id for id, official, guarded in pairs if official < guarded],
        }
        differences[form] = {kind: {"count": len(ids), "ids": ids[:EXAMPLES]} for kind, ids in kinds.items()}
    return differences


def official_table(scores: Mapping[str, dict[str, dict]]) -> Table | None:
    """The figures of `official_scores` for the terminal, in per cent; None if there are none. Figures of no question are left out."""
    table = Table(title="Official scores", title_justify="left", title_style="", box=None, pad_edge=False)
    for column in ("benchmark", "setting", "figure", "questions", "lenient", "strict", "judge"):
        right = column in ("questions", "lenient", "strict")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for setting, benchmarks in scores.items():
        for method, part in benchmarks.items():
            strict = {name: score for name, score, _ in figures(method, part["strict"])}
            for name, score, count in figures(method, part["lenient"]):
                if count:
                    cells = ["-" if value is None else f"{value:.2f}" for value in (score, strict[name])]
                    table.add_row(method, setting, name, f"{count:,}", *cells, part["judge"])
    return table if table.row_count else None


def guard_lines(summary: dict) -> list[str]:
    """Where the two differ in a summary, for the terminal."""
    lines = []
    for split, scores in summary["splits"].items():
        for setting, measures in scores["settings"].items():
            for kind, part in measures.get("guard", {}).get("lenient", {}).items():
                if part["count"]:
                    judge = "the official rule" if kind == "official_only" else "training's reward"
                    ids = ", ".join(part["ids"]) + (", ..." if part["count"] > len(part["ids"]) else "")
                    lines.append(f"{split}, {setting}: right by {judge} alone: {part['count']:,} ({ids})")
    return lines


def write_official_predictions(folder: Path, records: Sequence[dict], samples: Sequence[Sample]) -> list[Path]:
    """Writes official_predictions.<setting>.jsonl, as the benchmarks' scripts and `kivqa score` read it: a line {"data_id", "prediction"} for each question, the lenient answer of its first
    row, "" where there is none. Rows of several methods go to a file for each, official_predictions.<setting>.<method>.jsonl: the ids of two benchmarks may be the same.

    Args:
        samples: the records' rows, in their order. A row without `data_id` goes by its id.

    Returns:
        The files' paths. Those of an earlier evaluation in the folder are gone.
    """
    groups = _groups(records, samples)
    several = len({method for _, method in groups}) > 1
    paths = []
    for (setting, method), pairs in groups.items():
        path = folder / f"official_predictions.{setting}{f'.{method}' if several else ''}.jsonl"
        lines = [
            {"data_id": data_id(sample), "prediction": record["answer_lenient"] or ""}
            for record, sample in _first_of_each_question(pairs)
        ]
        write_records(path, lines)
        paths.append(path)
    for path in set(folder.glob("official_predictions.*.jsonl")) - set(paths):
        path.unlink()
    return paths


def refuse_shared_ids(rows: Iterable[Sample]) -> None:
    """InputError if rows with one official method share a `data_id` and don't ask the same, as the csv rows of two splits: their questions would count as one."""
    asked: dict[tuple[str, str], tuple[tuple, str]] = {}
    for sample in rows:
        if sample.reward_method in OFFICIAL:
            question = (sample.question, sample.answers, sample.question_type)
            first, source = asked.setdefault((sample.reward_method, str(data_id(sample))), (question, sample.source))
            if first != question:
                raise InputError(
                    f"{source} and {sample.source} have the same data_id {data_id(sample)!r} but not the same question and answers: official scores would take them for one question. Evaluate them one by one, with --splits or file by file."
                )


def _groups(records: Sequence[dict], samples: Sequence[Sample]) -> dict[tuple[str, str], list[Pair]]:
    """Records with their rows, by (setting, method)."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for record, sample in zip(records, samples, strict=True):
        groups.setdefault((record["setting"], sample.reward_method), []).append((record, sample))
    return groups


def _first_of_each_question(pairs: list[Pair]) -> list[Pair]:
    first: dict[str, Pair] = {}
    for pair in pairs:
        first.setdefault(str(data_id(pair[1])), pair)
    return list(first.values())


def data_id(sample: Sample) -> str | int:
    """What the benchmark calls the row's question; the row's own id where it says nothing."""
    return sample.row.get("data_id", sample.id)
