"""How often retrieval finds what answers a question: recall@k of articles and passages, by split."""

from collections.abc import Iterable, Mapping, Sequence

CUTS = (1, 5, 10, 20)
NO_SPLIT = "(no split)"
ALL = "all"

# kind of recall: what the table calls it
KINDS = {
    "pictures": "article, by picture alone",
    "article": "article of the first k passages",
    "passage": "passage",
    "passage_all": "every passage, where a question needs several",
    "weak": "passage, weak evidence",
}


def judge(
    *,
    split: str,
    entity: str | None,
    evidence: Sequence[str],
    weak: bool,
    articles: Sequence[str] | None,
    passages: Sequence[str],
) -> dict:
    """Where a question's gold stands, as plain values for `Recall.add`.

    Args:
        entity: key of the article asked about; None: unknown, then the articles of `evidence` count.
        evidence: keys of the passages that hold the answer; () if unknown.
        weak: whether `evidence` is a guess (`evidence_source` "weak"), which is counted apart.
        articles: keys as the pictures alone order them, best first; None where passages were given without.
        passages: keys, best first.

    Returns:
        {"split": text, kind: rank}, ranks from 1 on, 0: not found. A kind is left out where the gold is unknown. "passage" is the rank of the first gold passage, "passage_all" of
        the last, only for questions with several.
    """
    gold = {entity} if entity is not None else {key.rpartition("#")[0] for key in evidence}
    record: dict = {"split": split}
    if gold:
        if articles is not None:
            record["pictures"] = _first(articles, gold)
        record["article"] = _first([key.rpartition("#")[0] for key in passages], gold)
    if evidence:
        record["weak" if weak else "passage"] = _first(passages, set(evidence))
        if len(evidence) > 1 and not weak:
            ranks = [_first(passages, {key}) for key in evidence]
            record["passage_all"] = max(ranks) if all(ranks) else 0
    return record


class Recall:
    """Counts of records.

    Args:
        depths: how many articles and passages are looked at, {"pictures": n, ...}; no figure is given for a larger k.
    """

    def __init__(self, depths: Mapping[str, int]):
        self._depths = dict(depths)
        self._counts: dict[str, dict[str, dict]] = {kind: {} for kind in KINDS}

    def add(self, record: Mapping) -> None:
        """One question's, of `judge`."""
        for kind in KINDS:
            if kind not in record:
                continue
            for group in (record["split"] or NO_SPLIT, ALL):
                counts = self._counts[kind].setdefault(group, {"questions": 0, **{k: 0 for k in self._cuts(kind)}})
                counts["questions"] += 1
                for k in self._cuts(kind):
                    counts[k] += 0 < record[kind] <= k

    def to_json(self) -> dict:
        """{kind: {split: {"questions": n, "R@1": share in %, ...}}}, "all" over all splits."""
        return {
            kind: {
                group: {
                    "questions": counts["questions"],
                    **{f"R@{k}": round(100 * counts[k] / counts["questions"], 2) for k in self._cuts(kind)},
                }
                for group, counts in self._groups(kind)
            }
            for kind in KINDS
            if self._counts[kind]
        }

    def lines(self) -> list[str]:
        """The same as a table."""
        groups = {group for kind in KINDS for group in self._counts[kind]}
        if not groups:
            return ["No row names its article or evidence, so there is no recall to count."]
        width = max(11, *(len(group) + 2 for group in groups))
        lines = [f"{'recall in %':{width}}{'questions':>10}" + "".join(f"{f'@{k}':>8}" for k in CUTS)]
        for kind, title in KINDS.items():
            if not self._counts[kind]:
                continue
            lines.append(title)
            for group, counts in self._groups(kind):
                if group == ALL and len(self._counts[kind]) == 2:
                    continue  # the same as its only split
                cells = (f"{100 * counts[k] / counts['questions']:8.1f}" if k in counts else f"{'-':>8}" for k in CUTS)
                lines.append(f"  {group:{width - 2}}{counts['questions']:10,}" + "".join(cells))
        return lines

    def at(self, kind: str, k: int) -> float | None:
        """One figure over all splits, in %; None if it was not counted."""
        counts = self._counts[kind].get(ALL, {})
        return 100 * counts[k] / counts["questions"] if k in counts else None

    def _cuts(self, kind: str) -> Iterable[int]:
        return [k for k in CUTS if k <= self._depths[kind]]

    def _groups(self, kind: str) -> list[tuple[str, dict]]:
        """Splits by name, "all" last."""
        return sorted(self._counts[kind].items(), key=lambda pair: (pair[0] == ALL, pair[0]))


def _first(found: Sequence[str], gold: set[str]) -> int:
    """Rank of the first gold key, from 1 on; 0 if there is none."""
    return next((place for place, key in enumerate(found, 1) if key in gold), 0)
