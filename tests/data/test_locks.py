"""Locks: who gets one, when it ends, and what becomes of its file."""

import errno
import os
import subprocess
import sys

import pytest

from open_r1_kivqa.data import locks
from open_r1_kivqa.data.locks import Lock, take
from open_r1_kivqa.errors import InputError

WORDS = {"what": "--output x", "remedy": "name another --output"}
HOLDER = """
import sys, time
from open_r1_kivqa.data.locks import Lock
lock = Lock(sys.argv[1], what="x", remedy="y")
print("held", flush=True)
time.sleep(60)
"""


def test_one_at_a_time(tmp_path):
    first = Lock(tmp_path / "lock", **WORDS)
    with pytest.raises(InputError, match="^--output x is being written by another run; wait for it, or name another"):
        Lock(tmp_path / "lock", **WORDS)
    first.release()
    assert not list(tmp_path.iterdir())
    Lock(tmp_path / "lock", **WORDS).release()


def test_it_ends_with_its_process_however_that_ends(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another run"):
            Lock(tmp_path / "lock", **WORDS)
        holder.kill()
    Lock(tmp_path / "lock", **WORDS).release()


def test_a_process_forked_meanwhile_does_not_keep_it(tmp_path):
    lock = Lock(tmp_path / "lock", **WORDS)
    with subprocess.Popen(["sleep", "60"], pass_fds=[lock._file.fileno()]) as child:
        lock.release()
        Lock(tmp_path / "lock", **WORDS).release()
        child.kill()


def test_its_folder_is_cleared_while_it_is_held(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    lock = Lock(folder / "lock", **WORDS)
    (folder / "0.jsonl").touch()
    lock.clear()
    assert os.listdir(folder) == ["lock"]
    with pytest.raises(InputError, match="another run"):
        Lock(folder / "lock", **WORDS)
    lock.remove_folder()
    assert not folder.exists()


def test_a_run_that_begins_when_the_folder_was_to_go_keeps_it(tmp_path, monkeypatch):
    folder = tmp_path / "parts"
    folder.mkdir()
    first, second = Lock(folder / "lock", **WORDS), []
    release = first.release
    monkeypatch.setattr(first, "release", lambda: release() or second.append(Lock(folder / "lock", **WORDS)))
    first.remove_folder()
    with pytest.raises(InputError, match="another run"):
        Lock(folder / "lock", **WORDS)
    second[0].remove_folder()
    assert not folder.exists()


def test_a_file_that_has_lost_its_name_is_not_taken(tmp_path):
    with open(tmp_path / "rows", "w") as file:
        os.replace(tmp_path / "rows", tmp_path / "final")
        assert not take(file, tmp_path / "rows")
        (tmp_path / "rows").touch()  # another run's
        assert not take(file, tmp_path / "rows")
        assert take(file, tmp_path / "final")


@pytest.mark.parametrize("number", locks.NO_LOCKS)
def test_a_file_system_without_locks_stops_nobody(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    first, second = Lock(tmp_path / "lock", **WORDS), Lock(tmp_path / "lock", **WORDS)
    first.release()
    second.release()
    monkeypatch.setattr(locks, "NO_LOCKS", (errno.EIO,))
    with pytest.raises(OSError):
        Lock(tmp_path / "lock", **WORDS)
