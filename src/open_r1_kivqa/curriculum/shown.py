"""What the levels would show of each row: whether the evidence is among it, and whether there are enough passages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.jsonl import Rows


@dataclass(frozen=True)
class Shown:
    """Facts about N rows at some levels, as `knowledge.context.choose_passages` would show them in training.

    Attributes:
        hit_share: (levels, N) float32 in [0, 1], share of a row's candidate sets with which the level shows all its evidence; 1 for a row without evidence.
        too_few: (levels,) int64, rows that have too few passages for what the level asks, with at least one of their candidate sets. A number asks for so many, evidence included; "retrieved" for
            `num_passages` candidates; the others ask for none.
        no_evidence: rows without evidence.
        files: (N,) int32, place of the row's file in `file_names`.
        file_names: paths in order of first appearance.
        question_types: (N,) int32, place of the row's question type in `question_type_names`.
        question_type_names: in order of first appearance; "" stands for none.
    """

    hit_share: np.ndarray
    too_few: np.ndarray
    no_evidence: int
    files: np.ndarray
    file_names: tuple[str, ...]
    question_types: np.ndarray
    question_type_names: tuple[str, ...]


def look(rows: Rows, levels: Sequence[str], num_passages: int, knowledge_base: bool = True) -> Shown:
    """Read every row once; no knowledge base is opened.

    Args:
        levels: as for `choose_passages`.
        num_passages: at least 1.
        knowledge_base: False when training has none: no passage is ever shown, so none can lack; every hit share is 1.

    Raises:
        InputError: a row that cannot be used.
    """
    size = len(rows)
    evidence = np.zeros(size, dtype=bool)
    retrieved = np.ones(size, dtype=np.float32)  # share of sets whose first candidates hold all evidence
    shortest = np.zeros(size, dtype=np.int64)  # fewest candidates in a set
    fewest = np.zeros(size, dtype=np.int64)  # fewest passages in a set and the evidence together
    files, question_types = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
    file_names: dict[str, int] = {}
    question_type_names: dict[str, int] = {}
    for i, sample in enumerate(rows):
        gold = set(sample.evidence)
        sets = sample.candidates or ((),)
        evidence[i] = bool(gold)
        retrieved[i] = sum(gold.issubset(keys[:num_passages]) for keys in sets) / len(sets)
        shortest[i] = min(map(len, sets))
        fewest[i] = min(len(gold.union(keys)) for keys in sets)
        files[i] = file_names.setdefault(sample.source.rpartition(":")[0], len(file_names))
        question_types[i] = question_type_names.setdefault(sample.question_type, len(question_type_names))

    hit_share = np.ones((len(levels), size), dtype=np.float32)
    too_few = np.zeros(len(levels), dtype=np.int64)
    for share, (number, level) in zip(hit_share, enumerate(levels if knowledge_base else ()), strict=False):
        if level == "retrieved":
            share[:] = retrieved
            too_few[number] = np.count_nonzero(shortest < num_passages)
        elif level in ("gold_removed", "none"):
            share[evidence] = 0
        elif level != "gold":
            too_few[number] = np.count_nonzero(fewest < int(level))
    return Shown(
        hit_share=hit_share,
        too_few=too_few,
        no_evidence=int(size - np.count_nonzero(evidence)),
        files=files,
        file_names=tuple(file_names),
        question_types=question_types,
        question_type_names=tuple(question_type_names),
    )


def unread(size: int, levels: int) -> Shown:
    """What stands in for `look` on a rank that draws and estimates nothing: no row is read, which for a million takes a minute."""
    none = np.zeros(size, dtype=np.int32)
    return Shown(
        hit_share=np.broadcast_to(np.float32(1), (levels, size)),
        too_few=np.zeros(levels, dtype=np.int64),
        no_evidence=0,
        files=none,
        file_names=("",),
        question_types=none,
        question_type_names=("",),
    )
