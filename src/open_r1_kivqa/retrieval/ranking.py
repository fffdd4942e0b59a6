"""From a question's articles to its passages: s = λV + (1−λ)T (Wiki-R1), V of the article's picture, T of the section."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..knowledge.base import KnowledgeBase
from .sections import section_text


@dataclass(frozen=True)
class Pool:
    """The sections of a question's A articles.

    Attributes:
        articles: A keys, best V first.
        visual: (A,) V of each article.
        keys: of the S sections, "article#section", article by article and within each in its order.
        texts: (S) what a scorer reads of each.
        owners: (S,) place of each section's article in `articles`.
    """

    articles: list[str]
    visual: np.ndarray
    keys: list[str]
    texts: list[str] = field(repr=False)
    owners: np.ndarray


def gather(kb: KnowledgeBase, articles: Sequence[str], visual: Sequence[float]) -> Pool:
    """The sections of these articles but those without a word of text; `InputError` if the knowledge base lacks an article."""
    keys, texts, owners = [], [], []
    for place, key in enumerate(articles):
        for passage in kb.passages(key):
            if passage.text.strip():
                keys.append(passage.key)
                texts.append(section_text(passage.section, passage.text))
                owners.append(place)
    return Pool(list(articles), np.asarray(visual, dtype=np.float64), keys, texts, np.asarray(owners, dtype=np.int64))


def rank(
    pool: Pool, text: np.ndarray, *, weight: float, sections_per_article: int, top_k: int
) -> tuple[list[str], list[float]]:
    """The best passages and their s, best first.

    Of equal s the one of the article whose key sorts first goes first, within an article the earlier section. λ = 1 is the picture's order alone, with each article's first sections;
    λ = 0 the texts' alone.

    Args:
        text: (S,) T of the pool's sections.
        weight: λ, in [0, 1].
        sections_per_article: most passages of one article.
        top_k: most passages in all.
    """
    scores = weight * pool.visual[pool.owners] + (1 - weight) * np.asarray(text, dtype=np.float64)
    by_key = np.argsort(np.argsort(np.array(pool.articles, dtype=object), kind="stable"), kind="stable")
    order = np.lexsort((np.arange(len(scores)), by_key[pool.owners], -scores))
    kept = order[_place_within(pool.owners[order]) < sections_per_article][:top_k]
    return [pool.keys[i] for i in kept], scores[kept].tolist()


def merge_images(found: Sequence[tuple[list[str], list[float]]], k: int) -> tuple[list[str], list[float]]:
    """The k best articles of a question with several images: an article counts with the image that it fits best; ties by key.

    Args:
        found: for each image its k best articles and their V. The result is exact: an article outside an image's k best cannot be among the k best by that image's V.
    """
    best: dict[str, float] = {}
    for keys, scores in found:
        for key, score in zip(keys, scores, strict=True):
            best[key] = max(score, best.get(key, score))
    chosen = sorted(best, key=lambda key: (-best[key], key))[:k]
    return chosen, [best[key] for key in chosen]


def _place_within(groups: np.ndarray) -> np.ndarray:
    """How many earlier entries are of the same group."""
    order = np.argsort(groups, kind="stable")
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(starts, counts)
    return places
