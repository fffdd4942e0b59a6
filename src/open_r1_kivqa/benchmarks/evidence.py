"""Which section of an article holds the answer, where a benchmark doesn't say: InfoSeek released no evidence, and matching texts finds some 75 % (open-vision-language/infoseek#3)."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ..knowledge.base import KnowledgeBase, Passage
from ..retrieval.sections import SectionScorer, section_text
from ..rewards.answer import normalise, numbers

SOURCES = ("alias", "number", "weak")
KEPT_ARTICLES = 2_000  # a benchmark asks many questions about one article, not always one after the other
APOSTROPHE = re.compile(r"['’]")


class Evidence(NamedTuple):
    """A passage key, and what speaks for it: an "alias" in its text, a "number" in the range, or only that it fits the question best ("weak")."""

    key: str
    source: str


class _Section(NamedTuple):
    key: str  # of the passage
    text: str  # as scorers read it
    words: tuple[str, ...]  # normalised, between spaces
    numbers: list[float]


class EvidenceFinder:
    """Finds evidence in the articles of a knowledge base; keeps the last 2,000 of them as they are compared."""

    def __init__(self, kb: KnowledgeBase, scorer: SectionScorer):
        self._kb, self._scorer = kb, scorer
        self._articles: OrderedDict[str, list[_Section]] = OrderedDict()

    def find(self, key: str, question: str, answers: Sequence[str] | dict) -> Evidence | None:
        """Of the article's sections that contain an answer, the one that fits the question best; if none does, the best of all, marked weak. The first of equals.

        An alias is contained where its words stand one after the other in title or text, after `rewards.answer.normalise`; an apostrophe may stand for nothing or for a space
        ("Paris" is found in "Paris's"). Of a range, any number of the text inside it counts, whatever it measures.

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
        return Evidence(sections[self._best(question, sections, holding)].key, source)

    def best_section(self, key: str, question: str) -> str | None:
        """Key of the article's section that fits the question best, the first of equals; None for an article without any text."""
        sections = self._sections(key)
        return sections[self._best(question, sections, range(len(sections)))].key if sections else None

    def first_section(self, key: str) -> str | None:
        """Key of the article's first section that has a text; None if there is none."""
        sections = self._sections(key)
        return sections[0].key if sections else None

    def _best(self, question: str, sections: list[_Section], among: Sequence[int]) -> int:
        if len(among) == 1:
            return among[0]
        scores = self._scorer.scores(question, [part.text for part in sections])  # the others count: they are the pool
        return max(among, key=lambda i: scores[i])

    def _sections(self, key: str) -> list[_Section]:
        sections = self._articles.get(key)
        if sections is None:
            sections = self._articles[key] = [
                _section(passage) for passage in self._kb.passages(key) if passage.text.strip()
            ]
            if len(self._articles) > KEPT_ARTICLES:
                self._articles.popitem(last=False)
        else:
            self._articles.move_to_end(key)
        return sections


def _section(passage: Passage) -> _Section:
    text = section_text(passage.section, passage.text)
    return _Section(passage.key, text, _forms(text), numbers(passage.text))


def _forms(text: str) -> tuple[str, ...]:
    """The normalised words between spaces, with apostrophes left out and with spaces for them; nothing for a text without words."""
    forms = {normalise(text), normalise(APOSTROPHE.sub(" ", text))} - {""}
    return tuple(sorted(f" {form} " for form in forms))
