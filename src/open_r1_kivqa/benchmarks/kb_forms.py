"""Articles of published knowledge bases as ours: where each form has its fields, and how a text without sections is cut into some.

`evqa`        Encyclopedic-VQA's `encyclopedic_kb_wiki.json`, which EchoSight uses too: url → title, section_titles, section_texts, url, image_urls, …
`wiki6m`      InfoSeek's `Wiki6M_ver_1_0.jsonl` (wikidata_id, wikipedia_title, wikipedia_content, wikipedia_summary, wikipedia_image_url), or the same by url, as ReflectiVA's code reads it
`reflectiva`  url → title, url, text, sections: what is said of `final_related_KB_reflectiVA_v2.json`, whose inner keys are not documented
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..knowledge.sentences import split_sentences
from ..knowledge.titles import title_of
from .converted import Counts
from .field_map import FieldMap, described
from .json_stream import Item

# form: field of ours: key of theirs. The first of a form is what it is known by.
FORMS = {
    "evqa": {"section_texts": "section_texts", "section_titles": "section_titles"},
    "wiki6m": {
        "text": "wikipedia_content",
        "summary": "wikipedia_summary",
        "key": "wikidata_id",
        "title": "wikipedia_title",
        "image_urls": "wikipedia_image_url",
    },
    "reflectiva": {"sections": "sections", "text": "text"},
}
COMMON = {"key": "key", "title": "title", "url": "url", "image_urls": "image_urls"}
TEXTS = ("section_texts", "sections", "text")  # fields that an article's texts can stand in, in this order
FIELDS = ("key", "title", "url", "section_titles", *TEXTS, "summary", "image_urls")
HEADING = re.compile(
    r"^(?:(={2,6})[ \t]*(?P<wiki>[^=\s].*?)[ \t]*\1|#{1,6}[ \t]+(?P<markdown>.+?))[ \t]*$", re.MULTILINE
)


class Forms:
    """Turns items into articles."""

    def __init__(self, form: str, given: Sequence[str], section_length: int):
        """
        Args:
            form: one of `FORMS`, or "auto": each item's own, by the keys it has.
            given: --map's.
            section_length: characters that a section of a text without sections may have.

        Raises:
            InputError: --map is not of its form.
        """
        names = list(FORMS) if form == "auto" else [form]
        unused = {ours: "" for ours in FIELDS}  # a key that no item has
        self._maps = {name: FieldMap({**unused, **COMMON, **FORMS[name]}, given) for name in names}
        self._section_length = section_length

    def fitting(self, value: Any) -> str | None:
        """The form of an item's value: the first in which it has a text; None if it has none in any."""
        value = _wrapped(value)
        return next(
            (name for name, keys in self._maps.items() if any(keys.get(value, ours) is not None for ours in TEXTS)),
            None,
        )

    def wanted(self) -> str:
        """For messages: the keys of each form."""
        return "; ".join(
            f"{name}: {', '.join(theirs for theirs in {**FORMS[name], **COMMON}.values())}" for name in self._maps
        )

    def article(self, item: Item, keyed: bool, counts: Counts) -> dict | None:
        """The article of an item, without what it lacks; None if it can't be one (counted as dropped).

        Sections keep their place in the file as id ("0", "1", …), so that a benchmark's own section numbers fit; those without a text are left out.

        Args:
            keyed: the item's name is the article's key (a file that is one object); else its own `key`, `url` or `title` is.
        """
        value, form = _wrapped(item.value), self.fitting(item.value)
        if form is None:
            counts.drop("without any of the expected texts", f"{item.place}: {described(item.value)[:200]}")
            return None
        keys = self._maps[form]
        key, own_key, title, url = self._names(item, keyed, keys)
        if not key.strip():
            counts.drop("without key, url and title", item.place)
            return None
        sections = [
            {"id": str(place), "title": heading, "text": text}
            for place, (heading, text) in enumerate(self._sections(value, keys, item.place, counts))
            if text
        ]
        if not sections:
            counts.drop("without text", item.place)
            return None
        if not title:
            title = title_of(key)
            counts.note("title taken from the key", key)
        article = {"key": key, "title": title, "url": url or (key if "://" in key else ""), "sections": sections}
        pictures = [text for text in _texts(keys.get(value, "image_urls")) if text]
        images, urls = [name for name in pictures if "://" not in name], [name for name in pictures if "://" in name]
        article["images"] = images
        if urls:
            article["image_urls"] = urls
        if own_key and own_key != key:
            article["aliases"] = [own_key]
        return article

    def key(self, item: Item, keyed: bool) -> str:
        """The key that the item's article has, or would have; its place if it has none."""
        form = self.fitting(item.value)
        return (self._names(item, keyed, self._maps[form])[0] if form else keyed and item.name) or item.place

    def _names(self, item: Item, keyed: bool, keys: FieldMap) -> tuple[str, str, str, str]:
        """Key of the article; the item's own key, title and url."""
        own_key, title, url = (_text(keys.get(_wrapped(item.value), ours)) for ours in ("key", "title", "url"))
        return (item.name if keyed else own_key or url or title), own_key, title, url

    def _sections(self, value: dict, keys: FieldMap, place: str, counts: Counts) -> Iterator[tuple[str, str]]:
        """(heading, text) of each section; text "" for one without."""
        texts, headings = keys.get(value, "section_texts"), keys.get(value, "section_titles")
        if texts is None:
            parts = keys.get(value, "sections")
            if isinstance(parts, dict):  # heading: text
                headings, texts = list(parts), list(parts.values())
            elif isinstance(parts, list) and parts:
                headings = [_text(part.get("title")) if isinstance(part, dict) else "" for part in parts]
                texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        if not isinstance(texts, list):
            yield from _whole(_text(keys.get(value, "text")), _text(keys.get(value, "summary")), self._section_length)
            return
        headings = headings if isinstance(headings, list) else []
        if len(headings) != len(texts) and headings:
            counts.note(
                "other numbers of section titles and texts; those at the same place belong together",
                f"{place}: {len(headings)} titles, {len(texts)} texts",
            )
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                counts.note(
                    "section whose text is none, left out", f"{place} section {number}: {described(text)[:100]}"
                )
            yield (_text(headings[number]) if number < len(headings) else ""), _text(text).strip()


def cut_text(text: str, length: int) -> list[tuple[str, str]]:
    """(heading, text) of the sections of a plain text.

    Headings are lines `== … ==` or `# …`. What stands under one, or before the first, is one section if it has `length` characters at most; longer ones are cut between lines, a longer
    line between sentences, a longer sentence between words.
    """
    sections, heading, start = [], "", 0
    for found in [*HEADING.finditer(text), None]:
        body = text[start : found.start() if found else len(text)]
        sections.extend((heading, piece) for piece in _pieces(body, length))
        if found:
            heading, start = (found["wiki"] or found["markdown"]).strip(), found.end()
    return sections


def _whole(text: str, summary: str, length: int) -> list[tuple[str, str]]:
    """A text's sections, after a summary that doesn't open the text already."""
    opening = " ".join(summary.split())[:80]
    if opening and not " ".join(text[:1000].split()).startswith(opening):
        return cut_text(summary, length) + cut_text(text, length)
    return cut_text(text, length)


def _pieces(text: str, length: int) -> list[str]:
    """Runs of lines, each of `length` characters at most."""
    pieces: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        for number, part in enumerate([line] if len(line) <= length else _parts(line, length)):
            joint = " " if number else "\n"
            if pieces and len(pieces[-1]) + 1 + len(part) <= length:
                pieces[-1] += joint + part
            else:
                pieces.append(part)
    return pieces


def _parts(line: str, length: int) -> Iterator[str]:
    """The sentences of a line; of longer ones runs of words, of longer words their characters."""
    for start, end in split_sentences(line):
        rest = line[start:end].strip()
        while len(rest) > length:
            cut = rest.rfind(" ", 1, length + 1)
            cut = cut if cut > 0 else length
            yield rest[:cut].rstrip()
            rest = rest[cut:].lstrip()
        if rest:
            yield rest


def _wrapped(value: Any) -> Any:
    """A text or list alone is the article's text, or its sections."""
    if isinstance(value, str):
        return {"text": value}
    return {"sections": value} if isinstance(value, list) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [_text(part) for part in (value if isinstance(value, list) else [value])]
