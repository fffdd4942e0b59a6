"""Articles found by what other files call them: a title, a url, an alias, or a title that redirects to one of these."""

import json
import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

import numpy as np

from ..data.cache import cached_arrays, telling
from ..data.packed import places, sort_hashes, text_hash
from ..errors import InputError
from .base import KnowledgeBase

URL = re.compile(r"https?://[^/?#]+/?")
PAGE = re.compile(r"(?:wiki/|w(?:iki)?/index\.php\?(?:[^#]*&)?title=)")
QUERY = re.compile(r"[?&][\w.-]+=[^#]*")


def title_of(name: str) -> str:
    """The form in which titles are compared.

    Of a url its page, decoded: what follows `/wiki/` or `title=`, else the whole path; of anything else the text itself. Then "_" are spaces, spaces are collapsed, what follows "#" is
    dropped (no title of a MediaWiki has one), characters are composed (NFC), and the first letter is a capital, as MediaWiki writes titles. Other letters keep their case. May be empty.
    """
    url = URL.match(name)
    if url:
        path = name[url.end() :]
        page = PAGE.match(path)
        path = path[page.end() :] if page else path
        name = unquote(QUERY.sub("", path, count=1))
    words = name.replace("_", " ").partition("#")[0] or name
    text = unicodedata.normalize("NFC", " ".join(words.split()))
    first = text[:1].upper()
    return unicodedata.normalize("NFC", first + text[1:]) if len(first) == 1 else text


def read_redirects(path: str) -> dict[str, str]:
    """Where titles lead, both sides as `title_of` writes them. The first line of a title counts; what leads to itself is left out.

    Args:
        path: `.json` (one object, {"from": "to"}), or lines of two columns with a tab between them.

    Raises:
        InputError: no such file, or another shape.
    """
    redirects: dict[str, str] = {}
    for name, target in _json_pairs(path) if path.endswith(".json") else _tsv_pairs(path):
        name, target = title_of(name), title_of(target)
        if name and target and name != target:
            redirects.setdefault(name, target)
    return redirects


class Titles:
    """The articles of a knowledge base by key, title, url and aliases.

    Holds sorted hashes, memory-mapped where the knowledge base is large (16 bytes a name), and reads the articles that a hash leads to: a name that only shares the hash is no match.
    Can be pickled.
    """

    def __init__(self, kb: KnowledgeBase, hashes: np.ndarray, lines: np.ndarray, redirects: Mapping[str, str]):
        self._kb, self._hashes, self._lines, self._redirects = kb, hashes, lines, redirects

    @classmethod
    def open(cls, kb: KnowledgeBase, redirects: Mapping[str, str] | None = None) -> "Titles":
        """Read the names of every article (remembered for large files; where it takes long, a line on stderr says how long).

        Args:
            redirects: of `read_redirects`.

        Raises:
            InputError: an article's title, url or aliases are no texts.
        """
        with telling(f"Reading the names of the articles of {kb.path}"):
            arrays = cached_arrays(kb.path, "titles-1", lambda: _index(kb))
        return cls(kb, arrays["hashes"], arrays["lines"], redirects or {})

    def find(self, name: str) -> str | None:
        """The key of the article that `name` means, the first of `matches`; None if there is none."""
        return next(iter(self.matches(name)), None)

    def matches(self, name: str) -> list[str]:
        """Keys of all articles that `name` means equally well, in the file's order; more than one: the name is ambiguous.

        The first of these that an article fits: the key as it is; the title or url as it is; the form (`title_of`) of key, title or url; an alias as it is; an alias's form; then the
        same for where the title redirects to, however often.
        """
        if self._kb.has_article(name):
            return [name]
        form, met = title_of(name), set()
        found = self._matches(name, form)
        while not found and form not in met and form in self._redirects:
            met.add(form)
            form = self._redirects[form]
            found = self._matches(form, form)
        return found

    def _matches(self, name: str, form: str) -> list[str]:
        if not form:
            return []
        found = places(self._hashes, form)
        best: list[str] = []
        rank = len(RANKS)
        for line in sorted(set(self._lines[found.start : found.stop].tolist())):
            article = self._kb.article_at(line)
            fit = next((i for i, fits in enumerate(RANKS) if fits(article, name, form)), len(RANKS))
            if fit < rank:
                best, rank = [], fit
            if fit == rank < len(RANKS):
                best.append(str(article["key"]))
        return best


def _main(article: dict) -> list[str]:
    return [article.get("title") or "", article.get("url") or ""]


RANKS = (  # how well an article fits a name and its form, best first
    lambda article, name, form: name in _main(article),
    lambda article, name, form: form in map(title_of, [str(article["key"]), *_main(article)]),
    lambda article, name, form: name in (article.get("aliases") or []),
    lambda article, name, form: form in map(title_of, article.get("aliases") or []),
)


def _index(kb: KnowledgeBase) -> dict[str, np.ndarray]:
    lines = array("q")

    def hashes() -> Iterator[int]:
        for line, article in enumerate(kb):
            for form in {title_of(name) for name in _names(article, kb, line)} - {""}:
                lines.append(line)
                yield text_hash(form)

    sorted_hashes, order = sort_hashes(hashes())
    return {"hashes": sorted_hashes, "lines": np.frombuffer(lines, dtype=np.int64)[order]}


def _names(article: dict, kb: KnowledgeBase, line: int) -> list[str]:
    aliases = article.get("aliases") or []
    names = [*_main(article), *(aliases if isinstance(aliases, list) else [aliases])]
    if not all(isinstance(name, str) for name in names) or not isinstance(aliases, list):
        raise InputError(f"{kb.source(line)}: `title` and `url` must be texts and `aliases` a list of texts.")
    return [str(article["key"]), *names]


def _json_pairs(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(f'Redirects {path} cannot be read ({error}); give a json object {{"from": "to"}}.') from None
    if not isinstance(value, dict) or not all(isinstance(target, str) for target in value.values()):
        raise InputError(f'Redirects {path} are no json object of texts; write {{"from": "to"}}.')
    yield from value.items()


def _tsv_pairs(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                columns = line.rstrip("\r\n").split("\t")
                if columns == [""]:
                    continue
                if len(columns) != 2:
                    raise InputError(f"{path}:{number}: {len(columns)} column(s); write title, tab, where it leads.")
                yield columns[0], columns[1]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Redirects {path} cannot be read ({error}); give a tsv file in UTF-8.") from None
