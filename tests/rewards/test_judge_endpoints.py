"""The judge at endpoints that act badly: no verdict is None and counted, and nothing stops."""

import time

import pytest
from judge_server import Handler, completion, says_paris, serving

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.judge import Judge


@pytest.fixture
def serve():
    with serving() as start:
        yield start


def judge_of(server, **settings):
    return Judge(server.url, "grader", **{"timeout": 5.0, "retries": 1, "concurrency": 4} | settings)


def grade(judge, *answers, question="What is the capital of France?", references=("Paris",)):
    return judge.grade([question] * len(answers), [references] * len(answers), list(answers))


def test_a_server_error_is_tried_again(serve):
    server = serve(lambda number, row: (500, {}, {"error": "busy"}) if number == 1 else "correct")
    judge = judge_of(server)
    assert grade(judge, "It is Paris.") == [1.0]
    assert len(server.seen) == 2 and judge.failed == 0


def test_retry_after_is_heeded(serve):
    times = []

    def act(number, row):
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}, {"error": "slow down"}) if number == 1 else "correct"

    assert grade(judge_of(serve(act)), "It is Paris.") == [1.0]
    assert times[1] - times[0] >= 0.95  # the client's own first wait is at most half a second


FAULTS = {
    "status 500": (lambda number, row: (500, {}, {"error": "busy"}), 2),
    "status 429": (lambda number, row: (429, {}, {"error": "quota"}), 2),
    "status 404": (lambda number, row: (404, {}, {"error": "no such model"}), 1),
    "status 401": (lambda number, row: (401, {}, b"\xff\x00"), 1),
    "no verdict": (lambda number, row: "The answer is correct, I think.", 1),
    "no connection": (lambda number, row: None, 2),
}
NO_COMPLETIONS = {
    "garbage": b'{"choices": [{"mess',
    "html": b"<html>Bad gateway</html>",
    "not utf-8": b"\xff\xfe\x00",
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "no choice": b'{"choices": []}',
    "choices of another kind": b'{"choices": {"0": 1}}',
    "choice of another kind": b'{"choices": ["correct"]}',
    "deep": b"[" * 200_000,
    "huge": b'"' + b"correct " * 2_000_000 + b'"',
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failure_is_none_and_counted(kind, serve):
    act, requests = FAULTS[kind]
    server = serve(act)
    judge = judge_of(server)
    assert grade(judge, "It is Paris.", "Paris", "", "It is Paris.") == [None, 1.0, 0.0, None]
    assert len(server.seen) == requests
    assert judge.failed == 1 and judge.failures == {kind: 1}
    counts = judge.metrics()
    assert (counts["asked"], counts["failed"], counts["cached"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("kind", NO_COMPLETIONS)
def test_no_completion_is_a_failure(kind, serve):
    kept = "text/html" if kind == "html" else "application/json"
    server = serve(lambda number, row: (200, {"Content-Type": kept}, NO_COMPLETIONS[kind]))
    judge = judge_of(server, retries=0)
    assert grade(judge, "It is Paris.") == [None]
    assert judge.failures == {"no chat completion": 1}


def test_lies_about_the_encoding_and_the_length(serve):
    replies = [{"Content-Encoding": "gzip"}, {"Content-Length": "100000"}, {"Location": "/v1/elsewhere"}]
    for headers in replies:
        status = 302 if "Location" in headers else 200

        def act(number, row, headers=headers, status=status):
            return status, headers, b"{}"

        judge = judge_of(serve(act), retries=0, timeout=0.5)
        assert grade(judge, "It is Paris.") == [None] and judge.failed == 1


def test_an_endpoint_that_is_too_slow(serve):
    server = serve(lambda number, row: time.sleep(1.5) or "correct")
    judge = judge_of(server, timeout=0.3, retries=1)
    assert grade(judge, "It is Paris.") == [None]
    assert len(server.seen) == 2 and judge.failures == {"timeout": 1}


def test_an_endpoint_that_drips(serve):
    """Each byte comes in time; the whole reply never does."""

    class Dripping(Handler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b" ")
                time.sleep(0.1)

    server = serve(says_paris)
    server.RequestHandlerClass = Dripping
    judge = judge_of(server, timeout=0.3, retries=1)
    assert grade(judge, "It is Paris.") == [None]
    assert judge.failures == {"timeout": 1}


def test_failures_are_not_remembered(serve):
    server = serve(lambda number, row: "hm" if number == 1 else "correct")
    judge = judge_of(server)
    assert grade(judge, "It is Paris.") == [None]
    assert grade(judge, "It is Paris.") == [1.0]


def test_a_batch_is_given_up_when_nobody_answers(serve):
    server = serve(lambda number, row: (503, {}, b""))
    judge = judge_of(server, retries=0, concurrency=2)
    assert grade(judge, *(f"City {i}" for i in range(50))) == [None] * 50
    assert 8 <= len(server.seen) <= 9 and judge.failed == 50
    assert judge.failures["status 503"] == len(server.seen) and judge.failures["given up"] == 50 - len(server.seen)
    # verdicts in between, and replies that are no verdict, keep it going
    server = serve(lambda number, row: "correct" if number % 8 == 0 else (503, {}, b""))
    assert grade(judge_of(server, retries=0, concurrency=1), *(f"City {i}" for i in range(50))).count(1.0) == 6
    server = serve(lambda number, row: "maybe")
    grade(judge_of(server, retries=0, concurrency=1), *(f"City {i}" for i in range(50)))
    assert len(server.seen) == 50


def test_silence_is_told_and_no_stop(serve, capsys):
    talks = []
    server = serve(lambda number, row: "correct" if talks else "maybe")
    judge = judge_of(server)
    for i in range(2):
        grade(judge, f"City {i}")
    assert capsys.readouterr().err == ""
    for i in range(4):
        grade(judge, f"City {2 + i}")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert warnings[0].startswith(f"WARNING: the judge 'grader' at {server.url} gave no verdict in the last 3 batches")
    assert "'maybe'" in warnings[0] and "last 6 batches" in warnings[1]
    talks.append(True)
    grade(judge, "City 6")
    talks.clear()
    for i in range(2):
        grade(judge, f"City {7 + i}")
    assert capsys.readouterr().err == ""


# Before the model is loaded


def test_check_passes_and_counts_nothing(serve):
    server = serve(says_paris)
    judge = judge_of(server)
    judge.check()
    assert len(server.seen) == 1 and judge.failed == 0 and judge.metrics()["asked"] == 0.0


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda number, row: (401, {}, {"error": "the key secret is unknown"}), "status 401: .*the key \\*\\*\\* is"),
        (
            lambda number, row: (403, {}, b"\x1b[2Jno\nentry"),
            "status 403: \\[2Jno entry\\. Start its endpoint, or correct",
        ),
        (lambda number, row: (404, {}, {"error": "no model grader"}), "status 404: .*no model grader"),
        (lambda number, row: "Yes!", "neither 'correct' nor 'incorrect': 'Yes!'"),
        (lambda number, row: (200, {}, completion("<think>Let", "length")), 'cut off, so .*max_tokens": 4096'),
        (lambda number, row: (200, {}, b"<html>"), "no chat completion: '<html>'"),
        (lambda number, row: time.sleep(0.8) or "correct", "no reply within 0.2 s, in up to 2 tries"),
    ],
)
def test_check_refuses_an_endpoint_without_verdicts(act, words, serve):
    server = serve(act)
    with pytest.raises(InputError, match=f"The judge 'grader' at {server.url} gives no verdict: .*{words}") as refused:
        judge_of(server, timeout=0.2, key="secret").check()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no.such.host.invalid", "exa mple", "[::1]:9", "☃.invalid"])
def test_check_refuses_an_address_without_endpoint(host):
    judge = Judge(f"http://{host}/v1", "grader", timeout=2.0, retries=0)
    with pytest.raises(InputError, match="'grader' at http://.* gives no verdict: "):
        judge.check()
    assert grade(judge, "It is Paris.") == [None]
