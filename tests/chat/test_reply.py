import io
import json

import pytest
from chat_demo import Replay
from hypothesis import given
from hypothesis import strategies as st
from test_splitter import TEXTS

from open_r1_kivqa.chat.reply import CUT, STOPPED, Sampling, ask
from open_r1_kivqa.chat.show import Json, Screen, Terminal, screen_for
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.extraction import lenient_answer


class Pieces(Screen):
    """Remembers the sections."""

    def __init__(self):
        super().__init__(io.StringIO())
        self.sections = {}

    def piece(self, piece):
        kind, text = self.sections.get(piece.section, (piece.kind, ""))
        self.sections[piece.section] = (kind, text + piece.text)


@given(TEXTS, st.booleans())
def test_the_last_answer_shown_is_the_one_that_scores(text, opens):
    screen = Pieces()
    reply = ask(Replay(*text, opens=opens), [], screen)
    answers = [shown for kind, shown in screen.sections.values() if kind == "answer"]
    assert reply.answer == lenient_answer(text)
    assert answers[-1:] == ([] if reply.answer is None else [reply.answer])


def shown(*chunks, screen=Screen, **how):
    out = io.StringIO()
    ask(Replay(*chunks, **how), [], screen(out))
    return out.getvalue()


def test_in_a_pipe_each_section_has_a_line_with_its_kind():
    assert shown("<think>a fl", "ag</think><ans", "wer>Paris</answer>") == "[thinking]\na flag\n[answer]\nParis\n"
    assert shown("It is red.\nParis") == "[text]\nIt is red.\nParis\n[answer]\nParis\n"
    assert (
        shown("<answer>\nIt is\nParis") == "[answer]\nIt is\nParis\n[answer]\nParis\n"
    )  # never closed: the last line scores
    assert shown("<answer>a</answer>, no: <answer></answer>") == "[answer]\na\n[text]\n, no:\n[answer]\n\n"
    assert shown("a</think>b", opens=True) == "[thinking]\na\n[text]\nb\n[answer]\nb\n"
    assert shown(" \n") == ""
    assert shown("<think>a\nb", end=STOPPED) == "[thinking]\na\nb\n"
    assert shown("<think>a\nb", end=CUT) == "[thinking]\na\nb\n[answer]\nb\n"  # as evaluation scores it


def test_on_a_terminal_thinking_is_dim_and_the_answer_bold():
    text = shown("<think>a</think><answer>b", "\x1b[2J\x07\r</answer>", screen=Terminal)
    styled, figures, _ = text.rsplit("\n", 2)
    assert styled == "\x1b[2ma\x1b[0m\n\n\x1b[1mb�[2J�\x1b[0m"
    assert figures == "\x1b[2m2 tokens, 0.0 s\x1b[0m"


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_styles_are_for_terminals_that_know_them(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert type(screen_for(Tty(), as_json=False)) is Terminal
    assert type(screen_for(io.StringIO(), as_json=False)) is Screen
    assert type(screen_for(Tty(), as_json=True)) is Json
    monkeypatch.setenv("NO_COLOR", "1")
    assert type(screen_for(Tty(), as_json=False)) is Screen
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert type(screen_for(Tty(), as_json=False)) is Screen


def test_json_is_one_object_on_one_line():
    text = shown("<think>é\n1</think>", "<answer>b</answer>", screen=Json)
    assert text.count("\n") == 1
    row = json.loads(text)
    assert row.pop("seconds") >= 0
    assert row == {
        "thinking": "é\n1",
        "answer": "b",
        "text": "<think>é\n1</think><answer>b</answer>",
        "tokens": 2,
    }


@pytest.mark.parametrize(
    ("text", "opens", "thinking"),
    [
        ("a", False, None),
        ("a</think>b", False, "a"),  # the prompt had opened it
        ("<think>a", False, "a"),  # cut
        ("a", True, "a"),
        ("<think></think>b", False, ""),
    ],
)
def test_thinking_that_was_never_opened_or_never_closed(text, opens, thinking):
    assert ask(Replay(text, opens=opens), [], Json(io.StringIO())).thinking == thinking


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": 1e-9},
        {"top_p": 0},
        {"top_p": 1.1},
        {"max_new_tokens": 0},
        {"seed": -1},
    ],
)
def test_sampling_that_cannot_be(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"--{name} "):
        Sampling(**{"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 1, **wrong})
