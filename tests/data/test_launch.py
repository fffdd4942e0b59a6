import os
import subprocess
import sys

import pytest
from launch import fork_ranks

from open_r1_kivqa.data.launch import once_per_launch, own_share, wait_for_all

RANK = """
import os, sys, time
from open_r1_kivqa.data.launch import once_per_launch
from open_r1_kivqa.errors import InputError

def say(*words):  # in one piece: with PYTHONUNBUFFERED print writes word by word, and two ranks' words mix
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work():
    say("worked on", os.environ["RANK"])
    time.sleep(1)
    if sys.argv[-1] == "refuse":
        raise InputError("bad rows")
    return {"bad_rows": list(range(2_000_000))}

bad = once_per_launch("checks", work)["bad_rows"]
again = once_per_launch("more", lambda: {"rank": os.environ["RANK"]})
say("got", len(bad), bad[-1], again["rank"])
if sys.argv[-1] == "group":
    import torch
    torch.distributed.init_process_group("gloo")
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    say("sum", int(total))
    torch.distributed.destroy_process_group()  # gloo's threads may abort a process that ends with its group
"""


def test_ranks_share_things_out(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert own_share(5) == range(5)
    monkeypatch.setenv("WORLD_SIZE", "3")
    shares = []
    for rank in "012":
        monkeypatch.setenv("RANK", rank)
        shares.append((list(own_share(5)), list(own_share(2))))
    assert shares == [([0], []), ([1, 2], [0]), ([3, 4], [1])]


def test_a_single_process_just_works(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert once_per_launch("checks", lambda: {"bad_rows": []}) == {"bad_rows": []}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return str(path)


def torchrun(script, *arguments):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        script,
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.distributed
def test_torchrun_ranks_get_rank_0s_result_and_can_form_a_group(script):
    done = torchrun(script, "group")
    assert done.returncode == 0, done.stderr
    # two million numbers: the store takes no value above 8 MiB
    assert sorted(done.stdout.splitlines()) == [
        "got 2000000 1999999 0",
        "got 2000000 1999999 0",
        "sum 2",
        "sum 2",
        "worked on 0",
    ]


@pytest.mark.distributed
def test_bad_input_of_rank_0_ends_the_others(script):
    done = torchrun(script, "refuse")
    assert done.returncode != 0 and "got" not in done.stdout
    assert done.stderr.count("InputError: bad rows") == 1


MEETING = """
import os, sys, time
from open_r1_kivqa.data.launch import wait_for_all
rank = os.environ["RANK"]
time.sleep(1 if rank == "1" else 0)
open(os.path.join(sys.argv[1], rank), "w").close()
wait_for_all("files")
assert sorted(os.listdir(sys.argv[1])) == ["0", "1"]
wait_for_all("end")
"""


@pytest.mark.distributed
def test_ranks_wait_for_each_other(tmp_path):
    (tmp_path / "rank.py").write_text(MEETING)
    (tmp_path / "files").mkdir()
    done = torchrun(str(tmp_path / "rank.py"), str(tmp_path / "files"))
    assert done.returncode == 0, done.stderr


def test_a_single_process_waits_for_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    wait_for_all("files")


def without_torchrun(script, *arguments):
    """Two ranks of another launcher: (exit code, lines of output) of each."""
    from torch.distributed import TCPStore

    port = TCPStore("127.0.0.1", 0, is_master=True).port  # free again at the end of this line
    ranks = []
    for rank in ("0", "1"):
        env = os.environ | {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, script, *arguments]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=600)[0].splitlines() for rank in ranks]
    return [(rank.returncode, lines) for rank, lines in zip(ranks, outputs, strict=True)]


@pytest.mark.distributed
def test_ranks_that_another_launcher_started(script):
    """Without torchrun's store rank 0 opens one, and the process group shares its port."""
    got = "got 2000000 1999999 0"
    assert without_torchrun(script, "group") == [(0, ["worked on 0", got, "sum 2"]), (0, [got, "sum 2"])]


LATE = """
import os, sys, time
from open_r1_kivqa.data import launch
from open_r1_kivqa.errors import InputError

class Late:  # a store that this rank asks a second after rank 0 has all that it needs
    def __init__(self, store):
        self.store = store
    def __getattr__(self, name):
        if name in ("wait", "get"):
            time.sleep(1)
        return getattr(self.store, name)

if os.environ["RANK"] == "1":
    launch._store = Late(launch._shared_store())

def refuse():
    raise InputError("bad rows")

if sys.argv[1] == "meet":
    launch.wait_for_all("end")
elif sys.argv[1] == "work":
    print(launch.once_per_launch("end", lambda: {"rows": 3}), flush=True)
else:
    try:
        launch.once_per_launch("end", refuse)
    except InputError as error:
        print(error, flush=True)
        os._exit(2)
os._exit(0)  # at once, and the store with it
"""


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("what", "expected"),
    [("meet", []), ("work", ["{'rows': 3}"] * 2)],
)
def test_rank_0_serves_its_store_until_all_have_read(tmp_path, what, expected):
    (tmp_path / "rank.py").write_text(LATE)
    assert fork_ranks(tmp_path / "rank.py", what).stdout.splitlines() == expected


@pytest.mark.distributed
def test_rank_0_serves_its_store_until_all_know_of_bad_input(tmp_path):
    (tmp_path / "rank.py").write_text(LATE)
    assert without_torchrun(str(tmp_path / "rank.py"), "refuse") == [(2, ["bad rows"]), (2, [])]
