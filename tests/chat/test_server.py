import base64
import io

import numpy as np
import pytest
from chat_demo import IMAGES, eval_row
from PIL import Image
from stream_server import chunk, says, streaming

from open_r1_kivqa.chat.conversation import Conversation
from open_r1_kivqa.chat.reply import CUT, DONE, STOPPED, Sampling, ask
from open_r1_kivqa.chat.server import Server
from open_r1_kivqa.chat.show import Screen
from open_r1_kivqa.data.images import load_image
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.prompts import load_template

SAMPLING = Sampling(0.6, 0.95, 100, seed=3)


def question(*images, text="What is this?"):
    conversation = Conversation(load_template("kivqa"))
    for image in images:
        conversation.add_image(str(image))
    return conversation.prompt(text)


def complete(reply, prompt=None, **flags):
    with streaming(reply) as server:
        given = []
        completion = Server(server.url, "m", SAMPLING, **flags).complete(prompt or question(), given.append)
        assert "".join(given) == completion.text
        return completion, server.seen


def test_what_is_sent(tmp_path):
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    picture.save(tmp_path / "side.png", exif=exif)
    _, [(path, headers, body)] = complete(lambda body: (200, says("b")), question(tmp_path / "side.png"))
    assert path == "/v1/chat/completions"
    system, user = body.pop("messages")
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 100,
        "seed": 3,
    }
    assert system["role"] == "system" and system["content"].startswith("You answer questions about an image")
    image, text = user["content"]
    assert text == {"type": "text", "text": "Question: What is this?"}
    head, data = image["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    sent = Image.open(io.BytesIO(base64.b64decode(data)))
    assert sent.size == (2, 4)  # upright, as a model in this process gets it
    assert np.array_equal(np.asarray(sent), np.asarray(load_image(str(tmp_path / "side.png"))))
    assert headers["authorization"] == "Bearer EMPTY"


def test_key_and_further_fields(monkeypatch):
    monkeypatch.setenv("CHAT_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    _, [(_, headers, body)] = complete(
        lambda body: (200, says("b")), key_env="CHAT_KEY", request='{"top_k": 20, "seed": null, "max_tokens": 5}'
    )
    assert headers["authorization"] == "Bearer secret-1"
    assert body["top_k"] == 20 and body["max_tokens"] == 5 and "seed" not in body


def test_replies():
    completion, _ = complete(lambda body: (200, [*says("<think>a</th", "ink><answer>b</answer>", tokens=9), "[DONE]"]))
    assert (completion.text, completion.tokens, completion.end) == ("<think>a</think><answer>b</answer>", 9, DONE)
    completion, _ = complete(lambda body: (200, [chunk(content="cut"), chunk("length")]))
    assert (completion.text, completion.tokens, completion.end) == ("cut", None, CUT)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_that_comes_apart_is_shown_as_thinking(field):
    events = [chunk(**{field: "a f"}), chunk(**{field: "lag"}), chunk(content="\n\nPar"), chunk("stop", content="is")]
    with streaming(lambda body: (200, events)) as server:
        out = io.StringIO()
        reply = ask(Server(server.url, "m", SAMPLING), question(), Screen(out))
    assert reply.completion.text == "<think>a flag</think>\n\nParis"
    assert (reply.thinking, reply.answer) == ("a flag", "Paris")
    assert out.getvalue() == "[thinking]\na flag\n[text]\nParis\n[answer]\nParis\n"


def test_text_is_shown_while_it_comes_and_ctrl_c_stops_it():
    """The server holds the third piece back until the second has been shown."""
    with streaming(lambda body: (200, says("one ", "two ", "three")), pause_at=3) as server:
        given = []

        def on_text(text):
            given.append(text)
            if text == "two ":
                raise KeyboardInterrupt

        completion = Server(server.url, "m", SAMPLING).complete(question(), on_text)
    assert given == ["one ", "two "]
    assert (completion.text, completion.end) == ("one two ", STOPPED)


@pytest.mark.parametrize(
    ("status", "events", "words"),
    [
        (404, {"error": {"message": "The model `m` does not exist."}}, "status 404: .*does not exist"),
        (400, {"error": "is longer than the maximum model length"}, "status 400: .*maximum model length"),
        (200, [chunk(content="a"), {"error": {"message": "out of memory"}}], "out of memory"),
        (200, [chunk(content="a")], "ended in the middle"),
        (200, ["<html>"], "gave no reply of 'm'"),
    ],
)
def test_failures_are_one_sentence(status, events, words):
    with pytest.raises(InputError, match=words) as caught:
        complete(lambda body: (status, events))
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there():
    with streaming(lambda body: (200, [])) as server:
        url = server.url
    with pytest.raises(InputError, match="no connection"):
        Server(url, "m", SAMPLING).complete(question(), print)


def test_a_key_is_never_shown(monkeypatch):
    monkeypatch.setenv("CHAT_KEY", "secret-1")
    with pytest.raises(InputError, match=r"key \*\*\* is wrong"):
        complete(lambda body: (401, {"error": "key secret-1 is wrong"}), key_env="CHAT_KEY")
    with pytest.raises(InputError) as caught:
        Server("http://localhost/v1", "m", SAMPLING, key_env="secret-1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"url": "localhost:8000"}, "no http or https address"),
        ({"url": "http://localhost:x/v1"}, "no http or https address"),
        ({"key_env": "CHAT_KEY_THAT_IS_NOT_SET"}, "is not set"),
        ({"request": "[1]"}, "a JSON object is wanted"),
        ({"request": '{"messages": []}'}, "sets 'messages'"),
    ],
)
def test_flags_that_are_refused(flags, words):
    with pytest.raises(InputError, match=words):
        Server(**{"url": "http://localhost:8000/v1", **flags}, model="m", sampling=SAMPLING)


def test_earlier_turns_are_sent():
    conversation = Conversation(load_template("default"), system_prompt="")
    conversation.add_image(str(IMAGES / eval_row(0)["image"]))
    conversation.keep("First?", "<answer>a</answer>")
    _, [(_, _, body)] = complete(lambda body: (200, says("b")), conversation.prompt("Second?"))
    first, reply, second = body["messages"]
    assert [block["type"] for block in first["content"]] == ["image_url", "text"]
    assert reply == {"role": "assistant", "content": "<answer>a</answer>"}
    assert second == {"role": "user", "content": "Second?"}
