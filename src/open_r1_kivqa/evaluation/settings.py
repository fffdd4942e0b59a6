"""Evaluation settings: what is changed about a question to see what its answer rests on.

A model that looks at the picture does worse without it, and worse with another entity's picture; a model that reads does worse without the gold passage. The score under
`normal` alone says neither.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..data.samples import Sample
from ..errors import InputError


@dataclass(frozen=True)
class Setting:
    """What a setting changes.

    Attributes:
        images: "own", "none" (images and their markers dropped) or "other" (pictures of another entity).
        level: context level in place of the evaluation's own, or None.
        whole_article: sections of the gold article in place of candidates.
        shuffled: the passages in another order.
    """

    images: str = "own"
    level: str | None = None
    whole_article: bool = False
    shuffled: bool = False

    @property
    def of_passages(self) -> bool:
        """Whether it changes which passages are shown or how, and so is nothing without a knowledge base."""
        return self.level is not None or self.whole_article or self.shuffled


SETTINGS = {
    "normal": Setting(),
    "no_image": Setting(images="none"),
    "wrong_image": Setting(images="other"),
    "no_passages": Setting(level="none"),
    "gold_only": Setting(level="gold"),
    "oracle_article": Setting(whole_article=True),
    "shuffled_passages": Setting(shuffled=True),
    "gold_removed": Setting(level="gold_removed"),
}


def parse_settings(text: str) -> list[str]:
    """ "normal,wrong_image" to a list of names without repeats; raises InputError on an unknown name or none at all."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in SETTINGS]
    if unknown or not names:
        raise InputError(
            f"--settings {text!r}: {', '.join(unknown) or 'nothing'} is no setting; give some of {', '.join(SETTINGS)}, separated by ','."
        )
    return names


def pictures_of(samples: Iterable[Sample]) -> dict[str, list[tuple[str, str]]]:
    """The pictures that `wrong_image` draws from: split -> sorted pairs (entity, image path), "" for rows that name no entity. Take all rows of the splits evaluated, not
    one rank's share, or the draw depends on the number of ranks."""
    pictures: dict[str, set[tuple[str, str]]] = {}
    for sample in samples:
        pictures.setdefault(sample.split, set()).update((sample.entity or "", image) for image in sample.images)
    return {split: sorted(pairs) for split, pairs in pictures.items()}


def apply_setting(setting: str, sample: Sample, pictures: dict[str, list[tuple[str, str]]]) -> Sample:
    """The row as this setting shows it: under `wrong_image` with each of its images replaced, else as it is.

    The replacement for image number j is drawn by (row id, j) from the pictures of the row's split: one of another entity, which is none of the row's own images. The same
    rows get the same wrong pictures in every run. Raises InputError if the split has no such picture.
    """
    if SETTINGS[setting].images != "other" or not sample.images:
        return sample
    return replace(sample, images=tuple(_other(sample, j, pictures[sample.split]) for j in range(len(sample.images))))


def _other(sample: Sample, number: int, pairs: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256(f"{sample.id}\n{number}".encode()).digest()
    start = int.from_bytes(digest[:8], "big") % len(pairs)
    for entity, image in pairs[start:] + pairs[:start]:
        if image not in sample.images and (not entity or entity != sample.entity):
            return image
    raise InputError(
        f"The setting wrong_image needs a picture of another entity for row {sample.id} ({sample.source}), and its split {sample.split!r} has none: evaluate more rows, or leave the setting out."
    )
