import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.records import (
    MEASURED,
    RankFile,
    claim,
    discard,
    jobs_of,
    merge,
    read_finished,
    refuse_older,
    runs,
    while_there_is_room,
)


def record(id, setting="normal", **more):
    return {"id": id, "setting": setting, **more}


def write(folder, rank, records):
    file = RankFile(folder, rank)
    file.append(records)
    file.close()


def test_ranks_files_merge_in_the_order_of_the_jobs(tmp_path):
    write(tmp_path, 1, [record("b"), record("a", "no_image")])
    write(tmp_path, 0, [record("a", prediction="Côte d'Ivoire")])
    merged = merge(tmp_path, [("normal", "a"), ("normal", "b"), ("no_image", "a")])
    assert [(r["setting"], r["id"]) for r in merged] == [("normal", "a"), ("normal", "b"), ("no_image", "a")]
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == merged and "Côte d'Ivoire" in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.jsonl"]


def test_a_cut_last_line_is_dropped_and_later_lines_are_whole(tmp_path):
    write(tmp_path, 0, [record("a"), record("b")])
    path = tmp_path / "predictions.rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-3])  # the process died in the middle of a write
    assert set(read_finished(tmp_path)) == {("normal", "a")}
    write(tmp_path, 0, [record("c")])
    assert set(read_finished(tmp_path)) == {("normal", "a"), ("normal", "c")}


def test_a_merged_file_is_read_again(tmp_path):
    write(tmp_path, 3, [record("a")])
    merge(tmp_path, [("normal", "a")])
    assert set(read_finished(tmp_path)) == {("normal", "a")}
    discard(tmp_path)
    assert read_finished(tmp_path) == {} and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["not json", "3", '{"setting": "normal"}'])
def test_a_file_of_something_else_is_named(line, tmp_path):
    (tmp_path / "predictions.jsonl").write_text(json.dumps(record("a")) + "\n" + line + "\n")
    with pytest.raises(InputError, match="predictions.jsonl:2 is no prediction; delete"):
        read_finished(tmp_path)


def test_records_of_an_older_version_are_named():
    assert "prompt_hash" in MEASURED
    now = record("a", **dict.fromkeys(MEASURED))
    refuse_older({("normal", "a"): now})
    older = record("b", **dict.fromkeys(set(MEASURED) - {"copy"}))
    with pytest.raises(InputError, match="row 'b' under normal .* lacks 'copy': it was written by an older version"):
        refuse_older({("normal", "a"): now, ("normal", "b"): older})


@given(st.integers(0, 30), st.sets(st.integers(0, 29)))
@settings(max_examples=50, deadline=None)
def test_unfinished_jobs_are_told_by_runs(number, finished):
    jobs = [("normal", str(i)) for i in range(number)]
    done = {("normal", str(i)) for i in finished}
    places = runs(jobs, done)
    assert jobs_of(jobs, places) == [job for job in jobs if job not in done]
    assert all(behind < first for (_, behind), (first, _) in zip(places, places[1:], strict=False))


def test_nothing_finished_is_one_run():
    jobs = [(setting, str(i)) for setting in ("normal", "no_image") for i in range(1000)]
    assert runs(jobs, {}) == [[0, 2000]] and runs(jobs, set(jobs)) == []


def manifest_of(content):
    return lambda folder: (Path(folder) / "manifest.json").write_text(content)


def test_predictions_without_a_manifest_are_left_alone_unless_told(tmp_path):
    write(tmp_path, 0, [record("a")])
    for broken in (None, "{"):
        if broken:
            (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(InputError, match="without a manifest .*--overwrite"):
            claim(tmp_path, manifest_of("{}"), overwrite=False)
        assert set(read_finished(tmp_path)) == {("normal", "a")}
    claim(tmp_path, manifest_of('{"flags": {"limit": 3}}'), overwrite=True)
    assert read_finished(tmp_path) == {}


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match="--output_dir .*file is a file"):
            claim(tmp_path / place, manifest_of("{}"), overwrite=False)
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_in_which_another_evaluation_writes_is_left_alone(tmp_path):
    """Before there is a prediction nothing else tells that a second evaluation would mix its own with those of the first."""
    claims = f"""
import pathlib, time
from open_r1_kivqa.evaluation.records import claim
folder = pathlib.Path({str(tmp_path)!r})
claim(folder, lambda place: (pathlib.Path(place) / "manifest.json").write_text("{{}}"), overwrite=False)
print("claimed", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", claims], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"claimed\n"
        for overwrite in (False, True):
            with pytest.raises(
                InputError, match="--output_dir .* is being written by another run; wait for it, or give"
            ):
                claim(tmp_path, manifest_of('{"flags": {"limit": 3}}'), overwrite=overwrite)
        assert (tmp_path / "manifest.json").read_text() == "{}"
        other.kill()
    with while_there_is_room(tmp_path):
        for _ in range(2):  # its own folder
            claim(tmp_path, manifest_of("{}"), overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_full_disk_is_said_in_words_and_other_errors_are_not_hidden(tmp_path):
    full = RankFile(tmp_path, 0)
    full.file = open("/dev/full", "ab", buffering=0)
    with pytest.raises(InputError, match="make room and start the same command again"), while_there_is_room(tmp_path):
        full.append([{"id": "a"}])
    with pytest.raises(FileNotFoundError), while_there_is_room(tmp_path):
        open(tmp_path / "none" / "file", "wb")


def test_a_rank_without_a_share_leaves_no_file(tmp_path):
    write(tmp_path, 0, [])
    assert not list(tmp_path.iterdir())
