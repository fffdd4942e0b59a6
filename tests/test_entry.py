"""How an entry ends."""

import os
import subprocess
import sys

import pytest

from open_r1_kivqa.entry import refuse_deepspeed_without_ranks
from open_r1_kivqa.errors import InputError

SCRIPT = """
import atexit, os, sys
from open_r1_kivqa.entry import run
from open_r1_kivqa.errors import InputError

class Library:
    def __del__(self):
        os.abort()  # as a C++ thread that is still there when the interpreter goes

sys.modules["library"] = Library()

def main():
    atexit.register(print, "tracker finished")
    if sys.argv[1:]:
        raise InputError("no such file")
    print("trained")

run(main)
"""


@pytest.mark.parametrize(("words", "code", "out"), [([], 0, "trained\ntracker finished\n"), (["bad"], 2, "")])
def test_what_the_teardown_of_the_interpreter_does_cannot_fail_a_rank_that_is_done(words, code, out):
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    script = SCRIPT if not words else SCRIPT.replace("os.abort()", "pass")
    done = subprocess.run([sys.executable, "-c", script, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(out) and done.stdout.endswith("tracker finished\n")
    assert "Traceback" not in done.stderr and ("error: no such file" in done.stderr) == bool(words)


def test_deepspeed_without_ranks_is_refused(monkeypatch):
    """DeepSpeed itself would look for MPI and end in a traceback."""
    monkeypatch.delenv("RANK", raising=False)
    refuse_deepspeed_without_ranks(None)
    with pytest.raises(InputError, match="put torchrun --nproc_per_node 1 in place of python"):
        refuse_deepspeed_without_ranks("local_scripts/zero3.json")
    monkeypatch.setenv("RANK", "0")
    refuse_deepspeed_without_ranks("local_scripts/zero3.json")
