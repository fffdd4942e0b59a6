"""The knowledge base to which a conversion refers: its flags, and articles found by the names that a benchmark has for them."""

import argparse

from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.titles import Titles, read_redirects
from .converted import file_identity


def add_article_flags(flags: argparse.ArgumentParser) -> None:
    """--knowledge_base and --redirects."""
    flags.add_argument(
        "--knowledge_base",
        help="jsonl file of `kivqa convert kb`; entities and evidence become its keys, and what it lacks is left out and counted",
    )
    flags.add_argument(
        "--redirects",
        help="file of titles and the titles that they redirect to: tsv, or a json object; for --knowledge_base",
    )


def check_article_flags(flags: argparse.Namespace) -> None:
    """Raises InputError if there are redirects and nothing that they lead to."""
    if flags.redirects and not flags.knowledge_base:
        raise InputError("--redirects leads from titles to a knowledge base; give --knowledge_base, or leave it out.")


class Articles:
    """Articles by their names. What was asked for is kept, since many questions are about one article.

    Attributes:
        identity: JSON values that tell these articles and redirects from others.
    """

    def __init__(self, path: str, redirects: str | None):
        """Raises InputError for a file that can't be used."""
        self._kb = KnowledgeBase.open(path)
        self._titles = Titles.open(self._kb, read_redirects(redirects) if redirects else None)
        self._keys: dict[str, str | None] = {}
        self.identity = [self._kb.fingerprint, redirects and file_identity(redirects)]

    @classmethod
    def of(cls, flags: argparse.Namespace) -> "Articles | None":
        """The articles that the flags name; None if they name none."""
        return cls(flags.knowledge_base, flags.redirects) if flags.knowledge_base else None

    def key(self, name: str) -> str | None:
        """The key of the article that a key, url or title means; None if there is none."""
        if name not in self._keys:
            self._keys[name] = self._titles.find(name)
        return self._keys[name]

    def has(self, passage: str) -> bool:
        """Whether this is the key of a passage."""
        return passage in self._kb
