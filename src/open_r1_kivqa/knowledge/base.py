"""The knowledge base: a jsonl file of articles, found by key without keeping them in memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..data.cache import cached_arrays
from ..data.lines import JsonLines
from ..errors import InputError


@dataclass(frozen=True)
class Passage:
    """One section of an article: `key` is "article#section", `title` the article's, `section` the section's title."""

    key: str
    title: str
    section: str
    text: str


class KnowledgeBase:
    """Articles `{"key", "title", "url", "sections": [{"id", "title", "text"}], "images"}`, one a line.

    Holds 32 bytes an article (line offsets, and hashes of the keys in order) and maps the file. Can be pickled.
    """

    def __init__(self, lines: JsonLines, hashes: np.ndarray, order: np.ndarray):
        self._lines, self._hashes, self._order = lines, hashes, order

    @classmethod
    def open(cls, path: str) -> "KnowledgeBase":
        """Index the articles by key (remembered for large files).

        Raises:
            InputError: the file is missing or not jsonl, or an article has no key or another's.
        """
        lines = JsonLines(path)
        arrays = cached_arrays(lines.path, "articles-1", lambda: _index(lines))
        return cls(lines, arrays["hashes"], arrays["order"])

    @property
    def path(self) -> str:
        """The file, absolute."""
        return self._lines.path

    @property
    def fingerprint(self) -> str:
        """sha256 of the file."""
        return self._lines.content_hash

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[dict]:
        """The articles in the file's order."""
        return (self._lines.record(i) for i in range(len(self)))

    def __contains__(self, key: str) -> bool:
        """Whether this is the key of an article or of a passage."""
        if self._find(key) is not None:
            return True
        article_key, _, section_id = key.rpartition("#")
        found = self._find(article_key)
        return found is not None and _section(found[1], section_id) is not None

    def article(self, key: str) -> dict:
        """The article as it stands in the file; `InputError` if there is none."""
        found = self._find(key)
        if found is None:
            raise InputError(f"{self.path} has no article {key!r}; add it or correct the key.")
        return found[1]

    def passage(self, key: str) -> Passage:
        """The passage "article#section"; `InputError` if there is none or it lacks its text."""
        article_key, _, section_id = key.rpartition("#")
        line, article = self._find(article_key) or (None, {})
        section = _section(article, section_id)
        if section is None:
            raise InputError(
                f'{self.path} has no passage {key!r}; keys are "article#section", add it or correct the key.'
            )
        title, heading, text = article.get("title", ""), section.get("title", ""), section.get("text")
        if not all(isinstance(value, str) for value in (title, heading, text)):
            raise InputError(f"{self._lines.source(line)}: titles and `text` of passage {key!r} must be texts.")
        return Passage(key=key, title=title, section=heading, text=text)

    def _find(self, key: str) -> tuple[int, dict] | None:
        """Line of an article and the article."""
        wanted = _hash(key)
        i = int(np.searchsorted(self._hashes, np.uint64(wanted)))
        while i < len(self._hashes) and int(self._hashes[i]) == wanted:
            line = int(self._order[i])
            article = self._lines.record(line)
            if str(article["key"]) == key:
                return line, article
            i += 1  # another key with the same hash
        return None


def _index(lines: JsonLines) -> dict[str, np.ndarray]:
    """Hashes of the keys, sorted, and the line of each."""
    keys = lines.keys("key")
    hashes = np.fromiter((_hash(key) for key in keys), dtype=np.uint64, count=len(keys))
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    seen: dict[str, int] = {}
    for i in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        for line in order[i : i + 2].tolist():
            if seen.setdefault(keys[line], line) != line:
                raise InputError(
                    f"Article {keys[line]!r} is given twice, at {lines.source(seen[keys[line]])} and {lines.source(line)}; "
                    f"keys must be unique."
                )
    return {"hashes": hashes, "order": order.astype(np.int64)}


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8"), digest_size=8).digest(), "little")


def _section(article: dict, id: str) -> dict | None:
    sections = article.get("sections")
    if not isinstance(sections, list):
        return None
    return next((part for part in sections if isinstance(part, dict) and str(part.get("id")) == id), None)
