"""Passages cut to a number of tokens, at the ends of sentences and never through the evidence."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from .base import Passage
from .sentences import holds, split_sentences

CACHED = 4096  # passages that are remembered: candidates come back from row to row and epoch to epoch
GAP = " … "


class PassageBudget:
    """Cuts passages to `--max_passage_tokens`. Can be pickled.

    Args:
        tokenizer: the model's, a fast one of transformers (it tells where tokens begin).
        max_tokens: most tokens of a passage's text (its title and section not counted), at least 1.
    """

    def __init__(self, tokenizer, max_tokens: int):
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        self._remember()

    def cut(self, passage: Passage, keep: Sequence[str] | dict = ()) -> Passage:
        """The passage with its text cut. See `cut_text`."""
        keep = tuple(keep["range"]) if isinstance(keep, dict) else tuple(keep)
        text = self._cut(passage.text, keep)
        return passage if text == passage.text else replace(passage, text=text)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._starts(text))

    def _cut_text(self, text: str, keep: tuple) -> str:
        starts = self._starts(text)
        if len(starts) <= self.max_tokens:
            return text
        sentences = split_sentences(text)
        first = next((i for i, (start, end) in enumerate(sentences) if keep and holds(text[start:end], keep)), None)
        whole = 0
        while whole < len(sentences) and self.count(text[: sentences[whole][1]]) <= self.max_tokens:
            whole += 1
        if first is None or first < whole:
            return text[: sentences[whole - 1][1]] if whole else ""
        start, end = sentences[first]
        evidence = text[start:end]
        for before in range(whole, 0, -1):
            cut = text[: sentences[before - 1][1]] + GAP + evidence
            if self.count(cut) <= self.max_tokens:
                return cut
        return evidence

    def _starts(self, text: str) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [start for start, _ in encoded["offset_mapping"]]

    def _remember(self) -> None:
        self._cut = lru_cache(maxsize=CACHED)(self._cut_text)

    def __getstate__(self) -> dict:
        return {"tokenizer": self.tokenizer, "max_tokens": self.max_tokens}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._remember()
