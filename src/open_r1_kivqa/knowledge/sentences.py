"""Sentences of an encyclopedia's text, and which of them hold an answer."""

import re
from functools import lru_cache

from ..rewards.answer import normalise, numbers

END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\s*\n\s*""")
WORD_BEFORE = re.compile(r"[\w.]*$")
LONGEST_WORD = 12  # letters before a full stop that are looked at
NEXT = re.compile(r"\s*(\S)")
# Words whose full stop ends no sentence, in small letters, and those of which it doesn't before a number.
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col maj capt lt sgt cmdr adm gov sen rep pres messrs mme mlle mt vs etc approx ca c cf al e.g i.e eg ie eds inc ltd co corp bros dept est "
    "jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k b.c a.d d.c lit trans b d fl r".split()
)
BEFORE_NUMBERS = frozenset("no nos vol vols p pp fig figs ch sec art op ed".split())
POSSESSIVE = re.compile(r"['’]s\b")
ARTICLE = re.compile(r" (?:a|an|the)$")
CACHED = 1024  # passages whose sentences are remembered in the form in which they are compared

Span = tuple[int, int]


def split_sentences(text: str) -> list[Span]:
    """(start, end) of each sentence, in order, without the white space around it.

    A sentence ends at ".", "!", "?" or "…" before white space, at "。", "！" or "？", and at a line break; not after an abbreviation or an initial, nor where the text goes on in small letters.
    """
    spans, position = [], 0
    for match in END.finditer(text):
        if _goes_on(text, match):
            continue
        spans.append((position, match.end()))
        position = match.end()
    spans.append((position, len(text)))
    stripped = [(start + _blank(text[start:end]), start + len(text[start:end].rstrip())) for start, end in spans]
    return [(start, end) for start, end in stripped if start < end]


def find_evidence(
    text: str, sentences: tuple[Span, ...], answers: tuple[str, ...] | tuple[float, float]
) -> Span | None:
    """First and last number of the sentences that hold an answer; None if none does.

    The first sentence that has an answer as whole words (compared as `rewards.answer.normalise` writes them, without a genitive's 's), else the first two in a row that have it between them, else the first one with all
    numbers of an answer. Of an answer of several items ("x&&y") the sentence that has most of them. For a range the first sentence with a number in it.

    Args:
        answers: texts, or (low, high).
    """
    if not answers:
        return None
    if not isinstance(answers[0], str):
        low, high = answers
        return _first(sentences, lambda i: any(low <= number <= high for number in numbers(_part(text, sentences[i]))))
    # An article at an end is kept, and before another word it is not: "Serie A" is "serie" in the middle of a sentence.
    lists = [[ARTICLE.sub("", _words(item)) for item in answer.split("&&")] for answer in answers]
    lists = [[item for item in items if item] for items in lists]
    written = _written(text, sentences)
    return (
        _most(written, lists, 0)
        or _most([f"{one[:-1]}{two}" for one, two in zip(written, written[1:], strict=False)], lists, 1)
        or _first(sentences, lambda i: _has_numbers(_part(text, sentences[i]), answers))
    )


def _goes_on(text: str, stop: re.Match) -> bool:
    """Whether a sentence goes on after what looks like its end."""
    following = NEXT.match(text, stop.end())
    if stop.group()[0] not in ".!?…" or following is None:
        return False
    if following[1].islower():
        return True
    word = WORD_BEFORE.search(text[max(0, stop.start() - LONGEST_WORD) : stop.start()]).group()
    if stop.group()[0] != "." or not word:
        return False
    initial = len(word.rpartition(".")[2]) == 1 and word[-1].isupper()  # J. R. R. Tolkien
    numbered = word.lower() in BEFORE_NUMBERS and following[1].isdigit()
    return initial or numbered or word.lower() in ABBREVIATIONS


def _blank(text: str) -> int:
    return len(text) - len(text.lstrip())


def _part(text: str, span: Span) -> str:
    return text[span[0] : span[1]]


@lru_cache(maxsize=CACHED)
def _written(text: str, sentences: tuple[Span, ...]) -> list[str]:
    """Each sentence's words with a space around every one."""
    return [f" {_words(_part(text, span))} " for span in sentences]


def _words(text: str) -> str:
    return normalise(POSSESSIVE.sub("", text))


def _most(written: list[str], lists: list[list[str]], more: int) -> Span | None:
    """The first of the texts with the largest share of an answer's items, above 0."""
    best, shares = None, 0.0
    for i, words in enumerate(written):
        share = max((sum(f" {item} " in words for item in items) / len(items) for items in lists if items), default=0.0)
        if share > shares:
            best, shares = (i, i + more), share
    return best


def _first(sentences: tuple[Span, ...], holds) -> Span | None:
    found = next((i for i in range(len(sentences)) if holds(i)), None)
    return None if found is None else (found, found)


def _has_numbers(sentence: str, answers: tuple[str, ...]) -> bool:
    wanted = [numbers(answer) for answer in answers]
    found = set(numbers(sentence)) if any(wanted) else set()
    return any(one and found.issuperset(one) for one in wanted)
