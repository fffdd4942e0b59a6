"""Passages that a user names, and keys like an unknown one."""

from collections.abc import Sequence

from ..data.lines import JsonLines
from ..errors import InputError
from ..knowledge.base import KnowledgeBase, Passage

LIKE = 50  # least likeness in % (rapidfuzz.fuzz.ratio) of a key that is offered instead of an unknown one
FEW = 20_000  # up to so many articles titles are compared too, for which every article must be read


def passages_of_keys(knowledge: KnowledgeBase, text: str) -> list[Passage]:
    """The passages of keys "article#section", separated by ',', in their order. A key may hold commas itself.

    Raises:
        InputError: an unknown key, with known ones like it; or one given twice.
    """
    parts = text.split(",")
    found: list[str] = []
    while parts:
        if not parts[0].strip():
            parts = parts[1:]
            continue
        # The longest run of parts that is a key: "Paris, Texas#History" goes before "Paris".
        runs = [(end, ",".join(parts[:end]).strip()) for end in range(len(parts), 0, -1)]
        end, key = next(((end, run) for end, run in runs if "#" in run and run in knowledge), (0, ""))
        if not end:
            raise InputError(_no_passage(knowledge, parts[0].strip()))
        if key in found:
            raise InputError(f"The passage {key!r} is named twice; name each once.")
        found.append(key)
        parts = parts[end:]
    return [knowledge.passage(key) for key in found]


def passages_of_entity(knowledge: KnowledgeBase, key: str, most: int) -> list[Passage]:
    """The sections of an article in their order, `most` at most. InputError, with keys like it, if there is no such article; also if it has no section."""
    ids = _sections(knowledge, key)
    if ids is None:
        raise InputError(f"{knowledge.path} has no article {key!r}{_like(key, *_articles(knowledge))}.")
    if not ids:
        raise InputError(f"The article {key!r} of {knowledge.path} has no sections to show.")
    return [knowledge.passage(f"{key}#{id}") for id in ids[:most]]


def _no_passage(knowledge: KnowledgeBase, key: str) -> str:
    article, mark, _ = key.rpartition("#")
    ids = _sections(knowledge, article if mark else key)
    if ids is None:
        return (
            f"{knowledge.path} has no passage {key!r}, nor its article{_like(article or key, *_articles(knowledge))}."
        )
    known = [f"{article if mark else key}#{id}" for id in ids]
    if mark:
        return f"{knowledge.path} has no passage {key!r}{_like(key, known)}."
    return f"{key!r} is an article, not a passage: name its sections, as {', '.join(known[:3])}, or show them all by entity."


def _sections(knowledge: KnowledgeBase, key: str) -> list[str] | None:
    """The ids of an article's sections; None if there is no such article."""
    try:
        article = knowledge.article(key)
    except InputError:
        return None
    sections = article.get("sections")
    return [str(part.get("id")) for part in sections if isinstance(part, dict)] if isinstance(sections, list) else []


def _articles(knowledge: KnowledgeBase) -> tuple[list[str], list[str]]:
    """The keys of all articles, and their titles unless these are too many."""
    titles = [str(article.get("title", "")) for article in knowledge] if len(knowledge) <= FEW else []
    return JsonLines(knowledge.path).keys("key"), titles


def _like(key: str, known: Sequence[str], titles: Sequence[str] = ()) -> str:
    """The end of an error: known keys like this one, or those of titles like it, or some."""
    from rapidfuzz import fuzz, process

    names = [*known, *titles]
    found = process.extract(key, names, scorer=fuzz.ratio, processor=str.casefold, limit=6, score_cutoff=LIKE)
    near = list(dict.fromkeys(i % len(known) for _, _, i in found))[:3]
    if near:
        return f"; like it are {', '.join(f'{known[i]} ({titles[i]})' if titles else known[i] for i in near)}"
    return f"; keys look like {', '.join(known[:3])}" if known else ""
