"""Which passages a prompt shows: a sample's candidates at the level of the moment."""

import random

from ..data.samples import Sample
from ..errors import InputError
from .base import KnowledgeBase, Passage

NAMED_LEVELS = ("retrieved", "gold", "gold_removed", "none")


def check_level(level: str, name: str = "Passage level") -> None:
    """`InputError` unless `level` is a number from 1 on or one of `NAMED_LEVELS`."""
    if level not in NAMED_LEVELS and not _is_number(level):
        raise InputError(
            f"{name} {level!r} is not known; use {', '.join(NAMED_LEVELS)}, or a number of passages from 1 on."
        )


def choose_passages(
    sample: Sample, kb: KnowledgeBase | None, *, level: str, num_passages: int, seed: int, draw: int | None
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
    if level == "gold":
        keys = list(sample.evidence)
    elif level in ("retrieved", "gold_removed"):
        keys = list(candidates[:num_passages])
        if level == "gold_removed":
            keys = [key for key in keys if key not in sample.evidence]
    else:
        others = [key for key in candidates if key not in sample.evidence]
        keys = [*sample.evidence, *others[: max(0, int(level) - len(sample.evidence))]]
        generator.shuffle(keys)
    return [_passage(kb, key, sample) for key in keys]


def _passage(kb: KnowledgeBase, key: str, sample: Sample) -> Passage:
    try:
        return kb.passage(key)
    except InputError as error:
        raise InputError(f"{sample.source}: {error}") from None


def _is_number(level: str) -> bool:
    return level.isascii() and level.isdecimal() and int(level) >= 1
