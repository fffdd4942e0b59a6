"""What a model is shown of a row under a setting: its passages, its prompt, and a hash by which two evaluations can show that they asked the same."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..data.images import content_hash
from ..data.samples import Sample
from ..knowledge.base import Passage
from ..knowledge.context import article_passages
from ..prompting import Prompting
from .settings import SETTINGS, apply_setting, pictures_of


@dataclass(frozen=True)
class Shown:
    """A row as one setting shows it.

    Attributes:
        sample: with the images of the setting. image_paths: those that the prompt shows of it, in order.
        passages: in the order shown.
        prompt: the messages as a processor or a server gets them.
    """

    sample: Sample
    image_paths: tuple[str, ...]
    passages: list[Passage]
    prompt: list[dict]

    def record(self) -> dict:
        """What records tell of it: "passages" (keys), "image_paths", "prompt_hash", and the `gold_place` among the row's candidates ("gold_rank", None without candidates) and
        among the passages shown ("gold_position"), both None where the evidence is a guess."""
        sample = self.sample
        keys = [passage.key for passage in self.passages]
        candidates = sample.candidates[0] if sample.candidates else ()
        evidence = () if sample.weak_evidence else sample.evidence
        return {
            "passages": keys,
            "image_paths": list(self.image_paths),
            "prompt_hash": prompt_hash(self.prompt),
            "gold_rank": gold_place(candidates, evidence) if candidates else None,
            "gold_position": gold_place(keys, evidence),
        }


def show(
    samples: Sequence[Sample],
    setting: str,
    prompting: Prompting,
    pictures: dict[str, list[tuple[str, str]]] | None = None,
) -> list[Shown]:
    """The rows under one of SETTINGS, in order.

    Args:
        prompting: a setting may have a level of its own.
        pictures: what `wrong_image` draws from, of `pictures_of`; default: the pictures of `samples`.
    """
    if SETTINGS[setting].images == "other" and pictures is None:
        pictures = pictures_of(samples)
    with_images = SETTINGS[setting].images != "none"
    shown = []
    for sample in samples:
        passages = passages_of(setting, sample, prompting)
        sample = apply_setting(setting, sample, pictures or {})
        prompt = prompting.prompt(sample, passages, with_images=with_images)
        shown.append(Shown(sample, sample.images if with_images else (), passages, prompt))
    return shown


def passages_of(setting: str, sample: Sample, prompting: Prompting) -> list[Passage]:
    """The passages that a setting shows, in order; the first ones as shown have pictures, if wanted."""
    setting, kb, pictures = SETTINGS[setting], prompting.kb, prompting.passage_pictures
    if setting.whole_article:
        passages = article_passages(sample, kb, prompting.num_passages, prompting.budget)
    else:
        passages = prompting.passages(sample, level=setting.level, with_pictures=False)
    if setting.shuffled:
        passages = _in_another_order(passages, sample, prompting.seed)
    return passages if pictures is None or kb is None else pictures.add(passages, kb)


def _in_another_order(passages: list[Passage], sample: Sample, seed: int) -> list[Passage]:
    """The passages in an order drawn by seed and id: never the given one, unless there is no other."""
    drawn = passages.copy()
    random.Random(f"{seed}/{sample.id}/shuffled").shuffle(drawn)
    return drawn[1:] + drawn[:1] if drawn == passages else drawn


def gold_place(keys: Sequence[str], evidence: Sequence[str]) -> int | None:
    """Place of the first gold passage among `keys`, from 1 on; 0 if it is not among them; None without evidence."""
    if not evidence:
        return None
    return next((place for place, key in enumerate(keys, 1) if key in evidence), 0)


def prompt_hash(prompt: list[dict]) -> str:
    """sha256 of the messages, hexadecimal. An image counts by its file's content, wherever it lies."""

    def block(one: dict) -> dict:
        return one if one["type"] == "text" else {"type": "image", "sha256": content_hash(one["image"])}

    messages = [{"role": message["role"], "content": [block(one) for one in message["content"]]} for message in prompt]
    return hashlib.sha256(json.dumps(messages, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def prompts_hash(records: Sequence[dict]) -> str:
    """sha256 of all records' settings, rows and prompts, hexadecimal: the same for two evaluations that asked the same questions in the same words, in whatever order."""
    lines = sorted(json.dumps([record["setting"], record["id"], record["prompt_hash"]]) for record in records)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
