"""How a reply looks: on a terminal, in a pipe, or as json."""

import json
import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

from .splitter import ANSWER, TEXT, THINKING, Piece

if TYPE_CHECKING:
    from .reply import Reply

# What could move the cursor, change colours or ring: a model's text must not steer the terminal it is shown on.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
STYLES = {THINKING: DIM, ANSWER: BOLD, TEXT: ""}


class Screen:
    """A pipe or a file: each section below a line with its kind in brackets."""

    def __init__(self, out: TextIO):
        self.out = out
        self._section: int | None = None

    def piece(self, piece: Piece) -> None:
        """Shows some more characters at once."""
        if piece.section != self._section:
            self.out.write(self.between(piece.kind, first=self._section is None))
            self._section = piece.section
        self.out.write(self.text(piece.text))
        self.out.flush()

    def close(self) -> None:
        """Ends what was shown of one reply, whole or not."""
        if self._section is not None:
            self.out.write(self.after)
            self.out.flush()
        self._section = None

    def end(self, reply: "Reply") -> None:
        """What is told of a whole reply."""

    def between(self, kind: str, *, first: bool) -> str:
        return f"{'' if first else chr(10)}[{kind}]\n"

    def text(self, text: str) -> str:
        return text

    after = "\n"


class Terminal(Screen):
    """Thinking dimmed, the answer bold, and below it the number of tokens and seconds."""

    after = f"{PLAIN}\n"

    def between(self, kind: str, *, first: bool) -> str:
        return ("" if first else f"{PLAIN}\n\n") + STYLES[kind]

    def text(self, text: str) -> str:
        return CONTROL.sub("�", text)

    def end(self, reply: "Reply") -> None:
        tokens = "" if reply.completion.tokens is None else f"{reply.completion.tokens} tokens, "
        print(f"{DIM}{tokens}{reply.completion.seconds:.1f} s{PLAIN}", file=self.out, flush=True)


class Json(Screen):
    """Nothing while a reply comes, then one object on one line."""

    def piece(self, piece: Piece) -> None:
        pass

    def end(self, reply: "Reply") -> None:
        print(json.dumps(reply.to_json(), ensure_ascii=False), file=self.out, flush=True)


def screen_for(out: TextIO, *, as_json: bool) -> Screen:
    """The screen that fits where output goes. $NO_COLOR and terminals that know no styles get what a pipe gets."""
    if as_json:
        return Json(out)
    styled = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return Terminal(out) if styled else Screen(out)


def say(text: str) -> None:
    """A word to the user that is no part of a reply: on stderr, so that output can be read by programs."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
