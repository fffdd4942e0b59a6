"""What rules without a model score on the same rows, so that a model's accuracy has something to stand beside.

chance    takes one of the passages shown at random: 1 / k if k are shown and a gold one is among them, 0 if none is.
first     takes the first passage: what a retriever's order alone is worth. A model is to beat it, not only chance.
majority  knows no picture and no passage: answers each question type with its most frequent answer among the training rows, or, without these, among the other rows of the split; of boxes there is none.
medoid    never looks at the question's picture: takes the article whose own picture is most like those of the other articles shown. Far above chance, it says that the candidate
          sets give the gold away.

Each is averaged as the scores are; None where it applies to no row.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from PIL import Image

from ..data.samples import ANSWER_BLOCK, Sample
from ..knowledge.base import KnowledgeBase, Passage
from ..prompting import Prompting
from ..rewards import score
from ..rewards.answer import normalise
from ..rewards.methods import BOX_METHODS
from ..rewards.official import as_answer
from .summary import macro_average

RULES = ("chance", "first", "majority", "medoid")
THUMBNAIL = (12, 9)  # enough to tell flags by their colours, and about how alike two pictures look to a glance


def baselines(
    samples: Sequence[Sample],
    prompting: Prompting,
    *,
    training: Iterable[Sample] | None = None,
    image_folders: Sequence[str] = (),
) -> dict[str, dict[str, float | None]]:
    """{split: {name: score in [0, 1]}} of RULES for the rows with the passages that the setting `normal` shows; rows without a split are in "all".

    Args:
        training: rows that `majority` learns from.
        image_folders: where the articles' pictures lie, besides the knowledge base's own folder. Candidate sets with a picture that lies in none (a web address, say) take no
            part in `medoid`.
    """
    answers, kb = _majority_answers(samples, training), prompting.kb
    folders = [*image_folders, *([os.path.dirname(kb.path)] if kb is not None else [])]
    rows: dict[str, list[dict]] = {}
    for sample, answer in zip(samples, answers, strict=True):
        passages = prompting.passages(sample)
        row = {
            "id": sample.id,
            "entity": sample.entity,
            "question_type": sample.question_type,
            "chance": _chance(sample, passages),
            "first": _first(sample, passages),
            "majority": None if answer is None or sample.reward_method in BOX_METHODS else score(answer, sample),
            "medoid": _medoid(sample, passages, kb, folders),
        }
        rows.setdefault(sample.split or "all", []).append(row)
    return {split: {name: macro_average(its_rows, name) for name in RULES} for split, its_rows in rows.items()}


def _chance(sample: Sample, passages: list[Passage]) -> float | None:
    if not passages or not sample.evidence:
        return None
    return sum(passage.key in sample.evidence for passage in passages) / len(passages)


def _first(sample: Sample, passages: list[Passage]) -> float | None:
    if not passages or not sample.evidence:
        return None
    return float(passages[0].key in sample.evidence)


def _majority_answers(samples: Sequence[Sample], training: Iterable[Sample] | None) -> list[str | None]:
    """The answer of the majority rule to each row; None where there is no other row to learn from."""

    def group(sample: Sample) -> tuple[str, str]:
        return sample.question_type, "" if training is not None else sample.split

    counts: dict[tuple[str, str], Counter] = {}
    spelling: dict[str, str] = {}
    for sample in samples if training is None else training:
        answer = _answer(sample)
        if answer:
            spelling.setdefault(normalise(answer), answer)
            counts.setdefault(group(sample), Counter())[normalise(answer)] += 1
    # The two most frequent decide: leaving a row's own answer out can only move the first behind the second.
    leaders = {key: sorted(counter.items(), key=_by_count)[:2] for key, counter in counts.items()}
    answers = []
    for sample in samples:
        first_two = leaders.get(group(sample), [])
        if training is None:
            own = normalise(_answer(sample))
            first_two = [(answer, count - (answer == own)) for answer, count in first_two]
        best = min((item for item in first_two if item[1] > 0), key=_by_count, default=None)
        answers.append(None if best is None else spelling[best[0]])
    return answers


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    """Most frequent first, ties by spelling."""
    return -item[1], item[0]


def _answer(sample: Sample) -> str:
    """The row's answer as a text: its first alias as an answer would write it, or for a range, what its last turn answers."""
    if not isinstance(sample.answers, dict):
        return as_answer(sample.answers[0], sample) if sample.answers else ""
    blocks = ANSWER_BLOCK.findall(sample.answer)
    return (blocks[-1] if blocks else sample.answer).strip()


def _medoid(sample: Sample, passages: list[Passage], kb: KnowledgeBase | None, folders: list[str]) -> float | None:
    """1 if the gold article's picture is nearest to the others' on average, 0 if another's is; of several equally near, its share. None if a picture is missing."""
    articles = list(dict.fromkeys(passage.key.rpartition("#")[0] for passage in passages))
    if len(articles) < 2 or not sample.evidence:
        return None
    pictures = [_picture(kb.article(key), folders) for key in articles]
    if None in pictures:
        return None
    colours = np.stack([_thumbnail(path) for path in pictures])
    distance = np.sqrt(((colours[:, None] - colours[None]) ** 2).mean(axis=-1)).sum(axis=1)
    nearest = [
        key for key, total in zip(articles, distance, strict=True) if np.isclose(total, distance.min(), rtol=1e-9)
    ]
    gold = {key.rpartition("#")[0] for key in sample.evidence}
    return sum(key in gold for key in nearest) / len(nearest)


def _picture(article: dict, folders: list[str]) -> str | None:
    """The article's first picture, in the first folder that has it."""
    images = article.get("images") or [""]
    paths = [os.path.join(folder, images[0]) for folder in folders if isinstance(images[0], str) and images[0]]
    return next((path for path in paths if os.path.isfile(path)), None)


@lru_cache(maxsize=4096)
def _thumbnail(path: str) -> np.ndarray:
    """The colours of a small copy, in [0, 1], flat."""
    with Image.open(path) as image:
        small = image.convert("RGB").resize(THUMBNAIL, Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64).reshape(-1) / 255
