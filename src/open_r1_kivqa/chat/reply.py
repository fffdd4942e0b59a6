"""One question asked: the reply is shown while it comes, and read at the end as scoring reads it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError
from ..rewards.extraction import lenient_answer, think_text
from .show import Screen
from .splitter import ANSWER, THINKING, Piece, Splitter, split

LOWEST_TEMPERATURE = 0.01  # logits divided by less can overflow
DONE, CUT, STOPPED = "done", "cut", "stopped"  # the model ended; the limit did; Ctrl-C did


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn.

    Attributes:
        temperature: 0.0 for the most likely tokens, as evaluation answers.
        top_p: share of the probability that tokens are drawn from, in (0, 1]; acts above temperature 0.
        max_new_tokens: longest reply.
        seed: None for another reply each time.
    """

    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int | None = None

    def __post_init__(self):
        if self.temperature != 0 and not LOWEST_TEMPERATURE <= self.temperature < math.inf:
            raise InputError(
                f"--temperature {self.temperature}: 0 (always the most likely token), or a number from {LOWEST_TEMPERATURE} on is wanted."
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top_p {self.top_p}: a number above 0 and up to 1 is wanted.")
        if self.max_new_tokens < 1:
            raise InputError(f"--max_new_tokens {self.max_new_tokens}: at least 1 is wanted.")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise InputError(f"--seed {self.seed}: a number from 0 to {2**32 - 1} is wanted.")


@dataclass(frozen=True)
class Completion:
    """What a model wrote: the whole text, its tokens (None if a server doesn't count them), how it ended (DONE, CUT or STOPPED), and the seconds it took, without those of loading the model."""

    text: str
    tokens: int | None
    end: str
    seconds: float


class Backend(Protocol):
    """What answers: a model in this process (`local.LocalModel`) or a server (`server.Server`)."""

    def load(self) -> None:
        """Makes ready what the first answer would otherwise wait for."""

    def opens_thinking(self, prompt: list[dict]) -> bool:
        """Whether the chat template ends this prompt with `<think>`."""

    def complete(self, prompt: list[dict], on_text: Callable[[str], None]) -> Completion:
        """Answers a prompt of `build_prompt` and hands over its text as it comes; Ctrl-C ends it with what is there. InputError if the prompt cannot be answered."""


@dataclass(frozen=True)
class Reply:
    """A completion as scoring reads it.

    Attributes:
        thinking: the reasoning, of `think_text`; where it was never closed, what is there of it; None without any.
        answer: of `lenient_answer`: the last answer block, else the last line; None for an empty reply.
    """

    completion: Completion
    thinking: str | None
    answer: str | None

    def to_json(self) -> dict:
        """{"thinking", "answer", "text", "tokens", "seconds"}."""
        return {
            "thinking": self.thinking,
            "answer": self.answer,
            "text": self.completion.text,
            "tokens": self.completion.tokens,
            "seconds": round(self.completion.seconds, 3),
        }


def ask(backend: Backend, prompt: list[dict], screen: Screen) -> Reply:
    """Has the prompt answered on the screen. The last answer that it shows is `lenient_answer` of the whole text: where the tags led to another one, or to none, it is shown once more at the end. A reply stopped by Ctrl-C gets no such end."""
    opened = backend.opens_thinking(prompt)
    splitter = Splitter(thinking=opened)
    shown: dict[int, str] = {}  # answers by section

    def show(pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.kind == ANSWER:
                shown[piece.section] = shown.get(piece.section, "") + piece.text
            screen.piece(piece)

    try:
        completion = backend.complete(prompt, lambda text: show(splitter.feed(text)))
        show(splitter.end())
        reply = Reply(completion, _thinking(completion.text, opened), lenient_answer(completion.text))
        last = next(reversed(shown.values()), None)
        if reply.answer not in (None, last) and completion.end != STOPPED:
            screen.piece(Piece(-1, ANSWER, reply.answer))
    finally:
        screen.close()
    screen.end(reply)
    return reply


def _thinking(text: str, opened: bool) -> str | None:
    thought = think_text(text)
    if thought is None:
        parts = [piece.text for piece in split(text, thinking=opened) if piece.kind == THINKING]
        thought = "\n".join(parts) or None
    return thought
