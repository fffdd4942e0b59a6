"""Published figures beside ours, where both were made under the same conditions; where not, or where nobody says, a line that says why not.

A figure depends on more than the model: who judges, which questions of which split, how many pictures of a question, how large the knowledge base is and what the retriever finds in it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import yaml

from ..data.samples import Sample
from ..errors import InputError
from .official import JUDGES, data_id, figures

OURS = "this evaluation"
RECALL_SLACK = 0.0005  # recalls are published in per cent with one decimal


@dataclass(frozen=True)
class Conditions:
    """What a figure was measured under; None for what is not known.

    Attributes:
        judge: as `official.JUDGES` names them; "BEM" for Encyclopedic-VQA's official one.
        split: the benchmark's, as "val" or "test".
        question_types: the official types that are asked, by name, separated by ",".
        images_per_question: most rows of one question, each with a picture.
        knowledge_base_articles: how many articles are searched.
        retriever: in words.
        recall_at, recall: how many passages are shown, and the share of rows that have a gold passage among them, in [0, 1].
    """

    judge: str | None = None
    split: str | None = None
    question_types: str | None = None
    images_per_question: int | None = None
    knowledge_base_articles: int | None = None
    retriever: str | None = None
    recall_at: int | None = None
    recall: float | None = None


KINDS = {name: get_args(hint)[0] for name, hint in get_type_hints(Conditions).items()}
WORDS = {str: "text", int: "whole number", float: "number"}


@dataclass(frozen=True)
class Published:
    """Figures of one system on one benchmark, in per cent, by the names that `official.figures` gives them."""

    system: str
    benchmark: str
    figures: Mapping[str, float]
    conditions: Conditions


# Wiki-R1 (arXiv 2603.05256, ICLR 2026): its table of results and its ablation of the 3B model; the others as that paper quotes them. Its InfoSeek figure over all questions fits a mean
# over questions, not the official harmonic mean. It states the retriever and recall at 1 and 20 passages, of which five are shown; so recall at five is not known.
FOUND_BY = "{} (image) + {} (text), {}"
WIKI_R1 = {
    "infoseek": Conditions(split="val", retriever=FOUND_BY.format("EVA-CLIP-8B", "ColBERTv2", 0.997)),
    "evqa": Conditions(retriever=FOUND_BY.format("EVA-CLIP-8B", "ColBERTv2", 0.985)),
}
ABLATION = {  # system: (EVQA all, InfoSeek all)
    "Wiki-R1 3B (untrained)": (18.8, 19.6),
    "Wiki-R1 3B (SFT only)": (25.1, 29.5),
    "Wiki-R1 3B (DAPO only)": (31.4, 41.5),
    "Wiki-R1 3B (data curriculum)": (34.5, 43.0),
    "Wiki-R1 3B (sampling without propagation)": (32.1, 40.0),
    "Wiki-R1 3B": (35.9, 42.2),
}
PUBLISHED = (
    Published("Wiki-R1 7B", "evqa", {"single_hop": 41.0, "all": 37.1}, WIKI_R1["evqa"]),
    Published(
        "Wiki-R1 7B", "infoseek", {"unseen_question": 47.8, "unseen_entity": 42.3, "mean": 44.1}, WIKI_R1["infoseek"]
    ),
    Published("ReflectiVA", "evqa", {"single_hop": 35.5, "all": 35.5}, Conditions()),
    Published(
        "ReflectiVA",
        "infoseek",
        {"unseen_question": 40.4, "unseen_entity": 39.8, "mean": 40.1},
        Conditions(split="val"),
    ),
    *(Published(system, "evqa", {"all": evqa}, WIKI_R1["evqa"]) for system, (evqa, _) in ABLATION.items()),
    *(Published(system, "infoseek", {"mean": both}, WIKI_R1["infoseek"]) for system, (_, both) in ABLATION.items()),
)


def measured_conditions(
    benchmark: str, samples: Sequence[Sample], knowledge_base_articles: int | None, records: Sequence[dict] = ()
) -> Conditions:
    """What can be seen of this evaluation's own conditions on a benchmark.

    Args:
        samples: the benchmark's rows. knowledge_base_articles: None without a knowledge base.
        records: of the rows under `normal`; without them nothing is known of the recall.
    """
    questions = Counter(str(data_id(sample)) for sample in samples)
    shown = max((len(record["passages"]) for record in records), default=0)
    known = [record["gold_position"] for record in records if record["gold_position"] is not None]
    recall = sum(place > 0 for place in known) / len(known) if known and shown else None
    return Conditions(
        judge=JUDGES[benchmark],
        question_types=",".join(sorted({sample.question_type for sample in samples if sample.question_type})) or None,
        images_per_question=max(questions.values(), default=None),
        knowledge_base_articles=knowledge_base_articles,
        recall_at=shown or None,
        recall=recall,
    )


def refuse_contradictions(
    samples: Iterable[Sample], knowledge_base_articles: int | None, stated: Conditions, of_published: Mapping
) -> None:
    """InputError where --conditions says other than what is seen of the rows and the knowledge base, or known of published figures; before anything is answered, so the recall is left for later."""
    rows: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.reward_method in JUDGES:
            rows.setdefault(sample.reward_method, []).append(sample)
    for benchmark, its_rows in rows.items():
        joined(measured_conditions(benchmark, its_rows, knowledge_base_articles), stated, OURS)
    for one in PUBLISHED:
        joined(one.conditions, of_published.get((one.system, one.benchmark), Conditions()), _name(one))


def read_conditions(path: str) -> tuple[Conditions, dict[tuple[str, str], Conditions]]:
    """The file of --conditions: what is stated of this evaluation (`ours`), and what is known of published ones ({(system, benchmark): conditions}).

    Raises:
        InputError: no yaml file of that shape, or it names a condition, a system or a benchmark that there isn't.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--conditions {path} cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--conditions {path} is not yaml: {' '.join(str(error).split())}") from error
    content = {} if content is None else content
    if not isinstance(content, dict) or set(content) - {"ours", "published"}:
        raise InputError(f"--conditions {path}: a mapping with `ours` and `published` is wanted.")
    known = {(one.system, one.benchmark) for one in PUBLISHED}
    published = {}
    for system, benchmarks in _mapping(content.get("published"), f"{path}: published").items():
        for benchmark, stated in _mapping(benchmarks, f"{path}: {system}").items():
            if (system, benchmark) not in known:
                raise InputError(
                    f"--conditions {path}: there is no published figure of {system!r} on {benchmark!r}; there are {'; '.join(' on '.join(pair) for pair in sorted(known))}."
                )
            published[system, benchmark] = _conditions(stated, f"{path}: {system} on {benchmark}")
    return _conditions(content.get("ours"), f"{path}: ours"), published


def _mapping(value, place: str) -> dict:
    if value is None or isinstance(value, dict):
        return value or {}
    raise InputError(f"--conditions {place}: a mapping is wanted, not {value!r}.")


def _conditions(stated, place: str) -> Conditions:
    stated = _mapping(stated, place)
    for name, value in stated.items():
        if name not in KINDS:
            raise InputError(f"--conditions {place}: {name!r} is no condition; there are {', '.join(KINDS)}.")
        kind = KINDS[name]
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise InputError(f"--conditions {place}: {name} is {value!r}; a {WORDS[kind]} is wanted.")
    return Conditions(**stated)


def joined(known: Conditions, stated: Conditions, who: str) -> Conditions:
    """Both together. InputError, which opens with `who`, where they say different things."""
    for name in KINDS:
        one, other = getattr(known, name), getattr(stated, name)
        if None not in (one, other) and not _same(name, one, other):
            raise InputError(f"--conditions: {who} has {name} {one!r}, not {other!r}: correct it or leave it out.")
    return replace(known, **{name: getattr(stated, name) for name in KINDS if getattr(known, name) is None})


def of_a_draw(ours: Conditions, rows: int) -> Conditions:
    """The conditions of an evaluation on so many rows drawn of a split: its figures stand beside none of the whole split."""
    return ours if ours.split is None else replace(ours, split=f"{ours.split} ({rows:,} rows drawn by --limit)")


def _name(published: Published) -> str:
    return f"{published.system} on {published.benchmark}"


def why_not(ours: Conditions, theirs: Conditions) -> str | None:
    """Why figures under these conditions cannot stand side by side; None if they can: every condition is known of both, and the same."""
    reasons = []
    for whose, conditions in (("theirs", theirs), ("ours", ours)):
        unknown = [_words(name) for name in KINDS if getattr(conditions, name) is None]
        reasons += [f"{whose} unknown: {', '.join(unknown)}"] if unknown else []
    for name in KINDS:
        one, other = getattr(ours, name), getattr(theirs, name)
        if None not in (one, other) and not _same(name, one, other):
            reasons.append(f"{_words(name)}: ours {one}, theirs {other}")
    return "; ".join(reasons) or None


def _same(name: str, one, other) -> bool:
    if name == "question_types":
        one, other = ({kind.strip() for kind in kinds.split(",")} for kinds in (one, other))
    return abs(one - other) <= RECALL_SLACK if name == "recall" else one == other


def _words(name: str) -> str:
    return name.replace("_", " ")


def comparisons(
    official: Mapping[str, dict],
    ours: Mapping[str, Conditions],
    stated: Mapping[tuple[str, str], Conditions],
    published: Sequence[Published] = PUBLISHED,
) -> dict[str, list]:
    """Published figures of the benchmarks evaluated, set beside ours where that is fair.

    Args:
        official: {benchmark: figures} of `official_scores` under `normal`.
        ours: this evaluation's conditions, by benchmark. stated: what --conditions says of published ones.

    Returns:
        comparable: [{"benchmark", "figure", "system", "published", "ours" (lenient answers, per cent)}].
        not_comparable: [{"benchmark", "systems", "reason"}], systems with the same reason together.

    Raises:
        InputError: --conditions contradicts what is known of a published figure.
    """
    comparable: list[dict] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in published:
        if one.benchmark not in official:
            continue
        more = stated.get((one.system, one.benchmark), Conditions())
        conditions = joined(one.conditions, more, _name(one))
        reason = why_not(ours[one.benchmark], conditions)
        if reason is not None:
            reasons.setdefault((one.benchmark, reason), []).append(one.system)
            continue
        scores = {name: score for name, score, _ in figures(one.benchmark, official[one.benchmark]["lenient"])}
        comparable += [
            {
                "benchmark": one.benchmark,
                "figure": name,
                "system": one.system,
                "published": value,
                "ours": scores[name],
            }
            for name, value in one.figures.items()
            if scores[name] is not None  # of a split or type that no row here is of
        ]
    not_comparable = [
        {"benchmark": benchmark, "systems": systems, "reason": reason}
        for (benchmark, reason), systems in reasons.items()
    ]
    return {"comparable": comparable, "not_comparable": not_comparable}


def comparison_lines(found: Mapping[str, list]) -> list[str]:
    """What `comparisons` found, for the terminal: a line for each published figure beside ours, and one for each reason why others are not."""
    lines = [
        f"{one['benchmark']} {one['figure']}: {one['ours']:.1f}, {one['system']} (published) {one['published']:.1f}"
        for one in found["comparable"]
    ]
    for one in found["not_comparable"]:
        lines.append(f"not comparable on {one['benchmark']}: {'; '.join(one['systems'])} ({one['reason']})")
    return lines
