"""Smaller parts: answers on disk, scores in batches, progress."""

import asyncio
import os
import re
import subprocess
import sys
import threading

import pytest

from open_r1_kivqa.cold_start.answers import AnswerFiles, request_key
from open_r1_kivqa.cold_start.progress import RowProgress, time_left
from open_r1_kivqa.cold_start.scoring import Scorer
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.endpoint import Reply

ASK = [{"role": "user", "content": "Hello"}]


def test_answers_come_back(tmp_path):
    first, beside = AnswerFiles(tmp_path / "answers"), AnswerFiles(tmp_path / "answers")
    replies = {request_key("m", ASK, {}, i): Reply(f"é {i}\n", "hm", "stop", "", i, None) for i in range(5)}
    for i, (key, reply) in enumerate(replies.items()):
        (first if i % 2 else beside).add(key, reply, {"row": "q"})
        assert (first if i % 2 else beside).get(key) == reply
    assert len(first) == 2 and len(list((tmp_path / "answers").iterdir())) == 2
    later = AnswerFiles(tmp_path / "answers")
    assert len(later) == 5 and {key: later.get(key) for key in replies} == replies
    assert later.get(request_key("m", ASK, {}, 9)) is None
    assert later.get(b"\0" * 16) is None


def test_keys_tell_requests_apart():
    keys = [
        request_key("m", ASK, {"a": 1, "b": 2}, 0),
        request_key("n", ASK, {"a": 1, "b": 2}, 0),
        request_key("m", [*ASK, *ASK], {"a": 1, "b": 2}, 0),
        request_key("m", ASK, {"a": 1}, 0),
        request_key("m", ASK, {"a": 1, "b": 2}, 1),
    ]
    assert len(set(keys)) == 5 and all(len(key) == 16 for key in keys)
    assert request_key("m", ASK, {"b": 2, "a": 1}, 0) == keys[0]


def sample_of(answer, **fields):
    turns = [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": answer}]
    row = {"id": "q", "conversations": turns, **fields}
    return parse_row(row, image_folder="", reward_method="", source="rows.jsonl:1")


class Waiting:
    """A judge that is slow the first time."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()

    def grade(self, questions, references, answers):
        self.go.wait(5)
        self.batches.append(len(answers))
        return [float(answer == "right") for answer in answers]


def test_what_waits_is_scored_together():
    judge = Waiting()
    scorer = Scorer(judge)

    async def run():
        asked = [scorer.score(["right", "wrong"], sample_of("Paris", accu_reward_method="llm")) for _ in range(10)]
        tasks = [asyncio.create_task(one) for one in asked]
        await asyncio.sleep(0.05)
        tasks += [asyncio.create_task(scorer.score(["Paris"], sample_of("Paris")))]
        await asyncio.sleep(0.05)
        judge.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [[1.0, 0.0]] * 10 + [[1.0]]
    assert judge.batches == [20] or sum(judge.batches) == 20
    scorer.close()


def test_a_fault_of_a_scorer_reaches_all_that_wait():
    class Broken:
        def grade(self, *texts):
            raise RuntimeError("broken")

    scorer = Scorer(Broken())
    llm, plain = sample_of("Paris", accu_reward_method="llm"), sample_of("Paris")

    async def run():
        failed = await asyncio.gather(*(scorer.score(["x"], llm) for _ in range(3)), return_exceptions=True)
        return failed, await scorer.score(["Paris"], plain)

    failed, scores = asyncio.run(run())
    assert [str(error) for error in failed] == ["broken"] * 3 and scores == [1.0]
    scorer.close()


def test_lines_of_progress(capsys):
    with RowProgress(4, every=0.0) as progress:
        for outcome in ("kept", "wrong_answer", "kept", "endpoint_failed"):
            progress.step(outcome)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"2 of 4 rows, 1 kept, [\d,]+\.\d\d rows/s, \d+ s left", lines[1])
    assert lines[3].startswith("4 of 4 rows, 2 kept, 1 failed, ") and lines[3].endswith(" 0 s left")
    with RowProgress(4) as progress:
        progress.step("kept")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal():
    code = (
        "from open_r1_kivqa.cold_start.progress import RowProgress\n"
        "with RowProgress(2) as progress:\n    progress.step('kept')\n    progress.step('endpoint_failed')\n"
    )
    terminal, its = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", code], stderr=its, env=environment, check=True)
    os.close(its)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", os.read(terminal, 100_000).decode())
    os.close(terminal)
    assert re.search(r" 2/2 .*rows/s .*1 kept, 1 failed", shown)


@pytest.mark.parametrize(("seconds", "words"), [(5.4, "5 s"), (600, "10 min"), (12_000, "3 h 20 min")])
def test_time_left(seconds, words):
    assert time_left(seconds) == words
