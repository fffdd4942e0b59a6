"""A request, its tries, and how replies are read."""

import asyncio
import email.utils
import json
import time

import pytest
from scripted_endpoint import completion

from open_r1_kivqa.endpoint import (
    Endpoint,
    Failure,
    Gate,
    Reply,
    read_reply,
    seconds_told,
)

ASK = [{"role": "user", "content": "Hello"}]


def chat(server, *, times=1, concurrency=4, timeout=5.0, retries=1, key=None, together=True):
    """`times` requests to the server; the outcomes in order."""

    async def run():
        endpoint = Endpoint("mllm", server.url, "m", key=key, timeout=timeout, retries=retries, gate=Gate(concurrency))
        try:
            if together:
                return await asyncio.gather(*(endpoint.chat(ASK, {}) for _ in range(times)))
            return [await endpoint.chat(ASK, {}) for _ in range(times)]
        finally:
            await endpoint.close()

    return asyncio.run(run())


def test_a_reply(serve):
    server = serve(lambda number, request: completion("Hi", reasoning_content="hm"))
    assert chat(server, key="secret") == [Reply("Hi", "hm", "stop", "", 100, 20)]
    assert server.seen == [{"model": "m", "messages": ASK}]
    assert server.headers[0]["Authorization"] == "Bearer secret"


FAILURES = {
    "status 500": (lambda number, request: (500, {}, b"busy"), 2),
    "status 429": (lambda number, request: (429, {}, b"quota"), 2),
    "status 404": (lambda number, request: (404, {}, b"no such model"), 1),
    "status 400": (lambda number, request: (400, {}, b"too long"), 1),
    "no connection": (lambda number, request: None, 2),
    "timeout": (lambda number, request: time.sleep(1.5) or "late", 2),
    "empty reply": (lambda number, request: " \n", 2),
    "error": (lambda number, request: completion("Half a", "error"), 2),
    "no chat completion": (lambda number, request: (200, {}, b"[" * 100_000), 2),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_and_their_tries(serve, kind):
    act, tries = FAILURES[kind]
    server = serve(act)
    (outcome,) = chat(server, timeout=1.0 if kind == "timeout" else 5.0)
    assert isinstance(outcome, Failure) and outcome.kind == kind
    assert len(server.seen) == tries


def test_a_body_that_is_cut_off(serve):
    whole = json.dumps(completion("Hi")).encode()
    cut = [
        (200, {"Content-Length": str(len(whole))}, whole[:-30]),  # ends before its length
        (200, {"Transfer-Encoding": "chunked"}, b"20\r\n" + whole[:32] + b"\r\n5f\r\n" + b"ab"),
    ]
    for body in cut:
        server = serve(lambda number, request, body=body: body if number == 1 else "Hi")
        assert chat(server)[0].text == "Hi"
        assert len(server.seen) == 2
    server = serve(lambda number, request: cut[0])
    assert chat(server, retries=0)[0].kind == "no connection"


def test_bytes_that_drip_do_not_hold_a_request(serve):
    class Dripping(serve("").RequestHandlerClass):
        def do_POST(self):
            self.server.seen.append(None)
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(20):
                self.wfile.write(b" ")
                time.sleep(0.1)

    server = serve("")
    server.RequestHandlerClass = Dripping
    assert chat(server, timeout=1.0)[0].kind == "timeout"
    assert len(server.seen) == 2


def test_retry_after_holds_all_requests_and_is_no_try(serve):
    """Each of the first three requests is told to wait, and none of the others may come meanwhile."""
    times = []

    def act(number, request):
        times.append(time.monotonic())
        return (429, {"Retry-After": "0.4"}, b"") if number <= 3 else "Hi"

    server = serve(act)
    outcomes = chat(server, times=6, concurrency=1, retries=0)
    assert [outcome.text for outcome in outcomes] == ["Hi"] * 6
    assert len(times) == 9
    waits = [later - earlier for earlier, later in zip(times[:3], times[1:4], strict=True)]
    assert min(waits) >= 0.38


def test_who_asks_for_too_long_a_wait_has_failed(serve):
    server = serve(lambda number, request: (429, {"Retry-After": "86400"}, b"daily limit"))
    (outcome,) = chat(server, retries=3)
    assert outcome.kind == "status 429" and "come back in 86400 s" in outcome.words
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("header", "seconds"), [("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), (None, None), ("nan", None)]
)
def test_seconds_told(header, seconds):
    assert seconds_told(header) == seconds


def test_seconds_told_by_a_date():
    assert 58 < seconds_told(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 60
    assert seconds_told("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_given_up_after_failures_in_a_row(serve):
    server = serve(lambda number, request: "Hi" if number == 5 else (503, {}, b"down"))
    outcomes = chat(server, times=30, retries=0, together=False)
    assert outcomes[4].text == "Hi" and len(server.seen) == 13  # 5, then 8 in a row
    assert {outcome.kind for outcome in outcomes[13:]} == {"given up"}
    assert "status 503: down" in outcomes[20].words
    # what is wrong with one request alone shows that the endpoint works
    server = serve(lambda number, request: (400, {}, b"too long") if number % 3 == 0 else (503, {}, b"down"))
    assert "given up" not in {outcome.kind for outcome in chat(server, times=20, retries=0, together=False)}


def test_the_key_is_not_repeated(serve):
    server = serve(lambda number, request: (401, {}, b"the key sk-secret is unknown"))
    (outcome,) = chat(server, key="sk-secret")
    assert outcome.words == "status 401: the key *** is unknown"


NO_COMPLETIONS = [b"", b"null", b"[]", b"1e999", b"\xff\xfe", b'{"choices": []}', b'{"choices": {"0": 1}}', b'{"choices": ["Hi"]}', b'"' + b"x" * 10**6]  # fmt: skip


@pytest.mark.parametrize("body", NO_COMPLETIONS, ids=lambda body: body[:20].decode(errors="replace"))
def test_no_chat_completion(body):
    failure = read_reply(body)
    assert failure.kind == "no chat completion" and failure.again


@pytest.mark.parametrize(
    ("message", "end", "reply"),
    [
        ({"content": "Hi"}, None, Reply("Hi")),
        ({"content": "Hi", "reasoning": "hm"}, "stop", Reply("Hi", "hm")),
        ({"content": None, "reasoning_content": "hm"}, "length", Reply("", "hm", "length")),
        ({"content": None, "refusal": "No."}, "stop", Reply("", "", "stop", "No.")),
        ({"content": None}, "content_filter", Reply("", "", "content_filter")),
        ({"content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]}, "stop", Reply("Hi!")),
        ({"content": "half \ud83d of a pair"}, "stop", Reply("half \ufffd of a pair")),
        ({"content": "Hi", "reasoning": {"a": 1}}, 3, Reply("Hi")),
    ],
)
def test_read_reply(message, end, reply):
    body = json.dumps({"choices": [{"message": message, "finish_reason": end}], "usage": {"prompt_tokens": True}})
    assert read_reply(body.encode()) == reply
