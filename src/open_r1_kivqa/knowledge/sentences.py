"""Sentences of an encyclopedia's text, and whether one holds an answer."""

import re

from ..rewards.answer import normalise, numbers

END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’]*|\n+")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence, in order, without the white space around it."""
    spans, position = [], 0
    for match in [*END.finditer(text), None]:
        end = match.end() if match else len(text)
        piece = text[position:end]
        if piece.strip():
            spans.append((position + len(piece) - len(piece.lstrip()), position + len(piece.rstrip())))
        position = end
    return spans


def holds(sentence: str, keep: tuple) -> bool:
    """Whether it holds one of the texts as whole words, or a number of the range (low, high)."""
    if isinstance(keep[0], float):
        return any(keep[0] <= number <= keep[1] for number in numbers(sentence))
    words = f" {normalise(sentence)} "
    return any(f" {normalise(text)} " in words for text in keep if normalise(text))
