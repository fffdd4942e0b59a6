"""What another system retrieved, read from its json or jsonl file.

Forms, all of which may be mixed in what they hold of a question:

    {"<id>": ["name", ...]}                                                  names only
    {"<id>": {"retrieved": ["name", ...], "scores": [0.9, ...]}}             EchoSight: "retrieved_entries", "retrieval_similarities"
    [{"data_id": "<id>", "retrieved": [{"url": "name", "score": 0.9}, ...]}]   also one such object a line

A name is a passage's key, or an article's key, url or title. An id is a row's `id` or `data_id`; EchoSight's "E-VQA_12" is `data_id` 12.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..data.lines import JsonLines
from ..data.samples import Sample
from ..errors import InputError
from ..knowledge.base import KnowledgeBase

# Each of our names: what it is called in files, the first that is there counts.
NAMES = {
    "id": ("data_id", "id", "question_id"),
    "retrieved": ("retrieved", "retrieved_entries", "candidates"),
    "scores": ("scores", "retrieval_similarities"),
    "name": ("key", "passage", "url", "wikipedia_url", "title"),
    "score": ("score", "similarity"),
}
ECHOSIGHT = "E-VQA_"
EXAMPLES, SHOWN = 20, 5  # names without an article that are kept, and printed


@dataclass(frozen=True)
class Retrieved:
    """What a file holds for a question: passages in their order, or articles, best first, each with its V."""

    passages: tuple[str, ...] = ()
    articles: tuple[str, ...] = ()
    visual: tuple[float, ...] = ()


@dataclass
class TopK:
    """Another system's lists, their names found in the knowledge base.

    Attributes:
        lists: by the file's id.
        names, unmatched: how many names the lists hold, and how many of them the knowledge base lacks; those are left out.
        examples: some of these.
        scored: whether articles come with scores; without, V falls evenly from 1 to 1/n over a list of n.
    """

    lists: dict[str, Retrieved] = field(default_factory=dict)
    names: int = 0
    unmatched: int = 0
    examples: list[str] = field(default_factory=list)
    scored: bool = False

    @classmethod
    def read(cls, path: str, kb: KnowledgeBase, titles, mapping: Mapping[str, str]) -> "TopK":
        """Reads a file.

        Args:
            titles: `knowledge.titles.Titles` of the knowledge base.
            mapping: what the file calls one of `NAMES`, for other files.

        Raises:
            InputError: another form, or no name of it is in the knowledge base.
        """
        topk, known = cls(), {}
        for place, id, entry in _entries(path, mapping):
            if id in topk.lists:
                raise InputError(f"{place}: id {id!r} is given twice; give each question one list.")
            topk.lists[id] = topk._find(place, _names(place, entry, mapping), kb, titles, known)
        if not topk.lists:
            raise InputError(f"{path} holds no list; give a file of another system's retrieval.")
        if topk.names and topk.names == topk.unmatched:
            raise InputError(
                f"{path}: none of its {topk.names:,} names is an article or passage of {kb.path} (first: {topk.examples[0]!r}); give the knowledge base that the other system used, "
                f"or --redirects."
            )
        return topk

    def of(self, sample: Sample) -> Retrieved | None:
        """The list of a row, by its `id` or its `data_id`; None without."""
        data_id = sample.row.get("data_id")
        ids = [sample.id] if data_id is None else [sample.id, str(data_id), f"{ECHOSIGHT}{data_id}"]
        return next((self.lists[id] for id in ids if id in self.lists), None)

    @property
    def longest(self) -> int:
        """Most things of a list."""
        return max(len(own.passages or own.articles) for own in self.lists.values())

    def to_json(self) -> dict:
        """Counts and examples as plain values."""
        return {
            "lists": len(self.lists),
            "of_passages": sum(bool(own.passages) for own in self.lists.values()),
            "names": self.names,
            "unmatched": self.unmatched,
            "unmatched_examples": self.examples,
            "scored": self.scored,
        }

    def lines(self) -> list[str]:
        """The same for the terminal."""
        share = f"{100 * self.unmatched / max(1, self.names):.1f} %"
        lines = [
            f"{len(self.lists):,} lists with {self.names:,} names, {self.unmatched:,} of them ({share}) not in the knowledge base."
        ]
        if self.examples:
            lines.append(f"Not there, for example: {', '.join(map(repr, self.examples[:SHOWN]))}")
        return lines

    def _find(
        self, place: str, names: list[tuple[str, float | None]], kb: KnowledgeBase, titles, known: dict
    ) -> Retrieved:
        found: dict[str, float | None] = {}
        kinds = set()
        for name, score in names:
            if name not in known:
                known[name] = _find_name(name, kb, titles)
            self.names += 1
            if known[name] is None:
                self.unmatched += 1
                if name not in self.examples and len(self.examples) < EXAMPLES:
                    self.examples.append(name)
                continue
            key, is_passage = known[name]
            kinds.add(is_passage)
            found.setdefault(key, score)
        if len(kinds) > 1:
            raise InputError(f"{place}: the list names articles and passages; give one kind.")
        if kinds == {True}:
            return Retrieved(passages=tuple(found))
        if None in found.values():
            return Retrieved(articles=tuple(found), visual=tuple(1 - i / len(found) for i in range(len(found))))
        self.scored = self.scored or bool(found)
        keys = sorted(found, key=lambda key: -found[key])  # stable: of equal scores in the file's order
        return Retrieved(articles=tuple(keys), visual=tuple(found[key] for key in keys))


def read_mapping(text: str | None) -> dict[str, str]:
    """ "id=qid,retrieved=docs" -> {"id": "qid", "retrieved": "docs"}; `InputError` for names that are not ours."""
    mapping = {}
    for part in (text or "").split(","):
        ours, mark, theirs = part.strip().partition("=")
        if not part.strip():
            continue
        if ours not in NAMES or not mark or not theirs:
            raise InputError(
                f"--map {part.strip()!r} is not of the form ours=theirs with ours one of {', '.join(NAMES)}."
            )
        mapping[ours] = theirs
    return mapping


def _entries(path: str, mapping: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """(place, id, what is held for it)."""
    if not os.path.isfile(path):
        raise InputError(f"--topk_json {path} does not exist; give the path of a file.")
    if path.endswith(".jsonl"):
        lines = JsonLines(path)
        for i in range(len(lines)):
            yield lines.source(i), *_listed(lines.source(i), lines.record(i), mapping)
        return
    with open(path, "rb") as file:
        try:
            table = json.load(file, object_pairs_hook=lambda pairs: _object(path, pairs))
        except InputError:
            raise
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"--topk_json {path} is not JSON ({error}); a file of one object a line must end with .jsonl."
            ) from None
    if isinstance(table, dict):
        for id, entry in table.items():
            yield f"{path}, {id!r}", id, entry
    elif isinstance(table, list):
        for number, entry in enumerate(table):
            yield f"{path}, entry {number}", *_listed(f"{path}, entry {number}", entry, mapping)
    else:
        raise InputError(f"--topk_json {path} holds a {type(table).__name__}; wanted is an object or a list.")


def _object(path: str, pairs: list[tuple[str, object]]) -> dict:
    """A JSON object, whose keys are ids at the first level. Python would take the last of several values."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"{path}: {twice!r} is given twice in one object; give each question one list.")
    return table


def _listed(place: str, entry: object, mapping: Mapping[str, str]) -> tuple[str, object]:
    id = _field(place, entry, "id", mapping)
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise InputError(f"{place}: the id is {id!r}; wanted is a text or an integer.")
    return str(id), entry


def _names(place: str, entry: object, mapping: Mapping[str, str]) -> list[tuple[str, float | None]]:
    """(name, score or None) of each thing in a list."""
    scores = None
    if isinstance(entry, dict):
        scores = _field(place, entry, "scores", mapping, required=False)
        entry = _field(place, entry, "retrieved", mapping)
    if not isinstance(entry, list):
        raise InputError(f"{place}: wanted is a list of what was retrieved, found a {type(entry).__name__}.")
    if scores is not None and (not isinstance(scores, list) or len(scores) != len(entry)):
        raise InputError(f"{place}: wanted is one score for each of the {len(entry)} things retrieved.")
    pairs = []
    for i, thing in enumerate(entry):
        score = None if scores is None else scores[i]
        if isinstance(thing, dict):
            score = _field(place, thing, "score", mapping, required=False) if scores is None else score
            thing = _field(place, thing, "name", mapping)
        if not isinstance(thing, str) or not thing:
            raise InputError(f"{place}: {thing!r} is no name; wanted is a key, url or title as a text.")
        if score is not None and (
            isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score)
        ):
            raise InputError(f"{place}: the score of {thing!r} is {score!r}; wanted is a finite number.")
        pairs.append((thing, score))
    return pairs


def _field(place: str, entry: object, ours: str, mapping: Mapping[str, str], required: bool = True) -> object:
    if not isinstance(entry, dict):
        raise InputError(f"{place}: wanted is an object, found a {type(entry).__name__}.")
    names = (mapping[ours],) if ours in mapping else NAMES[ours]
    for name in names:
        if entry.get(name) is not None:
            return entry[name]
    if required:
        raise InputError(
            f"{place}: none of the fields {', '.join(names)} is there, only {', '.join(map(str, entry)) or 'nothing'}; say which one it is with --map {ours}=NAME."
        )
    return None


def _find_name(name: str, kb: KnowledgeBase, titles) -> tuple[str, bool] | None:
    """(key, whether it is a passage's); None if the knowledge base has neither."""
    article, mark, section = name.rpartition("#")
    if mark and (key := titles.find(article)) is not None and f"{key}#{section}" in kb:
        return f"{key}#{section}", True
    key = titles.find(name)
    return None if key is None else (key, False)
