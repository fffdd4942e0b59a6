"""observations.jsonl: what a line holds, and what a resume keeps."""

import json

import numpy as np
import pytest

from open_r1_kivqa.curriculum.curriculum import Batch
from open_r1_kivqa.curriculum.observations import ObservationLog
from open_r1_kivqa.errors import InputError


def batch(number):
    return Batch(
        rows=np.array([4, 2]),
        importance=np.array([0.5, 2.0]),
        exploration=np.array([True, False]),
        forecast=np.array([0.25, 0.5]),
        level="2",
        number=number,
    )


def test_lines_of_steps_that_are_made_again_go(tmp_path):
    log = ObservationLog(tmp_path / "curriculum" / "observations.jsonl")
    log.begin(0)
    for step in range(3):
        log.write(step, batch(step), ["é", "b"], np.array([[1, 0], [np.nan, 0.5]]), np.array([True, False]))
    with open(log.path, "a") as file:
        file.write('{"step": 3, "dra')  # the run was killed while writing
    log.begin(2)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(line["step"], line["id"]) for line in lines] == [(0, "é"), (0, "b"), (1, "é"), (1, "b")]
    assert lines[1] == {
        "step": 0,
        "draw": 0,
        "row": 2,
        "id": "b",
        "level": "2",
        "exploration": False,
        "importance": 2.0,
        "forecast": 0.5,
        "hit": False,
        "values": [None, 0.5],
    }


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"step": "2"}', "\x00\x00"])
def test_a_line_that_is_none_of_the_logs(line, tmp_path):
    log = ObservationLog(tmp_path / "observations.jsonl")
    log.write(0, batch(0), ["a", "b"], np.ones((2, 2)), np.array([True, False]))
    with open(log.path, "a") as file:
        file.write(line + "\n")
    before = log.path.read_bytes()
    with pytest.raises(InputError, match="observations.jsonl:3 is no observation of a group"):
        log.begin(1)
    assert log.path.read_bytes() == before
