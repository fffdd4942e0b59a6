"""Which passages a prompt shows: a sample's candidates at the level of the moment, cut and with pictures if wanted."""

import random
from typing import TYPE_CHECKING

from ..data.samples import Sample
from ..errors import InputError
from .base import KnowledgeBase, Passage

if TYPE_CHECKING:  # budget reads rewards, and flags are checked with this module
    from .budget import PassageBudget
    from .pictures import PassagePictures

NAMED_LEVELS = ("retrieved", "gold", "gold_removed", "none")


WHOLE_ARTICLE = "oracle_article"  # no level of a run, but evaluation's setting; checks of prompts take it as one


def check_level(level: str, name: str = "Passage level") -> None:
    """`InputError` unless `level` is a number from 1 on or one of `NAMED_LEVELS`."""
    if level not in NAMED_LEVELS and not _is_number(level):
        raise InputError(
            f"{name} {level!r} is not known; use {', '.join(NAMED_LEVELS)}, or a number of passages from 1 on."
        )


def choose_passages(
    sample: Sample,
    kb: KnowledgeBase | None,
    *,
    level: str,
    num_passages: int,
    seed: int,
    draw: int | None,
    budget: "PassageBudget | None" = None,
    passage_pictures: "PassagePictures | None" = None,
    keep_evidence: bool | None = None,
) -> list[Passage]:
    """The passages to show with a sample, in order.

    The same (seed, id, draw) gives the same passages in the same order on every machine and rank; another draw takes
    another candidate set and order.

    Args:
        kb: None gives [].
        level: "retrieved": the first `num_passages` candidates, in their order.
            "1", "2", ...: every gold passage and the best other candidates, so many in all (more only if there are more gold
            passages), shuffled.
            "gold": the gold passages alone. "gold_removed": "retrieved" without the gold ones. "none": [].
        num_passages: at least 1; acts on "retrieved" and "gold_removed".
        seed: the run's.
        draw: how often the sample was drawn before; None in evaluation: the first candidate set, and an order that
            depends on seed and id alone.
        budget: cuts each passage; None shows them whole.
        passage_pictures: sets `Passage.image` of the first ones; None shows no pictures of articles.
        keep_evidence: whether the budget keeps the sentence that holds the answer in a gold passage. None: in training yes, so that
            evidence which is shown can be read; in evaluation only at the levels that put the gold passages in anyhow, since what
            retrieval found is cut as by anyone who does not know the answer.

    Raises:
        InputError: unknown level, or a key that the knowledge base lacks.
    """
    check_level(level)
    if num_passages < 1:
        raise InputError(f"The number of passages is {num_passages}; give 1 or more, or level none.")
    if kb is None or level == "none":
        return []
    # Seeding with a text is defined by Python: its sha512, whatever the machine.
    generator = random.Random(f"{seed}/{sample.id}/{'evaluation' if draw is None else draw}")
    candidates: tuple[str, ...] = ()
    if sample.candidates:
        candidates = sample.candidates[0 if draw is None else generator.randrange(len(sample.candidates))]
    keys = _keys(sample, candidates, level, num_passages)
    if _is_number(level):
        generator.shuffle(keys)
    passages = [_passage(kb, key, sample) for key in keys]
    if budget is not None:
        if keep_evidence is None:
            keep_evidence = draw is not None or level not in ("retrieved", "gold_removed")
        keep = sample.answers if keep_evidence else ()
        passages = [budget.cut(passage, keep if passage.key in sample.evidence else ()) for passage in passages]
    if passage_pictures is not None:
        passages = passage_pictures.add(passages, kb)
    return passages


def article_passages(
    sample: Sample, kb: KnowledgeBase | None, num_passages: int, budget: "PassageBudget | None" = None
) -> list[Passage]:
    """Sections of `gold_articles`, in the articles' order: every evidence section, and the first others up to `num_passages` in all. The budget never cuts the answer out of the evidence.

    Raises:
        InputError: an article or a passage that the knowledge base lacks.
    """
    if kb is None:
        return []
    try:
        keys = [f"{key}#{section['id']}" for key in gold_articles(sample) for section in kb.article(key)["sections"]]
        room = num_passages - sum(key in sample.evidence for key in keys)
        others = set([key for key in keys if key not in sample.evidence][: max(0, room)])
        passages = [kb.passage(key) for key in keys if key in sample.evidence or key in others]
    except InputError as error:
        raise InputError(f"{sample.source}: {error}") from None
    if budget is not None:
        passages = [
            budget.cut(passage, sample.answers if passage.key in sample.evidence else ()) for passage in passages
        ]
    return passages


def gold_articles(sample: Sample) -> list[str]:
    """Keys of the articles that hold the evidence, each once; without evidence that of the row's entity, if it names one."""
    articles = list(dict.fromkeys(key.rpartition("#")[0] for key in sample.evidence))
    return articles or ([] if sample.entity is None else [sample.entity])


def may_be_first(sample: Sample, level: str, num_passages: int, first: int) -> list[str]:
    """Keys of all passages that some draw of the sample shows among its `first` ones, each once."""
    shown: dict[str, None] = {}
    for candidates in sample.candidates or ((),):
        keys = _keys(sample, candidates, level, num_passages)
        shown.update(dict.fromkeys(keys if _is_number(level) else keys[:first]))
    return list(shown)


def is_shuffled(level: str) -> bool:
    """Whether another draw shows the passages in another order."""
    return _is_number(level)


def _keys(sample: Sample, candidates: tuple[str, ...], level: str, num_passages: int) -> list[str]:
    """What a level shows with a candidate set, before a numbered level shuffles it."""
    if level == "none":
        return []
    if level == "gold":
        return list(sample.evidence)
    others = [key for key in candidates if key not in sample.evidence]
    if level == "retrieved":
        return list(candidates[:num_passages])
    if level == "gold_removed":
        return [key for key in candidates[:num_passages] if key not in sample.evidence]
    return [*sample.evidence, *others[: max(0, int(level) - len(sample.evidence))]]


def _passage(kb: KnowledgeBase, key: str, sample: Sample) -> Passage:
    try:
        return kb.passage(key)
    except InputError as error:
        raise InputError(f"{sample.source}: {error}") from None


def _is_number(level: str) -> bool:
    return level.isascii() and level.isdecimal() and int(level) >= 1
