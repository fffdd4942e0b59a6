"""A row's candidates: its articles, their sections scored for its question, the best passages; and what is counted of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..data.samples import Sample
from ..knowledge.base import KnowledgeBase
from .ranking import gather, rank
from .recall import CUTS, Recall, judge
from .sections import SectionScorer
from .sources import NO_IMAGE, NO_LIST, NO_VECTOR, IndexSource, ListSource, same_picture
from .topk import Retrieved


@dataclass(frozen=True)
class Settings:
    """weight: λ. articles: looked at for a question. sections_per_article, top_k: passages kept. other_weights: λs whose recall is counted too."""

    weight: float
    articles: int
    sections_per_article: int
    top_k: int
    other_weights: tuple[float, ...] = ()


class Retriever:
    """Makes candidates for rows.

    Args:
        source: of the articles.
        folders: where the articles' pictures may lie.
    """

    def __init__(
        self,
        kb: KnowledgeBase,
        source: IndexSource | ListSource,
        scorer: SectionScorer,
        settings: Settings,
        folders: Sequence[str],
    ):
        self._kb, self._source, self._scorer, self._settings = kb, source, scorer, settings
        self._folders = folders

    def answer(self, samples: Sequence[Sample]) -> Iterator[tuple[dict, dict]]:
        """For each row the row with its `candidates` (those that it had are replaced, or removed where none are found), and its record for `Tally.add`."""
        for sample, found in zip(samples, self._source.find(samples), strict=True):
            record: dict = {"replaced": "candidates" in sample.row}
            if isinstance(found, str):
                record["without"], found = found, Retrieved()
            elif isinstance(self._source, IndexSource):
                record["same_picture"] = same_picture(sample, found, self._kb, self._folders)
            passages, other = self._passages(sample, found)
            record["empty"] = not passages
            record["unknown"] = self._unknown(sample)
            record["recall"] = self._judge(sample, found, passages)
            record["others"] = [self._judge(sample, found, keys) for keys in other]
            row = {**sample.row, "candidates": passages}
            if not passages:
                del row["candidates"]
            yield row, record

    def _passages(self, sample: Sample, found: Retrieved) -> tuple[list[str], list[list[str]]]:
        """The best passages with λ, and those with each of the other weights."""
        settings = self._settings
        if not found.articles:
            keys = list(found.passages[: settings.top_k])
            return keys, [keys] * len(settings.other_weights)
        pool = gather(self._kb, found.articles, found.visual)
        text = self._scorer.scores(sample.question, pool.texts, pool.owners.tolist())
        limits = {"sections_per_article": settings.sections_per_article, "top_k": settings.top_k}
        best, *other = (
            rank(pool, text, weight=weight, **limits)[0] for weight in (settings.weight, *settings.other_weights)
        )
        return best, other

    def _judge(self, sample: Sample, found: Retrieved, passages: list[str]) -> dict:
        return judge(
            split=sample.split,
            entity=sample.entity,
            evidence=sample.evidence,
            weak=sample.weak_evidence,
            articles=None if found.passages else found.articles,
            passages=passages,
        )

    def _unknown(self, sample: Sample) -> bool:
        """Whether the row's gold is not in the knowledge base, so that it can't be found."""
        keys = sample.evidence or ((sample.entity,) if sample.entity is not None else ())
        return any(key not in self._kb for key in keys)


class Tally:
    """What was counted over all rows.

    Args:
        depth: most passages of a row.
        articles: most articles of a row.
    """

    def __init__(self, settings: Settings, depth: int, articles: int):
        depths = {"pictures": articles, **dict.fromkeys(("article", "passage", "passage_all", "weak"), depth)}
        self._settings = settings
        self.recall = Recall(depths)
        self._others = [Recall(depths) for _ in settings.other_weights]
        self._counts = dict.fromkeys(
            (
                "rows",
                "with_candidates",
                "no_image",
                "no_query_vector",
                "no_list",
                "nothing_found",
                "replaced",
                "gold_not_in_knowledge_base",
                "same_picture_own",
                "same_picture_other",
            ),
            0,
        )

    def add(self, records: Iterable[dict]) -> None:
        """Records of `Retriever.answer`."""
        reasons = {NO_IMAGE: "no_image", NO_VECTOR: "no_query_vector", NO_LIST: "no_list"}
        for record in records:
            counts = self._counts
            counts["rows"] += 1
            counts["with_candidates"] += not record["empty"]
            if "without" in record:
                counts[reasons[record["without"]]] += 1
            elif record["empty"]:
                counts["nothing_found"] += 1
            counts["replaced"] += record["replaced"]
            counts["gold_not_in_knowledge_base"] += record["unknown"]
            if record.get("same_picture"):
                counts[f"same_picture_{record['same_picture']}"] += 1
            self.recall.add(record["recall"])
            for recall, other in zip(self._others, record["others"], strict=True):
                recall.add(other)

    def to_json(self) -> dict:
        """Counts and recall as plain values."""
        result = {"counts": self._counts, "recall": self.recall.to_json()}
        if self._others:
            weights = map(str, self._settings.other_weights)
            result["recall_at_other_weights"] = dict(
                zip(weights, (recall.to_json() for recall in self._others), strict=True)
            )
        return result

    @property
    def with_candidates(self) -> int:
        """Rows that have some."""
        return self._counts["with_candidates"]

    def lines(self) -> list[str]:
        """The same for the terminal."""
        return [*self.reasons(), "", *self.recall.lines(), *self._weight_lines()]

    def reasons(self) -> list[str]:
        """How many rows have candidates, and what is odd about the others."""
        counts = self._counts
        said = {
            "no_image": "without an image, which get no candidates",
            "no_query_vector": "without a query vector, which get no candidates",
            "no_list": "that the lists do not name, which get no candidates",
            "nothing_found": "for which no passage was found",
            "replaced": "whose candidates from before are replaced",
            "gold_not_in_knowledge_base": "whose article or evidence is not in the knowledge base, so can't be found",
            "same_picture_own": "whose image is, byte by byte, a picture of the article asked about: retrieval is easier for these than for new images; leave that picture out of the index",
            "same_picture_other": "whose image is, byte by byte, a picture of another article",
        }
        lines = [f"{counts['with_candidates']:,} of {counts['rows']:,} rows have candidates."]
        return [*lines, *(f"{counts[name]:,} rows {text}." for name, text in said.items() if counts[name])]

    def _weight_lines(self) -> list[str]:
        if not self._others:
            return []
        weights = [(self._settings.weight, self.recall), *zip(self._settings.other_weights, self._others, strict=True)]
        kinds = [kind for kind in ("article", "passage", "weak") if self.recall.at(kind, 1) is not None]
        lines = ["", f"{'λ':>8}" + "".join(f"{f'{kind} @{k}':>13}" for kind in kinds for k in CUTS[:2])]
        for weight, recall in sorted(weights, key=lambda pair: -pair[0]):
            figures = [recall.at(kind, k) for kind in kinds for k in CUTS[:2]]
            lines.append(
                f"{weight:8g}" + "".join(f"{'-' if figure is None else f'{figure:.1f}':>13}" for figure in figures)
            )
        return lines
