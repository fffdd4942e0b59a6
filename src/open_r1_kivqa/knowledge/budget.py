"""Passages cut to a number of tokens: at the ends of sentences, and never through the one that holds the answer."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from ..data.harmless import neutralise
from ..errors import InputError
from .base import Passage
from .sentences import find_evidence, split_sentences

CACHED = 4096  # passages that are remembered: the same ones come back from row to row and epoch to epoch
GAP = " … "


class PassageBudget:
    """Cuts passages to `--max_passage_tokens`. Can be pickled.

    Args:
        tokenizer: the model's (`processor.tokenizer`), a fast one, which tells where its tokens begin.
        max_tokens: most tokens of a passage's text as the prompt shows it, at least 1. Title and section title are not counted.

    Raises:
        InputError: `max_tokens` below 1, or a tokenizer that does not tell where tokens begin.
    """

    def __init__(self, tokenizer, max_tokens: int):
        if max_tokens < 1:
            raise InputError(f"--max_passage_tokens {max_tokens}: at least 1 is wanted; leave it out to cut nothing.")
        if not tokenizer.is_fast:
            raise InputError("--max_passage_tokens needs a fast tokenizer, and this model has none: leave it out.")
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        self._remember()

    @classmethod
    def of(cls, tokenizer, max_tokens: int | None) -> "PassageBudget | None":
        """As the flag says; None without it."""
        return None if max_tokens is None else cls(tokenizer, max_tokens)

    def cut(self, passage: Passage, keep: Sequence[str] | dict = ()) -> Passage:
        """The passage, its text no longer than the budget; as it is where that fits.

        What stays is the longest run of whole sentences from the beginning on. Where that would lose the sentence that holds an answer, what stays is a shorter run from the beginning, " … ", and that
        sentence; a sentence that is longer than the budget by itself stays alone and whole, the one case in which the budget is exceeded. Where not even the first sentence fits and there is no
        other to keep, it is cut at the end of a word and ends in " …".

        Args:
            keep: answers, or {"range": [low, high]} as rows have it; see `sentences.find_evidence`. () keeps nothing in particular.
        """
        answers = tuple(keep["range"]) if isinstance(keep, dict) else tuple(keep)
        text = self._cut(passage.text, answers)
        return passage if text == passage.text else replace(passage, text=text)

    def count(self, text: str) -> int:
        """Tokens of a text as the prompt shows it."""
        return len(self._token_starts(text))

    def _cut_text(self, text: str, answers: tuple) -> str:
        starts = self._token_starts(text)
        if len(starts) <= self.max_tokens:
            return text
        sentences = tuple(split_sentences(text))
        if not sentences:
            return ""
        begin, ends = sentences[0][0], [end for _, end in sentences]

        def run(number: int) -> str:
            return text[begin : ends[number - 1]]

        # No run fits that ends more than one sentence after the last token: these few are tried.
        most = min(bisect_right(ends, starts[self.max_tokens]) + 1, len(ends))
        whole = self._largest(run, most)
        evidence = find_evidence(text, sentences, answers)
        if evidence is None:
            return run(whole) if whole else self._part_of(text[begin : ends[0]])
        first, last = evidence
        if last < whole:
            return run(whole)
        kept = text[sentences[first][0] : ends[last]]
        before = self._largest(lambda number: run(number) + GAP + kept, min(whole, first - 1))
        return run(before) + GAP + kept if before else kept

    def _part_of(self, sentence: str) -> str:
        """As many words of a sentence as fit; as many tokens where it has no words."""
        starts = [start for start in self._token_starts(sentence) if start]
        words = [start for start in starts if sentence[start].isspace() or sentence[start - 1].isspace()]
        places = words if words and words[0] <= starts[min(self.max_tokens, len(starts)) - 1] else starts

        def part(number: int) -> str:
            return sentence[: places[number - 1]].rstrip() + GAP.rstrip()

        number = self._largest(part, len(places))
        return part(number) if number else ""

    def _largest(self, text_of: Callable[[int], str], most: int) -> int:
        """The largest number from 1 to `most` whose text fits; 0 if none does. More is never fewer tokens, but for a few, so halving finds it."""
        return bisect_right(range(1, most + 1), False, key=lambda number: self.count(text_of(number)) > self.max_tokens)

    def _token_starts(self, text: str) -> list[int]:
        encoded = self.tokenizer(neutralise(text), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [start for start, _ in encoded["offset_mapping"]]

    def _remember(self) -> None:
        self._cut = lru_cache(maxsize=CACHED)(self._cut_text)

    def __getstate__(self) -> dict:
        return {"tokenizer": self.tokenizer, "max_tokens": self.max_tokens}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._remember()
