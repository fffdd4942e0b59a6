"""Which section of an article holds the answer, where a benchmark doesn't say: InfoSeek released no evidence, and matching texts finds some 75 % (open-vision-language/infoseek#3)."""

import re
import string
import unicodedata
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..knowledge.base import KnowledgeBase, Passage
from ..retrieval.sections import SectionScorer, section_text
from ..rewards.answer import numbers
from .infoseek import normalise

KEPT_ARTICLES = 2_000  # a benchmark asks many questions about one article, not always one after the other
KEPT_SCORES = 50_000  # and the same question about many images of it
ACCENTS = re.compile("[\u0300-\u036f]+")
ASCII = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("‘’ʼ′`´", "'"),
        **dict.fromkeys("“”„«»″", '"'),
        **dict.fromkeys("\u00a0\u2007\u2009\u202f", " "),
    }
)
SPACED = str.maketrans(string.punctuation, " " * len(string.punctuation))


class Evidence(NamedTuple):
    """A passage key, and what speaks for it: an "alias" in its text, a "number" in the range, or only that it fits the question best ("weak")."""

    key: str
    source: str


class _Section:
    def __init__(self, passage: Passage):
        self.key = passage.key
        self.text = section_text(passage.section, passage.text)  # as scorers read it
        self._own = passage.text

    @cached_property
    def words(self) -> tuple[str, ...]:
        return _forms(self.text)

    @cached_property
    def numbers(self) -> list[float]:
        # Other scripts' digits are no numbers here: reading whole articles as carefully as answers would take most of the time.
        return numbers(unicodedata.normalize("NFC", self._own).translate(ASCII).encode("ascii", "replace").decode())


class EvidenceFinder:
    """Finds evidence in the articles of a knowledge base; keeps the last 2,000 of them as they are compared."""

    def __init__(self, kb: KnowledgeBase, scorer: SectionScorer):
        self._kb, self._scorer = kb, scorer
        self._articles: OrderedDict[str, list[_Section]] = OrderedDict()
        self._scores = lru_cache(KEPT_SCORES)(self._score)

    def find(self, key: str, question: str, answers: Sequence[str] | dict) -> Evidence | None:
        """Of the article's sections that contain an answer, the one that fits the question best; if none does, the best of all, marked weak. The first of equals.

        An alias is contained where its words stand one after the other in title or text, normalised as InfoSeek's answers are, and without accents. Punctuation counts as nothing
        ("US" is found in "U.S.", "1083" in "1,083") or as a space ("Paris" in "Paris's"). Of a range, any number of the text inside it counts, whatever it measures.

        Args:
            key: of an article.
            answers: aliases, or {"range": [low, high]}, both ends inclusive; none gives weak evidence.

        Returns:
            None for an article without any text.

        Raises:
            InputError: no such article.
        """
        sections = self._sections(key)
        if not sections:
            return None
        if isinstance(answers, dict):
            low, high = answers["range"]
            source = "number"
            holding = [i for i, part in enumerate(sections) if any(low <= number <= high for number in part.numbers)]
        else:
            source = "alias"
            wanted = {form for alias in answers for form in _forms(alias)}
            holding = [i for i, part in enumerate(sections) if any(a in words for words in part.words for a in wanted)]
        if not holding:
            source, holding = "weak", list(range(len(sections)))
        return Evidence(sections[self._best(key, question, holding)].key, source)

    def best_section(self, key: str, question: str) -> str | None:
        """Key of the article's section that fits the question best, the first of equals; None for an article without any text."""
        sections = self._sections(key)
        return sections[self._best(key, question, range(len(sections)))].key if sections else None

    def first_section(self, key: str) -> str | None:
        """Key of the article's first section that has a text; None if there is none."""
        sections = self._sections(key)
        return sections[0].key if sections else None

    def _best(self, key: str, question: str, among: Sequence[int]) -> int:
        if len(among) == 1:
            return among[0]
        scores = self._scores(key, question)
        return max(among, key=lambda i: scores[i])

    def _score(self, key: str, question: str) -> np.ndarray:
        """Of all sections, though some are out of question: a score may depend on the pool."""
        return self._scorer.scores(question, [part.text for part in self._sections(key)])

    def _sections(self, key: str) -> list[_Section]:
        sections = self._articles.get(key)
        if sections is None:
            sections = self._articles[key] = [
                _Section(passage) for passage in self._kb.passages(key) if passage.text.strip()
            ]
            if len(self._articles) > KEPT_ARTICLES:
                self._articles.popitem(last=False)
        else:
            self._articles.move_to_end(key)
        return sections


def _forms(text: str) -> tuple[str, ...]:
    """The words between spaces, with punctuation left out and with spaces for it; nothing for a text without words."""
    plain = ACCENTS.sub("", unicodedata.normalize("NFKD", text)).translate(ASCII)
    forms = {normalise(plain), normalise(plain.translate(SPACED))} - {""}
    return tuple(sorted(f" {form} " for form in forms))
