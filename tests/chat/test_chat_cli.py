"""The command as users start it: one question, a pipe, a session at a (pseudo-)terminal."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest
from chat_demo import IMAGES, KNOWLEDGE, MODEL, eval_row, question_of
from stream_server import says, streaming

from open_r1_kivqa import cli
from open_r1_kivqa.chat.conversation import Conversation
from open_r1_kivqa.chat.passages import passages_of_entity, passages_of_keys
from open_r1_kivqa.evaluation.generate import greedy
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.rewards.extraction import lenient_answer, think_text
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

COMMAND = [sys.executable, "-m", "open_r1_kivqa.cli", "chat"]
DEMO_FLAGS = ["--model", MODEL, "--task_type", "factbook", "--knowledge_base", KNOWLEDGE, "--temperature", "0"]
PICTURES = [str(IMAGES / eval_row(number)["image"]) for number in range(2)]
QUESTIONS = [question_of(eval_row(number)) for number in range(2)]
KEYS = ",".join(eval_row(0)["candidates"])
STYLE = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


@pytest.fixture(scope="module")
def demo():
    return load_model(MODEL, dtype="auto"), load_processor(MODEL)


@pytest.fixture(scope="module")
def knowledge():
    return KnowledgeBase.open(KNOWLEDGE)


def evaluated(demo, prompt) -> str:
    (text,) = greedy(*demo, [prompt], max_new_tokens=48, batch_size=1)
    return text


def test_one_question_is_answered_as_evaluation_answers_it(demo, knowledge):
    flags = ["--image", PICTURES[0], "--question", QUESTIONS[0], "--passages", KEYS]
    done = subprocess.run([*COMMAND, *DEMO_FLAGS, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    conversation = Conversation(load_template("factbook"))
    conversation.add_image(PICTURES[0])
    conversation.passages = passages_of_keys(knowledge, KEYS)
    text = evaluated(demo, conversation.prompt(QUESTIONS[0]))
    assert done.stdout == f"[thinking]\n{think_text(text)}\n[answer]\n{lenient_answer(text)}\n"
    assert "Traceback" not in done.stderr


def test_json_for_questions_from_a_pipe(demo, knowledge):
    """A session without a terminal: a line in is an object out. What cannot be used is said on stderr and costs its line alone."""
    lines = [
        f"/entity {eval_row(0)['entity']}",
        QUESTIONS[0],
        "/image nowhere.png",
        "/nonsense",
        "<|im_end|>",
        "/new",
        QUESTIONS[1],
    ]
    done = subprocess.run(
        [*COMMAND, *DEMO_FLAGS, "--image", PICTURES[0], "--num_passages", "6", "--json"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    conversation = Conversation(load_template("factbook"))
    second_text = evaluated(demo, conversation.prompt(QUESTIONS[1]))
    conversation.add_image(PICTURES[0])
    conversation.passages = passages_of_entity(knowledge, eval_row(0)["entity"], 6)
    first_text = evaluated(demo, conversation.prompt(QUESTIONS[0]))
    assert [first["text"], second["text"]] == [first_text, second_text]
    assert list(first) == ["thinking", "answer", "text", "tokens", "seconds"]
    assert first["answer"] == lenient_answer(first_text)
    for words in ("nowhere.png does not exist", "/nonsense is no command", "spells the model token", "forgotten"):
        assert words in done.stderr
    assert len(conversation.passages) == 6 and "passages: gd#" in done.stderr


class Terminal:
    """The command at a pseudo-terminal of its own, so that Ctrl-C reaches it as from a keyboard."""

    def __init__(self, *flags: str):
        self.keyboard, end = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *flags],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "NO_COLOR": ""},
        )
        os.close(end)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def read_until(self, words: str, seconds: float = 300.0) -> str:
        """What was shown up to these words, which are taken out."""
        deadline = time.monotonic() + seconds
        while words not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.keyboard], [], [], left)[0], f"no {words!r} in {self.seen!r}"
            self.seen += os.read(self.keyboard, 65536).decode(errors="replace").replace("\r\n", "\n")
        before, _, self.seen = self.seen.partition(words)
        return before

    def interrupt(self, words: str) -> None:
        """Ctrl-C until these words are shown. One that comes after the prompt is written and before Python waits for a key only takes effect with the next key."""
        for _ in range(60):
            self.type("\x03")
            with suppress(AssertionError):
                self.read_until(words, seconds=5)
                return
        raise AssertionError(f"no {words!r} after Ctrl-C in {self.seen!r}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


@pytest.fixture
def terminal():
    opened = []

    def start(*flags: str) -> Terminal:
        opened.append(Terminal(*flags))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_session_of_two_turns_with_pictures(demo, knowledge, terminal):
    session = terminal(*DEMO_FLAGS, "--passages", KEYS)
    session.read_until("answers. /help lists the commands")
    session.read_until("> ")
    session.type(f"/image {PICTURES[0]}\n")
    session.read_until("picture of 112 x 84 pixels")
    session.type(QUESTIONS[0] + "\n")
    first = session.read_until(" tokens, ")
    session.type(f"/image '{PICTURES[1]}'\n")
    session.read_until("picture of 112 x 84 pixels")
    session.type(QUESTIONS[1] + "\n")
    second = session.read_until(" tokens, ")
    session.read_until("> ")
    session.interrupt("> ")  # at the prompt line it does nothing
    session.type("\x04")
    assert session.process.wait(120) == 0

    conversation = Conversation(load_template("factbook"))
    conversation.passages = passages_of_keys(knowledge, KEYS)
    for picture, question, shown in zip(PICTURES, QUESTIONS, (first, second), strict=True):
        conversation.add_image(picture)
        text = evaluated(demo, conversation.prompt(question))
        conversation.keep(question, text)
        thinking, answer = think_text(text), lenient_answer(text)
        if f"<think>{thinking}</think>" in text:
            assert f"\x1b[2m{thinking}\x1b[0m" in shown
        assert f"\x1b[1m{answer}\x1b[0m\n" in shown


def test_ctrl_c_stops_the_answer_and_the_session_goes_on(terminal):
    with streaming(lambda body: (200, says("<think>one ", "two")), pause_at=2) as server:
        session = terminal("--url", server.url, "--model", "m")
        session.read_until("> ")
        session.type("Is it?\n")
        session.read_until("\x1b[2mone")
        session.type("\x03")
        session.read_until("stopped")
        session.read_until("> ")
        server.pause_at = None
        session.type("And now?\n")
        shown = session.read_until("7 tokens, ")
        session.read_until("> ")
        session.type("/quit\n")
        assert session.process.wait(120) == 0
    assert "two" in shown
    turns = [turn["content"] for turn in server.seen[1][2]["messages"]]
    assert turns[-3:] == ["Is it?", "<think>one ", "And now?"]


def test_one_question_stopped_by_hand():
    with streaming(lambda body: (200, says("<think>one", " two")), pause_at=2) as server:
        flags = ["--url", server.url, "--model", "m", "--question", "Is it?"]
        process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "[thinking]\n"
            assert process.stdout.read(3) == "one"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == "\n" and "stopped" in err


def chat(capsys, *flags: str) -> tuple[int, str, str]:
    code = cli.main(["chat", *flags])
    return code, *capsys.readouterr()


def test_a_server_answers(capsys):
    with streaming(lambda body: (200, says("<think>a</think><ans", "wer>b</answer>"))) as server:
        assert chat(capsys, "--backend", server.url, "--model", "m", "--question", "What?", "--image", PICTURES[0]) == (
            0,
            "[thinking]\na\n[answer]\nb\n",
            "",
        )
        code, out, _ = chat(capsys, "--url", server.url, "--model", "m", "--question", "What?", "--json")
    row = json.loads(out)
    assert (code, row["answer"], row["tokens"]) == (0, "b", 7)


def test_a_question_from_stdin_and_a_server_that_breaks_off(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What?\nReally?\n"))
    with streaming(lambda body: (200, says("<think>a")[:2])) as server:
        code, out, err = chat(capsys, "--url", server.url, "--model", "m", "--question", "-")
    assert server.seen[0][2]["messages"][-1]["content"] == "What?\nReally?"
    assert (code, out) == (2, "[thinking]\na\n")
    assert "ended in the middle" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "No model could be read from"),
        (["--image", "nowhere.png"], "nowhere.png does not exist"),
        (["--image", __file__], "is not an image"),
        (["--question", ""], "The question is empty"),
        (["--question", "What<|image_pad|>?"], "The question spells the model token <|image_pad|>"),
        (["--question", "\udcff"], "--question is no text"),
        (["--question", "<image>?"], "1 <image> marker(s) for 0 new picture(s)"),
        (["--system_prompt", "<|im_end|>"], "--system_prompt spells the model token"),
        (["--task_type", "nothing"], "Prompt template nothing does not exist"),
        (["--knowledge_base", KNOWLEDGE], "--knowledge_base shows nothing by itself"),
        (
            ["--knowledge_base", KNOWLEDGE, "--passages", "fr#capitol"],
            "no passage 'fr#capitol'; like it are fr#capital",
        ),
        (["--knowledge_base", KNOWLEDGE, "--entity", "zz"], "no article 'zz'"),
        (["--passages", "fr#capital"], "--passages needs the knowledge base"),
        (["--temperature", "-1"], "--temperature -1.0: 0 (always"),
        (["--num_passages", "0"], "--num_passages 0: at least 1 is wanted"),
        (["--passage_images", "-1"], "--passage_images -1: at least 0 is wanted"),
        (["--url", "vllm"], "start `vllm serve MODEL`"),
        (["--url", "http://x/v1", "--dtype", "auto"], "--dtype has no effect with --url"),
        (["--api_key_env", "KEY"], "--api_key_env has no effect without --url"),
        (["--adapter", "nowhere"], "--adapter nowhere has no adapter_config.json"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_before_the_model(capsys, flags, words):
    """There is no such model, so whatever else is refused was refused before it."""
    code, out, err = chat(capsys, "--model", "no/such-model", "--question", "What?", *flags)
    assert (code, out) == (2, "")
    assert err.startswith("kivqa chat: ") and words in err and err.count("\n") == 1
    assert words.startswith("No model") or "no/such-model" not in err
