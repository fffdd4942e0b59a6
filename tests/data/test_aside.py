import errno
import json
import os

import pytest

from open_r1_kivqa.data.aside import write_json, written_aside


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with written_aside(path) as file:
        file.write("né")
        file.flush()
        assert path.read_text() == "old" and sorted(os.listdir(tmp_path)) == ["a.txt", "a.txt.part"]
    assert path.read_bytes() == "né".encode() and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_after_an_error_all_is_as_it_was(tmp_path, error):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), written_aside(str(path), "wb") as file:
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


def test_a_disk_that_fills_up(tmp_path):
    """/dev/full takes no byte: through a link in the new file's place."""
    path = tmp_path / "a.txt"
    os.symlink("/dev/full", f"{path}.part")
    with pytest.raises(OSError, match="No space left"), written_aside(path) as file:
        file.write("new")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), written_aside(tmp_path / "no" / "a.txt"):
        raise AssertionError("is not reached")


def test_json(tmp_path):
    write_json(tmp_path / "a.json", {"a": "né", "b": [1]}, indent=2)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "a": "né",\n  "b": [\n    1\n  ]\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": tmp_path})
    write_json(tmp_path / "b.json", tmp_path, default=str)
    write_json(tmp_path / "b.json", "caf\udce9", indent=None)
    assert json.loads((tmp_path / "b.json").read_text()) == "caf\udce9"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]
