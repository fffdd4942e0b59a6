"""The end of an evaluation: all ranks' records in one file, scores of them, and what is printed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement

from ..data.aside import write_json
from ..data.jsonl import Rows
from ..data.samples import Sample
from ..knowledge.base import KnowledgeBase
from ..prompting import Prompting
from ..rewards.judge import Judge
from . import predict, rollouts
from .baselines import baselines
from .official import guard_lines, official_scores, official_table, write_official_predictions
from .published import OURS, Conditions, comparison_lines, comparisons, joined, measured_conditions
from .ranks import rank_table
from .records import PREDICTIONS, ROLLOUTS, Job, merge, write_records
from .shown import prompts_hash
from .summary import score_table, summarise

SUSPECTS = "suspect_labels.jsonl"
UNLIMITED = 10_000  # columns in which a table may say how many it needs: rather broken lines than cut figures


def conclude(
    folder: Path,
    rows: Rows,
    jobs: list[Job],
    rollout_jobs: list[Job],
    prompting: Prompting,
    *,
    temperature: float,
    training: Iterable[Sample] | None,
    image_folders: Sequence[str],
    conditions: tuple[Conditions, dict],
    judge: Judge | None,
) -> dict:
    """Merges, scores, writes and prints; returns the summary. Every job is answered by now.

    Args:
        jobs, rollout_jobs: of predictions.jsonl and rollouts.jsonl, in their order.
        temperature: of the rollouts.
        training, image_folders: what `baselines` takes.
        conditions: of `read_conditions`.
    """
    # Each row is parsed once, though every setting asks it and the baselines go over them again.
    parsed = dict(zip(rows.ids, rows, strict=True))
    records, samples = merge(folder, jobs), [parsed[id] for _, id in jobs]
    sampled = merge(folder, rollout_jobs, ROLLOUTS) if rollout_jobs else []
    sampled_rows = [parsed[id] for _, id in rollout_jobs]
    if judge is not None:
        _ask_again(folder, records, samples, sampled, sampled_rows, judge)

    summary = summarise(records, seed=prompting.seed)
    summary["unanswered"] = sum(not parsed[id].answers for id in {id for _, id in jobs})
    normal = [record for record in records if record["setting"] == "normal"]
    wants_passages = prompting.kb is not None and prompting.level != "none"
    summary["without_passages"] = sum(not record["passages"] for record in normal) if wants_passages else 0
    of_rules = baselines(list(parsed.values()), prompting, training=training, image_folders=image_folders)
    for split, scores in of_rules.items():
        summary["splits"][split]["baselines"] = scores
    for split, scores in rollouts.summarise_rollouts(sampled).items():
        summary["splits"][split]["rollouts"] = scores | {"temperature": temperature}
    summary["official"] = official_scores(records, samples)
    summary["prompts"] = {
        setting: prompts_hash([record for record in records if record["setting"] == setting])
        for setting in dict.fromkeys(record["setting"] for record in records)
    } | {"all": prompts_hash(records)}
    summary["published"] = _beside_published(summary["official"], records, samples, prompting.kb, conditions)
    suspects = _write_suspects(folder, sampled, sampled_rows)
    write_official_predictions(folder, records, samples)
    write_json(folder / "summary.json", summary, indent=2)
    _show(summary, suspects, len(sampled[0]["texts"]) if sampled else 0)
    return summary


def _ask_again(
    folder: Path,
    records: list[dict],
    samples: list[Sample],
    sampled: list[dict],
    sampled_rows: list[Sample],
    judge: Judge,
) -> None:
    without = predict.judge_again(records, samples, judge) + rollouts.judge_again(sampled, sampled_rows, judge)
    write_records(folder / f"{PREDICTIONS}.jsonl", records)
    if sampled:
        write_records(folder / f"{ROLLOUTS}.jsonl", sampled)
    if without:
        answers = len(records) + sum(len(record["texts"]) for record in sampled)
        print(
            f"WARNING: the judge gave no verdict on {without:,} of {answers:,} answers ({dict(judge.failures)}); they count as not scored. Start the same command again to ask once more.",
            flush=True,
        )


def _beside_published(
    official: dict, records: list[dict], samples: list[Sample], kb: KnowledgeBase | None, conditions: tuple
) -> dict:
    stated, of_published = conditions
    articles = None if kb is None else len(kb)
    normal = [pair for pair in zip(records, samples, strict=True) if pair[0]["setting"] == "normal"]
    ours = {}
    for benchmark in official.get("normal", {}):
        its = [pair for pair in normal if pair[1].reward_method == benchmark and pair[1].answers]
        known = measured_conditions(benchmark, [row for _, row in its], articles, [record for record, _ in its])
        ours[benchmark] = joined(known, stated, OURS)
    return comparisons(official.get("normal", {}), ours, of_published)


def _write_suspects(folder: Path, sampled: list[dict], sampled_rows: list[Sample]) -> list[dict] | None:
    """The suspect rows, written to SUSPECTS; None without enough rollouts, where no row can be one and the file of another evaluation goes."""
    if not sampled or len(sampled[0]["texts"]) < rollouts.LEAST_ROLLOUTS:
        (folder / SUSPECTS).unlink(missing_ok=True)
        return None
    suspects = rollouts.suspect_labels(sampled, sampled_rows)
    write_records(folder / SUSPECTS, suspects)
    return suspects


def _show(summary: dict, suspects: list[dict] | None, number: int) -> None:
    """Prints the tables. `number` of rollouts a row; 0 without any."""
    console = Console()
    tables = [score_table(summary), official_table(summary["official"]), rank_table(summary)]
    for table in filter(None, tables):
        console.width = max(
            console.width, Measurement.get(console, console.options.update(width=UNLIMITED), table).maximum
        )
        console.print(table, markup=False)
    lines = []
    if summary["unanswered"]:
        has = "1 row has" if summary["unanswered"] == 1 else f"{summary['unanswered']:,} rows have"
        lines.append(
            f"{has} no reference answer: answered, not scored; the answers are in official_predictions.<setting>.jsonl"
        )
    if summary["without_passages"]:
        lines.append(
            f"WARNING: {summary['without_passages']:,} rows were shown no passage under normal, since they name none; kivqa retrieve finds candidates"
        )
    lines += [*guard_lines(summary), *comparison_lines(summary["published"])]
    if suspects is not None:
        least = f"{rollouts.LEAST_SHARE:.0%} of {number} rollouts agree on an answer that scores 0"
        lines.append(f"rows with suspect references ({least}): {len(suspects):,}, in {SUSPECTS}")
    elif number:
        lines.append(f"suspect references are looked for from --rollouts {rollouts.LEAST_ROLLOUTS} on")
    print("\n".join(lines), end="\n" if lines else "", flush=True)
