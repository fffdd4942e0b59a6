"""The knowledge base: a jsonl file of articles, found by key without keeping them in memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..data.cache import cached_arrays, telling
from ..data.lines import JsonLines
from ..data.packed import places, sort_hashes, text_hash
from ..errors import InputError


@dataclass(frozen=True)
class Passage:
    """One section of an article.

    Attributes:
        key: "article#section".
        title, section: titles of the article and of the section.
        image: absolute path of a picture to show before the text; None for none.
    """

    key: str
    title: str
    section: str
    text: str
    image: str | None = None


class KnowledgeBase:
    """Articles `{"key", "title", "url", "sections": [{"id", "title", "text"}], "images", "aliases"}`, one a line.

    Needs 32 bytes an article (line offsets, and hashes of the keys in order), memory-mapped for large files; an article is read when asked for. Can be pickled.
    """

    def __init__(self, lines: JsonLines, hashes: np.ndarray, order: np.ndarray):
        self._lines, self._hashes, self._order = lines, hashes, order

    @classmethod
    def open(cls, path: str) -> "KnowledgeBase":
        """Index the articles by key (remembered for large files; where it takes long, a line on stderr says how long).

        Raises:
            InputError: the file is missing, empty or not jsonl, or an article has no key or another's.
        """
        with telling(f"Indexing the articles of {path}"):
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

    def has_article(self, key: str) -> bool:
        """Whether this is the key of an article."""
        return self._find(key) is not None

    def article(self, key: str) -> dict:
        """The article as it stands in the file; `InputError` if there is none."""
        return self._article(key)[1]

    def article_at(self, i: int) -> dict:
        """Article `i` in the file's order, 0 <= i < len."""
        return self._lines.record(i)

    def source(self, i: int) -> str:
        """ "path:line" of article `i`."""
        return self._lines.source(i)

    def passages(self, key: str) -> list[Passage]:
        """All passages of an article, in its order; `InputError` if there is no such article or its sections are not as they should be."""
        line, article = self._article(key)
        source = self._lines.source(line)
        return [
            Passage(f"{key}#{section['id']}", article.get("title", ""), section.get("title", ""), section["text"])
            for section in article_sections(article, source)
        ]

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

    def _article(self, key: str) -> tuple[int, dict]:
        found = self._find(key)
        if found is None:
            raise InputError(f"{self.path} has no article {key!r}; add it or correct the key.")
        return found

    def _find(self, key: str) -> tuple[int, dict] | None:
        """Line of an article and the article."""
        for place in places(self._hashes, key):
            line = int(self._order[place])
            article = self._lines.record(line)
            if str(article["key"]) == key:  # else another key with the same hash
                return line, article
        return None


def article_sections(article: dict, source: str) -> list[dict]:
    """The sections of an article, checked: each has an `id` of its own within the article (a text or a whole number), a `text`, and perhaps a `title`; [] if it has none.

    Args:
        source: "path:line", named by the error.

    Raises:
        InputError: `title` is no text, or `sections` are of another form.
    """
    key, sections = article.get("key"), article.get("sections") or []
    if not isinstance(article.get("title", ""), str):
        raise InputError(f"{source}: `title` of article {key!r} is no text; write one or leave it out.")
    if not isinstance(sections, list) or not all(map(_is_section, sections)):
        raise InputError(
            f'{source}: `sections` of article {key!r} must be a list like [{{"id": "0", "title": "", "text": "..."}}].'
        )
    ids = [str(section["id"]) for section in sections]
    repeated = next((id for i, id in enumerate(ids) if id in ids[:i]), None)
    if repeated is not None:
        raise InputError(f"{source}: article {key!r} has two sections {repeated!r}; give each its own id.")
    return sections


def _is_section(value: object) -> bool:
    if not isinstance(value, dict) or isinstance(value.get("id"), bool) or not isinstance(value.get("id"), str | int):
        return False
    return isinstance(value.get("title", ""), str) and isinstance(value.get("text"), str)


def _index(lines: JsonLines) -> dict[str, np.ndarray]:
    """Hashes of the keys, sorted, and the line of each."""
    hashes, order = sort_hashes(map(text_hash, lines.read_keys("key")))
    seen: dict[str, int] = {}
    for i in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        for line in order[i : i + 2].tolist():
            key = lines.key(line, "key")
            if seen.setdefault(key, line) != line:
                raise InputError(
                    f"Article {key!r} is given twice, at {lines.source(seen[key])} and {lines.source(line)}; "
                    f"keys must be unique."
                )
    return {"hashes": hashes, "order": order}


def _section(article: dict, id: str) -> dict | None:
    sections = article.get("sections")
    if not isinstance(sections, list):
        return None
    return next((part for part in sections if isinstance(part, dict) and str(part.get("id")) == id), None)
