"""What the tests of chat share: the embedded questions and their tiny model, and a backend that replays a text."""

import json
from functools import cache
from pathlib import Path

import open_r1_kivqa.demo
from open_r1_kivqa.chat.reply import DONE, Completion

DEMO = Path(open_r1_kivqa.demo.__file__).parent
MODEL = str(DEMO / "tiny_qwen2_5_vl")
IMAGES = DEMO / "data" / "images"
KNOWLEDGE = str(DEMO / "data" / "knowledge.jsonl")


@cache
def eval_row(number: int) -> dict:
    """A row of the embedded evaluation questions."""
    with open(DEMO / "data" / "eval.jsonl", encoding="utf-8") as file:
        return json.loads(list(file)[number])


def question_of(row: dict) -> str:
    return row["conversations"][0]["value"].removeprefix("<image>\n")


class Replay:
    """A backend that gives these chunks, whatever it is asked."""

    def __init__(self, *chunks: str, opens: bool = False, end: str = DONE):
        self.chunks, self.opens, self.end = chunks, opens, end

    def load(self):
        pass

    def opens_thinking(self, prompt):
        return self.opens

    def complete(self, prompt, on_text):
        for chunk in self.chunks:
            on_text(chunk)
        return Completion("".join(self.chunks), len(self.chunks), self.end, 0.0)
