import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from open_r1_kivqa.benchmarks.converted import Counts, RowsFile, check_row, file_identity
from open_r1_kivqa.benchmarks.counts import EXAMPLES
from open_r1_kivqa.errors import InputError

# Stands for a converter: every third item is dropped, every fourth noted, one row each, some with letters outside of ASCII. `argv`: output, items, seconds between records, pause.
CONVERTER = """
import sys, time
from open_r1_kivqa.benchmarks import converted
from open_r1_kivqa.errors import InputError
output, items, converted.EVERY, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
try:
    with converted.RowsFile(output, {"items": items}) as rows:
        for number in range(rows.done, items):
            if number % 3 == 0:
                rows.counts.drop("third", number)
            else:
                rows.write({"id": f"é{number}", "text": "x" * (number % 97)})
            if number % 4 == 0:
                rows.counts.note("fourth", number)
            rows.dealt()
            time.sleep(pause)
        print(*rows.finish(), sep="\\n")
except InputError as error:
    sys.exit(f"said: {error}")
"""


def convert(output, items, *, every=2.0, pause=0.0, **options):
    argv = [sys.executable, "-c", CONVERTER, str(output), str(items), str(every), str(pause)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_killed_conversion_goes_on_and_gives_the_same_file(tmp_path):
    whole, killed = tmp_path / "whole" / "rows.jsonl", tmp_path / "killed" / "rows.jsonl"
    whole.parent.mkdir()
    killed.parent.mkdir()
    assert convert(whole, 3000).wait() == 0
    for _ in range(2):  # killed twice
        process = convert(killed, 3000, every=0.02, pause=0.0005)
        record, before = killed.parent / "rows.jsonl.part.json", 0
        if record.exists():
            before = json.loads(record.read_text())["done"]
        while process.poll() is None:
            if record.exists() and json.loads(record.read_text())["done"] > before + 100:
                break
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not killed.exists()
    assert json.loads(record.read_text())["done"] > 200
    process = convert(killed, 3000)
    out, err = process.communicate()
    assert process.returncode == 0 and "going on after" in err
    assert killed.read_bytes() == whole.read_bytes()
    assert out.splitlines()[0] == f"{killed}: 2,000 rows of 3,000 items"
    reports = [json.loads((path.parent / "rows.jsonl.report.json").read_text()) for path in (whole, killed)]
    assert reports[0] | {"output": None} == reports[1] | {"output": None}
    assert reports[1]["dropped"] == {"third": {"number": 1000, "examples": [str(3 * i) for i in range(EXAMPLES)]}}
    assert sorted(os.listdir(killed.parent)) == ["rows.jsonl", "rows.jsonl.report.json"]


def test_a_full_disk_is_said_and_the_conversion_goes_on_when_there_is_room(tmp_path):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "rows.jsonl"
    assert convert(whole, 3000).wait() == 0
    limit = whole.stat().st_size // 2
    # 4 kB more than that fits nowhere, as on a disk that is full
    process = convert(
        output, 3000, every=0.01, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, err = process.communicate()
    assert process.returncode == 1 and "Traceback" not in err
    assert (
        f"said: --output {output} cannot be written further (File too large); make room and start the same command"
        in err
    )
    assert not output.exists()
    process = convert(output, 3000)
    _, err = process.communicate()
    assert process.returncode == 0
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_disk_without_any_room(tmp_path):
    rows = RowsFile(str(tmp_path / "rows.jsonl"), {})
    rows.write({"id": "a"})
    os.dup2(os.open("/dev/full", os.O_WRONLY), rows._file.fileno())
    with pytest.raises(InputError, match="cannot be written further .No space left on device.; make room"):
        rows.finish()
    assert not (tmp_path / "rows.jsonl").exists()


def run(path, identity, items, stop=None, record=()):
    """Items as rows; stops before item `stop` as if killed, and records the progress after the items in `record`."""
    rows = RowsFile(str(path), identity)
    for number in range(rows.done, items):
        if number == stop:
            rows._file.close()  # what is written is written
            return None
        if number % 5:
            rows.write({"id": str(number)})
        else:
            rows.counts.drop("fifth", number)
        rows.dealt()
        if number in record:
            rows.record()
    with rows:
        return rows.finish()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, 39), max_size=3), record=st.sets(st.integers(0, 39)))
def test_wherever_it_is_stopped_nothing_is_lost_or_twice(tmp_path, stops, record):
    expected = "".join(json.dumps({"id": str(number)}) + "\n" for number in range(40) if number % 5)
    for stop in stops:
        run(tmp_path / "rows.jsonl", {"a": 1}, 40, stop, record)
    lines = run(tmp_path / "rows.jsonl", {"a": 1}, 40)
    assert (tmp_path / "rows.jsonl").read_text() == expected
    assert lines[0].endswith("32 rows of 40 items") and "fifth: 8 (20.0 % of 40): 0, 5, 10" in lines[1]
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "rows.jsonl.report.json"]


def test_other_flags_or_another_input_start_anew(tmp_path, capsys):
    run(tmp_path / "rows.jsonl", {"flag": 1}, 20, stop=10, record=[5])
    run(tmp_path / "rows.jsonl", {"flag": 2}, 12)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 9 and "going on" not in capsys.readouterr().err


def test_the_rows_of_an_interrupted_run_can_be_read(tmp_path):
    run(tmp_path / "rows.jsonl", {}, 20, stop=10, record=[7])
    rows = RowsFile(str(tmp_path / "rows.jsonl"), {})
    assert rows.done == 8 and [row["id"] for row in rows.written()] == ["1", "2", "3", "4", "6", "7"]
    rows.write({"id": "new"})
    assert [row["id"] for row in rows.written()][-1] == "new"


def test_an_input_error_leaves_nothing_and_another_error_what_was_recorded(tmp_path):
    with pytest.raises(InputError, match="bad item"), RowsFile(str(tmp_path / "rows.jsonl"), {}) as rows:
        rows.write({"id": "1"})
        rows.record()
        raise InputError("bad item")
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), RowsFile(str(tmp_path / "rows.jsonl"), {}) as rows:
        rows.write({"id": "1"})
        rows.dealt()
        rows.record()
        raise KeyboardInterrupt
    assert RowsFile(str(tmp_path / "rows.jsonl"), {}).done == 1


def test_no_row_is_an_error_that_says_what_was_dropped(tmp_path):
    with pytest.raises(InputError, match=r"no row to write.\n  dropped: no image: 2 \(100.0 % of 2\): a, b"):
        with RowsFile(str(tmp_path / "rows.jsonl"), {}) as rows:
            for name in "ab":
                rows.counts.drop("no image", name)
                rows.dealt()
            rows.finish()
    assert os.listdir(tmp_path) == []


def test_two_runs_at_once(tmp_path):
    with RowsFile(str(tmp_path / "rows.jsonl"), {}) as first:
        first.write({"id": "1"})
        with pytest.raises(InputError, match="is being written by another run"):
            RowsFile(str(tmp_path / "rows.jsonl"), {})
        first.finish()
    assert (tmp_path / "rows.jsonl").read_text() == '{"id": "1"}\n'


def test_a_run_that_ended_a_moment_ago_is_not_emptied(tmp_path, monkeypatch):
    with RowsFile(str(tmp_path / "rows.jsonl"), {}) as first:
        first.write({"id": "1"})

        def opened_just_before(*arguments):
            file = open(*arguments)
            first.finish()
            return file

        monkeypatch.setattr("open_r1_kivqa.benchmarks.converted.open", opened_just_before, raising=False)
        with pytest.raises(InputError, match="is being written by another run"):
            RowsFile(str(tmp_path / "rows.jsonl"), {})
    assert (tmp_path / "rows.jsonl").read_text() == '{"id": "1"}\n'


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="--output .*none/rows.jsonl cannot be written .No such file"):
        RowsFile(str(tmp_path / "none" / "rows.jsonl"), {})
    with pytest.raises(InputError, match="is a folder"):
        RowsFile(str(tmp_path), {})


def test_a_file_is_told_from_a_changed_one(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a")
    before = file_identity(str(path))
    assert before == file_identity(str(path)) and before["bytes"] == 1
    path.write_text("ab")
    assert before != file_identity(str(path))
    with pytest.raises(InputError, match="none is no file"):
        file_identity(str(tmp_path / "none"))


def test_counts_as_lines_and_as_json():
    counts = Counts()
    counts.read, counts.written = 200, 150
    for number in range(50):
        counts.drop("no image", f"id{number % 30}")
    counts.note("seen", None)
    (dropped, noted) = counts.lines()
    assert dropped.startswith("  dropped: no image: 50 (25.0 % of 200): id0, id1, ") and dropped.endswith("id19, …")
    assert noted == "  note: seen: 1 (0.5 % of 200)"
    assert Counts.from_dict(json.loads(json.dumps(counts.to_dict()))).lines() == counts.lines()
    assert counts.to_dict()["dropped"]["no image"]["number"] == 50


@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), unique=True), st.booleans())))
def test_what_is_noted_of_items_that_are_dropped_does_not_count(items):
    """Items with what is noted of each, and whether it is dropped thereafter."""
    counts = Counts()
    for number, (notes, is_dropped) in enumerate(items):
        for note in notes:
            counts.note(note, number % 30)
        if is_dropped:
            counts.drop("in the end")
        counts.read += 1
    kept = [(number, notes) for number, (notes, is_dropped) in enumerate(items) if not is_dropped]
    for note in "abc":
        its = [str(number % 30) for number, notes in kept if note in notes]
        assert counts.number(note) == len(its)
        if its and len(items) <= EXAMPLES:  # of more items, one may have taken the place of an example for a while
            assert counts.noted[note].examples == its
    assert counts.noted.keys() == {note for _, notes in kept for note in notes}


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"conversations": [{"from": "human", "value": "<image>\n"}, {"from": "gpt", "value": "a"}]},
            "it asks nothing",
        ),
        ({"answers": ["the"], "accu_reward_method": "viquae"}, "gives the row's own answer 'the' 0.0"),
        ({"image": ["a.png", "b.png"]}, "1 <image> marker"),
        ({"answers": []}, "`answers` is"),
        ({"extra": ["\ud83d"]}, "x: it holds half of a surrogate pair (\\ud800 to \\udfff)."),
    ],
)
def test_rows_that_the_check_would_refuse(change, message):
    row = {"id": "1", "image": "a.png"}
    row["conversations"] = [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "Bob"}]
    assert check_row(row, "x").answers == ("Bob",)
    with pytest.raises(InputError) as error:
        check_row(row | change, "x")
    assert message in str(error.value)
