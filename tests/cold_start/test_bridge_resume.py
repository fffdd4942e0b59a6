"""Runs that are killed, cut short or repeated: what was answered is never asked again, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from bridging import factbook, read_jsonl, write_jsonl
from scripted_endpoint import texts_of

from open_r1_kivqa.errors import InputError


def answered(run) -> int:
    """Whole answers on disk."""
    return sum(path.read_bytes().count(b"\n") for path in run.answers.glob("answers-*.jsonl"))


@pytest.mark.parametrize("requests", [5, 20])
def test_a_killed_run_goes_on_without_asking_again(make_run, script, requests):
    def slowly(number, request):
        time.sleep(0.03)
        return script(number, request)

    run, server = make_run(8, slowly)
    command = [sys.executable, "-m", "open_r1_kivqa.cli", "bridge", *run.words(concurrency=3)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while len(server.seen) < requests:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while server.open:
        time.sleep(0.01)
    before, known = len(server.seen), answered(run)
    assert not run.output.exists() and requests <= before
    assert before - 3 <= known <= before  # three were open at most
    assert run(concurrency=3) == 0
    assert len(server.seen) - before == 24 - known
    assert run.counts() == {"kept": 8} and answered(run) == 24
    assert run.report["requests"]["mllm"]["cached"] + run.report["requests"]["reasoner"]["cached"] == known
    assert run.report["requests"]["reasoner"]["completion_tokens_all"] == 8 * 20


def test_a_line_cut_off_by_a_kill_is_asked_again(make_run):
    run, server = make_run(4)
    assert run() == 0
    (path,) = run.answers.glob("answers-*.jsonl")
    whole = run.output.read_bytes()
    os.truncate(path, path.stat().st_size - 10)
    assert run() == 0
    assert len(server.seen) == 12 + 1 and run.output.read_bytes() == whole
    assert run() == 0  # the new answer lies in another file
    assert len(server.seen) == 13


def test_damaged_answers_are_named(make_run):
    run, _ = make_run(2)
    run.answers.mkdir()
    (run.answers / "answers-x.jsonl").write_text('{"key": "00"}\n')
    with pytest.raises(InputError, match="answers-x.jsonl:1 is no answer; delete the line or the file"):
        run()
    (run.answers / "answers-x.jsonl").unlink()
    assert run() == 0
    (path,) = run.answers.glob("answers-*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"reply": {"text"', b'"reply": {"tex_"', 1))
    with pytest.raises(InputError, match="holds a damaged answer 0 bytes from its start"):
        run()


def test_all_known_needs_no_endpoint(make_run, serve):
    run, server = make_run(4)
    assert run() == 0
    server.shutdown()
    server.server_close()
    whole = run.output.read_bytes()
    run.output.unlink()
    assert run(mllm_url="http://127.0.0.1:9/v1") == 0  # the address is no part of a question
    assert run.output.read_bytes() == whole
    assert run.report["requests"]["mllm"]["cached"] == 8 and run.report["requests"]["mllm"]["asked"] == 0
    with pytest.raises(InputError, match="--mllm_model 'eyes' at http://127.0.0.1:9/v1 cannot be used"):
        run(mllm_url="http://127.0.0.1:9/v1", seed=1)


def test_other_questions_are_asked_anew(make_run):
    run, server = make_run(2)
    assert run() == 0 and len(server.seen) == 6
    run.folder.joinpath("mine").mkdir()
    form = "Answer from this:\n\n{description}\n{passages}\nQuestion: {question}\nUse tags.\n"
    run.folder.joinpath("mine", "reasoning.txt").write_text(form)
    assert run(prompts=run.folder / "mine") == 0
    assert len(server.seen) == 8 and texts_of(server.seen[-1]).startswith("Answer from this:\n\nPicture ")
    assert run(reasoner_model="other", prompts=run.folder / "mine") == 0 and len(server.seen) == 10
    assert run(reasoner_request='{"max_tokens": 99}') == 0 and len(server.seen) == 12
    assert run(max_image_pixels=1000) == 0 and len(server.seen) == 16 + 2
    assert run() == 0 and len(server.seen) == 18
    # rules of rewording are applied to what is known
    run.folder.joinpath("mine", "replacements.txt").write_text("flag => banner\n")
    run.folder.joinpath("mine", "reasoning.txt").unlink()
    assert run(prompts=run.folder / "mine") == 1 and len(server.seen) == 18
    assert run.report["outcomes"]["contradiction"]["rules"] == {"source_text": 2}  # "the description" stays now
    run.folder.joinpath("mine", "replacements.txt").write_text(".+ =>\n")  # leaves no reasoning
    assert run(prompts=run.folder / "mine") == 1 and run.report["outcomes"]["bad_format"]["rules"] == {"form": 2}


def test_equal_rows_are_asked_once(make_run):
    run, server = make_run(1)
    rows = [{**run.rows[0], "id": f"copy {i}"} for i in range(10)]
    write_jsonl(run.folder / "rows.jsonl", rows)
    assert run() == 0
    assert len(server.seen) == 3 and run.counts() == {"kept": 10}
    assert [row["id"] for row in read_jsonl(run.output)] == [row["id"] for row in rows]


@pytest.mark.parametrize("reasoner_elsewhere", [False, True])
def test_open_requests_are_bounded(make_run, script, serve, reasoner_elsewhere):
    def slowly(number, request):
        time.sleep(0.02)
        return script(number, request)

    run, server = make_run(8, slowly)
    other = serve(slowly)
    assert run(concurrency=2, **({"reasoner_url": other.url} if reasoner_elsewhere else {})) == 0
    assert server.most_open == 2
    assert other.most_open == (2 if reasoner_elsewhere else 0)


def test_the_order_is_that_of_the_rows(make_run, script):
    """The first rows take longest."""

    def act(number, request):
        first = any(row["image"] in texts_of(request) for row in factbook(2))
        time.sleep(0.15 if first else 0.0)
        return script(number, request)

    run, _ = make_run(8, act)
    assert run() == 0
    assert [row["id"] for row in read_jsonl(run.output)] == [row["id"] for row in run.rows]


def test_an_output_is_written_by_one_run_at_a_time(make_run, monkeypatch):
    import fcntl

    run, _ = make_run(2)
    with open(f"{run.output}.part", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="is being written by another run"):
            run()
    run.output.write_text("an older one\n")
    opened = []

    def opened_just_before(*arguments, **more):
        file = open(*arguments, **more)
        if not opened:  # and before it is locked, the other run comes to its end
            opened.append(os.replace(f"{run.output}.part", run.output))
            run.output.write_text("the other run's\n")
        return file

    with monkeypatch.context() as patch:
        patch.setattr("open_r1_kivqa.cold_start.run.open", opened_just_before, raising=False)
        with pytest.raises(InputError, match="is being written by another run"):
            run()
    assert run.output.read_text() == "the other run's\n"
    assert run() == 0 and len(read_jsonl(run.output)) == 2
    assert not list(run.folder.glob("*.part"))


# Endpoints that fail in the middle


def test_failed_rows_are_named_and_asked_again(make_run, script, capsys):
    fails = [True]
    run, server = make_run(8)
    bad = run.rows[3]["image"]

    def act(number, request):
        return (400, {}, {"error": "bad picture"}) if fails and bad in texts_of(request) else script(number, request)

    server.act = act
    assert run() == 1
    told = capsys.readouterr()
    assert "1 rows failed at the endpoints and are asked again by the next run: train-00003" in told.out
    assert "12.5% of the rows failed at the endpoints, more than --max_failed_share 0.05" in told.err
    assert not run.output.exists() and run.report["written"] is None
    assert run.report["failed_rows"] == ["train-00003"]
    assert run.report["outcomes"]["endpoint_failed"]["rules"] == {"status 400": 1}
    asked = len(server.seen)
    assert run(max_failed_share=0.2) == 0  # enough for a first look
    assert len(server.seen) == asked + 1 and len(read_jsonl(run.output)) == 7
    fails.clear()
    assert run() == 0
    assert len(server.seen) == asked + 3 and run.counts() == {"kept": 8}


def test_an_older_output_stays_when_too_much_fails(make_run, script):
    run, server = make_run(4)
    assert run() == 0
    whole = run.output.read_bytes()
    server.act = lambda number, request: (400, {}, b"")
    assert run(seed=7) == 1
    assert run.output.read_bytes() == whole and not list(run.folder.glob("*.part"))


def test_a_dead_endpoint_is_given_up(make_run, script):
    """After 8 failures in a row nothing more is asked; what was known counts all the same."""
    run, server = make_run(8)
    assert run(limit=2, seed=42) == 0
    rows = factbook(40)
    write_jsonl(run.folder / "rows.jsonl", rows)
    server.seen.clear()
    server.act = lambda number, request: (503, {}, b"")
    assert run(retries=0, concurrency=2) == 1
    assert 8 <= len(server.seen) <= 9
    assert run.counts() == {"kept": 2, "endpoint_failed": 38}
    rules = run.report["outcomes"]["endpoint_failed"]["rules"]
    assert rules == {"status 503": len(server.seen), "given up": 38 - len(server.seen)}


def test_faults_on_the_way_lose_no_row(make_run, script):
    """429, 500, hanging up, cut bodies, slowness and nonsense, each to the first try of some request."""
    faults = [
        (429, {"Retry-After": "0.2"}, {"error": "slow down"}),
        (500, {}, b"oops"),
        None,
        (200, {"Content-Length": "1000"}, b'{"choices": [{"mess'),
        (200, {"Content-Type": "text/html"}, b"<html>Bad gateway</html>"),
        (200, {}, {"error": {"message": "overloaded"}}),
        "slow",
    ]
    tried = []

    def act(number, request):
        body = json.dumps(request)
        if body not in tried:
            tried.append(body)
            fault = faults[len(tried) % len(faults)]
            if fault != "slow":
                return fault
            time.sleep(4.0)
        return script(number, request)

    run, server = make_run(8, act)
    assert run(timeout=3, retries=4, concurrency=8) == 0
    assert run.counts() == {"kept": 8}
    assert len(tried) == 24 and len(server.seen) >= 48


def test_ctrl_c_says_how_to_go_on(make_run, script):
    def act(number, request):
        time.sleep(0.05)
        return script(number, request)

    run, server = make_run(8, act)
    command = [sys.executable, "-m", "open_r1_kivqa.cli", "bridge", *run.words(concurrency=2)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(server.seen) < 5:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told.strip() == f"Stopped. Answers are kept in {run.answers}; the same command goes on from there."
    assert not list(run.folder.glob("*.part"))
    assert run() == 0 and run.counts() == {"kept": 8}


def test_the_disk_is_full(make_run, script):
    """A limit on file size stands for a full disk."""
    run, server = make_run(8)
    limited = f"ulimit -f 4; exec {sys.executable} -m open_r1_kivqa.cli bridge " + " ".join(run.words(concurrency=1))
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "takes no more answers (File too large)" in done.stderr or "the disk is full" in done.stderr
    known = answered(run)
    before = len(server.seen)
    assert known > 0
    assert run() == 0
    assert len(server.seen) - before == 24 - known
