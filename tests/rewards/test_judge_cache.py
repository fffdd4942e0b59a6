import json
import os
import subprocess
import sys

import pytest

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.judge_cache import VerdictFiles


def test_what_is_added_is_read_by_all_that_start_later(tmp_path):
    one, two = VerdictFiles(tmp_path / "new" / "folder"), VerdictFiles(tmp_path / "new" / "folder")
    one.add([{"key": "a", "correct": True, "answer": "né\ud800"}])
    two.add([{"key": "b", "correct": False}, {"key": "c", "correct": True}])
    one.add([])
    one.add([{"key": "d", "correct": False}])
    assert VerdictFiles(tmp_path / "new" / "folder").read() == {"a": True, "b": False, "c": True, "d": False}
    assert one.own != two.own and len(list(one.folder.iterdir())) == 2


def test_a_cut_last_line_is_left_out_and_other_files_are_none_of_its_own(tmp_path):
    whole = json.dumps({"key": "a", "correct": True})
    (tmp_path / "verdicts-here-1-0.jsonl").write_text(f'{whole}\n{{"key": "b", "cor')
    (tmp_path / "verdicts-here-2-0.jsonl").write_text("")
    (tmp_path / "rows.jsonl").write_text("no verdict\n")
    files = VerdictFiles(tmp_path)
    assert files.read() == {"a": True}
    files.add([{"key": "b", "correct": False}])  # into a file of its own, not behind the cut line
    assert VerdictFiles(tmp_path).read() == {"a": True, "b": False}


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "1", '"key"', '{"key": "a"}', '{"key": 1, "correct": true}', '{"key": "a", "correct": 1}']
)
def test_a_line_that_is_no_verdict_is_refused(line, tmp_path):
    (tmp_path / "verdicts-x.jsonl").write_text(f'{{"key": "a", "correct": true}}\n{line}\n')
    with pytest.raises(InputError, match=r"verdicts-x.jsonl:2 is no verdict; delete the line or the file"):
        VerdictFiles(tmp_path).read()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="--judge_cache .* cannot be made"):
            VerdictFiles(folder)


def test_a_disk_that_takes_no_more_is_told_once(tmp_path, capsys):
    files = VerdictFiles(tmp_path)
    files.own = tmp_path / "gone" / "verdicts-x.jsonl"
    for key in "ab":
        files.add([{"key": key, "correct": True}])
    (warning,) = capsys.readouterr().err.splitlines()
    assert "takes no more verdicts (No such file or directory); they stay in memory" in warning
    if os.path.exists("/dev/full"):
        files = VerdictFiles(tmp_path)
        files.own = "/dev/full"
        files.add([{"key": "a", "correct": True}])
        assert "No space left on device" in capsys.readouterr().err


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    code = (
        "import sys; from open_r1_kivqa.rewards.judge_cache import VerdictFiles\n"
        "files = VerdictFiles(sys.argv[1])\n"
        "for i in range(200): files.add([{'key': f'{sys.argv[2]}-{i}-{j}', 'correct': j == 0, 'answer': 'x' * 5000} for j in range(2)])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    while any(process.poll() is None for process in processes):
        VerdictFiles(tmp_path).read()  # meanwhile too
    assert [process.returncode for process in processes] == [0, 0]
    assert len(VerdictFiles(tmp_path).read()) == 800
