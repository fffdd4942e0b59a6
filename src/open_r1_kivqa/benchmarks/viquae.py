"""ViQuAE's official rules (Lerner et al. 2022; PaulLerner/ViQuAE, `meerqat/train/metrics.py`): SQuAD's exact match and F1, the best over a question's aliases."""

from collections import Counter
from collections.abc import Iterable, Sequence

from .infoseek import normalise  # both are SQuAD's: lower case, no ASCII punctuation, no articles, single spaces

__all__ = ["exact_match", "f1", "normalise", "summarise"]


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the prediction equals an alias after `normalise`, else 0.0. Two texts of which nothing is left are equal; so no alias, no match."""
    return float(normalise(prediction) in {normalise(answer) for answer in answers})


def f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of the words, each as often as it comes, over all aliases; in [0, 1]. Of two texts of which nothing is left it is 0, though they match exactly."""
    given = Counter(normalise(prediction).split())
    return max((_f1(given, Counter(normalise(answer).split())) for answer in answers), default=0.0)


def summarise(rows: Iterable[tuple[float, float]]) -> dict:
    """Means in per cent, None of no question.

    Args:
        rows: (exact match, F1) of each question.

    Returns:
        exact_match, f1, count.
    """
    rows = list(rows)
    exact, words = (100 * sum(row[i] for row in rows) / len(rows) if rows else None for i in range(2))
    return {"exact_match": exact, "f1": words, "count": len(rows)}


def _f1(given: Counter, reference: Counter) -> float:
    common = (given & reference).total()
    return 2 * common / (given.total() + reference.total()) if common else 0.0
