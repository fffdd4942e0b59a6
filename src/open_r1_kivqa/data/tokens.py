"""How many tokens a row's prompt has, without decoding a pixel: images by the processor's own arithmetic on their sizes, texts by its tokenizer."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ..knowledge.base import Passage
from ..knowledge.context import WHOLE_ARTICLE, article_passages, is_shuffled
from ..prompting import Prompting
from ..vlm_modules.base import VLMModule
from .images import image_size
from .samples import Sample

PARTS = ("image", "question", "passages", "rest", "prompt")


@dataclass
class TokenCounter:
    """Counts the tokens of prompts as training builds them.

    Attributes:
        processor: of the model, image limits set. module: its family's.
        prompting: whatever its seed and level.
        levels: all that a prompt may be built at; WHOLE_ARTICLE stands for `article_passages`.
    """

    processor: object
    module: VLMModule
    prompting: Prompting
    levels: tuple[str, ...] = ("retrieved",)
    _passage_tokens: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)

    def count(self, samples: list[Sample], sizes: list[list[tuple[int, int]]]) -> dict[str, np.ndarray]:
        """Tokens of each sample's prompt, by part: `PARTS` -> (n,) int64. A row with several candidate sets or levels counts with its longest, and as in training, where the evidence is never cut
        away; at a level that shuffles, with the largest pictures of passages.

        "image" holds the row's images and the passages' own, "rest" is what the template, earlier turns and the chat's own tokens add to the other three; "prompt" is the sum, up to the first token of the completion.

        Args:
            sizes: (width, height) in pixels of every image of every sample.

        Raises:
            InputError: an image whose shape the processor refuses, or a passage that the knowledge base lacks.
        """
        shown = self._longest_passages(samples)
        prompts = [
            self.processor.apply_chat_template(
                self.prompting.prompt(sample, passages),
                add_generation_prompt=True,
                tokenize=False,
            )
            for sample, passages in zip(samples, shown, strict=True)
        ]
        # The chat template puts one placeholder token where an image goes; the processor widens it.
        sizes = [[*row, *map(_size, _images(passages))] for row, passages in zip(sizes, shown, strict=True)]
        image = _counts(sum(self.image_tokens(size) for size in row) for row in sizes)
        prompt = self._text_tokens(prompts) + image - _counts(len(row) for row in sizes)
        question = self._text_tokens([sample.question for sample in samples])
        passages = _counts(sum(self._passage_tokens[_name(passage)] for passage in row) for row in shown)
        return {
            "image": image,
            "question": question,
            "passages": passages,
            "rest": prompt - image - question - passages,
            "prompt": prompt,
        }

    def image_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of an image of `size` (width, height) pixels; InputError for a shape that the processor refuses."""
        return self.module.num_image_tokens(self.processor, *size)

    def _longest_passages(self, samples: list[Sample]) -> list[list[Passage]]:
        """The passages of each sample; of several candidate sets and levels those with the most tokens."""
        choices = [
            [self._passages(one, level) for one in _one_set_each(sample) for level in self.levels] for sample in samples
        ]
        texts = {
            _name(passage): passage.text
            for sets in choices
            for shown in sets
            for passage in shown
            if _name(passage) not in self._passage_tokens
        }
        self._passage_tokens.update(zip(texts, self._text_tokens(list(texts.values())).tolist(), strict=True))
        return [max(sets, key=self._length) for sets in choices]

    def _length(self, passages: list[Passage]) -> int:
        """Tokens of passages and their images."""
        images = sum(self.image_tokens(_size(path)) for path in _images(passages))
        return sum(self._passage_tokens[_name(passage)] for passage in passages) + images

    def _passages(self, sample: Sample, level: str) -> list[Passage]:
        kb, pictures = self.prompting.kb, self.prompting.passage_pictures
        if level == WHOLE_ARTICLE:
            passages = article_passages(sample, kb, self.prompting.num_passages, self.prompting.budget)
        else:
            passages = self.prompting.passages(sample, level=level, keep_evidence=True, with_pictures=False)
        if pictures is None or kb is None:
            return passages
        if is_shuffled(level):  # any of them may come first
            every = pictures.add(passages, kb, number=len(passages))
            every.sort(key=lambda passage: -self.image_tokens(_size(passage.image)) if passage.image else 0)
            passages = [replace(passage, image=None) for passage in every]
        return pictures.add(passages, kb)

    def _text_tokens(self, texts: list[str]) -> np.ndarray:
        if not texts:
            return _counts([])
        encoded = self.processor.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        return _counts(len(ids) for ids in encoded["input_ids"])


def _one_set_each(sample: Sample) -> list[Sample]:
    if len(sample.candidates) < 2:
        return [sample]
    return [replace(sample, candidates=(one,)) for one in sample.candidates]


def _name(passage: Passage) -> tuple[str, int]:
    """A passage as it is cut for one row."""
    return passage.key, hash(passage.text)


def _images(passages: list[Passage]) -> list[str]:
    return [passage.image for passage in passages if passage.image]


@lru_cache(maxsize=100_000)
def _size(path: str) -> tuple[int, int]:
    return image_size(path)


def _counts(numbers: Iterable[int]) -> np.ndarray:
    return np.fromiter(numbers, dtype=np.int64)


def percentiles(lengths: dict[str, np.ndarray]) -> dict[str, dict[str, int]]:
    """p50, p90, p99 and max of each part over the rows: the smallest length that so many percent of the rows don't exceed."""
    points = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {
        part: {name: int(np.percentile(values, point, method="inverted_cdf")) for name, point in points.items()}
        for part, values in lengths.items()
        if len(values)
    }
