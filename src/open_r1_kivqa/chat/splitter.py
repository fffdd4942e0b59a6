"""A reply cut into thinking, answer and other text while it comes, piece by piece."""

from typing import NamedTuple

from ..rewards.extraction import FORM_TAG

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TEXT, THINKING, ANSWER = "text", "thinking", "answer"


class Piece(NamedTuple):
    """Some characters of a section. Every tag begins a section, so two answers in a row have different numbers; `kind` is TEXT, THINKING or ANSWER."""

    section: int
    kind: str
    text: str


class Splitter:
    """Takes a reply in chunks of any size and gives its pieces as early as they are certain.

    Tags are left out, and so is white space at both ends of a section; sections without anything else give no piece. Joined by section, the pieces are the same however the reply is cut into chunks.

    `</answer>` leads back to where its `<answer>` stood, thinking or text, and `</think>` ends both. What is no whole tag is text.

    Args:
        thinking: whether the reply begins inside `<think>`, as where the chat template ends the prompt with that tag.
    """

    def __init__(self, *, thinking: bool = False):
        self._thinking, self._answer = thinking, False
        self._section = 0
        self._held = ""  # the end of the last chunk, if a tag may begin there
        self._space = ""  # white space, given only if more of its section follows
        self._begun = False  # whether a piece of this section was given

    def feed(self, chunk: str) -> list[Piece]:
        """The pieces that are certain now."""
        text = self._held + chunk
        pieces, position = [], 0
        for tag in FORM_TAG.finditer(text):
            pieces += self._give(text[position : tag.start()])
            self._turn(tag.group())
            position = tag.end()
        rest = text[position:]
        begin = rest.rfind("<")
        keep = begin if begin >= 0 and any(tag.startswith(rest[begin:]) for tag in TAGS) else len(rest)
        self._held = rest[keep:]
        return pieces + self._give(rest[:keep])

    def end(self) -> list[Piece]:
        """The last pieces: nothing more will come."""
        held, self._held = self._held, ""
        return self._give(held)

    def _give(self, text: str) -> list[Piece]:
        text = self._space + text
        if not self._begun:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if not shown:
            return []
        self._begun = True
        kind = ANSWER if self._answer else THINKING if self._thinking else TEXT
        return [Piece(self._section, kind, shown)]

    def _turn(self, tag: str) -> None:
        if tag == "<think>":
            self._thinking = True
        elif tag == "<answer>":
            self._answer = True
        else:
            self._answer = False
            self._thinking = self._thinking and tag == "</answer>"
        self._section += 1
        self._space, self._begun = "", False


def split(text: str, *, thinking: bool = False) -> list[Piece]:
    """The sections of a whole reply, one piece each, in order."""
    splitter = Splitter(thinking=thinking)
    sections: dict[int, Piece] = {}
    for piece in [*splitter.feed(text), *splitter.end()]:
        before = sections[piece.section].text if piece.section in sections else ""
        sections[piece.section] = piece._replace(text=before + piece.text)
    return list(sections.values())
