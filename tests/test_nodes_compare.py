"""What nodes tell each other before they run, on one machine: the nodes are processes with torchrun's environment."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from training_rows import write_data

from open_r1_kivqa import entry, node_ties, node_watch, nodes
from open_r1_kivqa.errors import InputError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def flags(tmp_path):
    """Flags of a run in `folder`, as argparse gives them; every folder has its own files of equal content."""

    def make(folder: str, **more) -> Namespace:
        place = tmp_path / folder
        data = write_data(place / "data")
        model = place / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(bytes(3 * 2**20))
        given = {
            "model_name_or_path": str(model),
            "model_revision": "main",
            **data,
            "eval_data_file_paths": None,
            "eval_image_folders": None,
            "reward_funcs": ["accuracy", "format"],
            "learning_rate": 1e-6,
            "output_dir": str(place / "run"),
            "judge_api_key": None,
        }
        return Namespace(**{**given, **more})

    return make


def test_one_machine_compares_nothing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    nodes.compare_nodes(Namespace())
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    nodes.compare_nodes(Namespace())


def test_files_count_by_their_content_wherever_they_lie(flags):
    one, two = nodes.what_runs(flags("a")), nodes.what_runs(flags("b"))
    assert nodes.differences([one, two]) == {}
    assert one["--image_folders"] == "a folder" and one["--reward_funcs"] == "accuracy, format"
    assert one["model's model.safetensors"].startswith("3,145,728 bytes, sha256 ")
    assert one["code nodes.py"] == nodes.file_mark(ROOT / "src" / "open_r1_kivqa" / "nodes.py")
    assert {"version of torch", "version of python", "version of trl"} < set(one)


def test_what_differs_is_named_with_all_values(flags, tmp_path):
    one, two = flags("a"), flags("b", learning_rate=3e-6, judge_api_key="secret")
    with open(two.knowledge_base, "a") as file:
        file.write("\n")
    own = [tmp_path / name / "own.py" for name in "ab"]
    for path, text in zip(own, ("def good(): ...\n", "def good(): pass\n"), strict=True):
        path.write_text(text)
    one.reward_funcs, two.reward_funcs = ([f"{path}:good"] for path in own)
    with open(Path(two.model_name_or_path) / "model.safetensors", "r+b") as file:
        file.seek(3 * 2**20 - 5)
        file.write(b"x")  # another fine-tune of the same size
    found = nodes.differences([nodes.what_runs(one), nodes.what_runs(two), nodes.what_runs(one)])
    assert set(found) == {"--learning_rate", "--judge_api_key", "--knowledge_base", "--reward_funcs", "model's model.safetensors"}  # fmt: skip
    assert found["--learning_rate"] == {"1e-06": [0, 2], "3e-06": [1]}
    assert not any("secret" in value for value in found["--judge_api_key"])
    assert next(iter(found["--reward_funcs"])) == f"own.py {nodes.file_mark(own[0])}:good"
    assert found["--knowledge_base"] == {f"wiki.jsonl {nodes.file_mark(each.knowledge_base)}": place for each, place in ((one, [0, 2]), (two, [1]))}  # fmt: skip


def test_a_file_that_one_node_lacks_differs(flags):
    one, two = flags("a"), flags("b")
    os.remove(two.data_file_paths)
    values = nodes.differences([nodes.what_runs(one), nodes.what_runs(two)])["--data_file_paths"]
    assert list(values) == [f"rows.jsonl {nodes.file_mark(one.data_file_paths)}", two.data_file_paths]


def test_a_commit_differs_only_beside_code_and_unknown_differs_from_nothing():
    one = {"code a.py": "1", "git commit": "c1", "model's commit": None}
    two = {"code a.py": "1", "git commit": "c2", "model's commit": "f00"}
    assert nodes.differences([one, two]) == {}
    assert list(nodes.differences([one, two | {"code a.py": "2"}])) == ["code a.py", "git commit"]
    assert nodes.differences([one, one | {"code b.py": "3"}]) == {"code b.py": {"none": [0], "3": [1]}}


def test_folders_are_one_only_if_they_are_the_same(flags):
    one, two = flags("a"), flags("b")
    assert nodes.folder_marks(one) == nodes.folder_marks(one) != nodes.folder_marks(two)
    assert nodes.images_named(one) == nodes.images_named(two)
    assert nodes.images_named(one).startswith("7, all there, names and sizes sha256 ")
    gone = sorted(Path(two.image_folders).iterdir())[0]
    gone.unlink()
    assert nodes.images_named(two).startswith(f"7, 1 missing, the first {gone.name}, ")
    two.eval_data_file_paths, two.eval_image_folders = one.data_file_paths, one.image_folders
    assert nodes.images_named(two).startswith("14, 1 missing")


# --------------------------------------------------------------------------------- two nodes, each a process, over a real store


def be_rank(rank: int, ranks: int, port: int, flags: Namespace, then, outputs: list[Path]) -> None:
    """What a rank does, one of `ranks` on its node; forked from this process, which has imported torch already."""
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % ranks)}
    os.environ |= {"WORLD_SIZE": str(2 * ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def main():
        nodes.compare_nodes(flags)
        print(
            "compared",
            [node["node"] for node in nodes.exchange("number", lambda: {"node": nodes.this_node()})],
            flush=True,
        )
        then(rank)

    entry.run(node_ties.watched(main))


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """launch(flags of node 0, flags of node 1, then, ranks) -> (exit code, stdout, stderr) of each rank; `then(rank)` runs after the comparison, `ranks` is their number on a node."""
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    forking = multiprocessing.get_context("fork")

    def both(*flags: Namespace, then=lambda rank: None, ranks: int = 1) -> list[tuple[int, str, str]]:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        started = []
        for rank in range(2 * ranks):
            outputs = [tmp_path / f"{rank}.{name}" for name in ("out", "err")]
            given = (rank, ranks, port, flags[rank // ranks], then, outputs)
            started.append((forking.Process(target=be_rank, args=given), outputs))
        for process, _ in started:
            process.start()
        # Torchrun's part. It answers in a thread, so it begins when all ranks are forked: one forked meanwhile inherits whatever lock that thread holds, and may hang.
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
        for process, _ in started:
            process.join(60)
            process.kill()
            process.join()
        del store
        return [(process.exitcode, *(path.read_text() for path in outputs)) for process, outputs in started]

    return both


def shared(one: Namespace, two: Namespace) -> Namespace:
    return Namespace(**{**vars(two), "output_dir": one.output_dir})


def test_equal_nodes_go_on(flags, launch):
    one = flags("a")
    found = launch(one, shared(one, flags("b")))
    assert [(code, out) for code, out, _ in found] == [(0, "compared [0, 1]\n")] * 2, found
    assert os.listdir(one.output_dir) == []


def test_several_ranks_a_node(flags, launch):
    one = flags("a")
    same, other = shared(one, flags("b")), shared(one, flags("c", learning_rate=3e-6))
    assert [found[:2] for found in launch(one, same, ranks=2)] == [(0, "compared [0, 1]\n")] * 4
    refused = launch(one, other, ranks=2)
    assert [code for code, *_ in refused] == [2] * 4
    assert ["error: The nodes would not run the same" in err for _, _, err in refused] == [
        True,
        False,
    ] * 2  # one a node
    failed = launch(one, same, then=lambda rank: 1 / 0 if rank == 3 else time.sleep(100), ranks=2)
    assert [code for code, *_ in failed] == [node_watch.LOST] * 3 + [1]
    lines = [
        err.splitlines()[-1] for _, _, err in failed if err
    ]  # rank 0's process started its node's watch, which wrote the line
    assert len(lines) == 2 and "ended with an error (in its rank 3): see its output." in lines[0]
    assert lines[1].startswith("ZeroDivisionError")


def test_what_differs_ends_all_nodes_with_the_same_message(flags, launch):
    one = flags("a")
    two = shared(one, flags("b", learning_rate=3e-6))
    host = socket.gethostname()
    for code, out, err in launch(one, two):
        assert (code, out) == (2, "")
        assert f"  --learning_rate: node 0 ({host}): 1e-06; node 1 ({host}): 3e-06\n" in err and err.count("error: ") == 1  # fmt: skip
    assert not os.path.exists(one.output_dir)


def test_an_image_that_one_node_lacks_ends_all_nodes(flags, launch):
    one, two = flags("a"), flags("b")
    gone = sorted(Path(two.image_folders).iterdir())[0]
    gone.unlink()
    for code, _, err in launch(one, shared(one, two)):
        assert code == 2 and f"images that the rows name: node 0 ({socket.gethostname()}): 7, all there" in err
        assert f"7, 1 missing, the first {gone.name}" in err


def test_output_folders_that_are_not_shared_end_all_nodes(flags, launch, monkeypatch):
    monkeypatch.setattr(nodes, "SHARED", 1.0)
    one, two = flags("a"), flags("b")
    os.makedirs(two.output_dir)
    for code, _, err in launch(one, two):
        assert code == 2 and f"on node 1 ({socket.gethostname()}) is not the folder that node 0" in err
    assert not os.path.exists(one.output_dir) and os.listdir(two.output_dir) == []


def test_an_output_folder_that_node_0_cannot_make_ends_all_nodes(flags, launch):
    one = flags("a", output_dir=f"{__file__}/run")
    for code, _, err in launch(one, shared(one, flags("b"))):
        assert code == 2 and f"{__file__} is a file; give the path of a folder" in err and err.count("error: ") == 1


def test_an_error_on_one_node_is_told_apart_from_a_lost_one(flags, launch):
    one = flags("a")
    (code0, _, err0), (code1, _, err1) = launch(
        one, shared(one, flags("b")), then=lambda rank: 1 / 0 if rank == 1 else time.sleep(100)
    )
    assert (code0, code1) == (node_watch.LOST, 1)
    assert "error: node 1" in err0 and "ended with an error (in its rank 1): see its output." in err0
    assert err1.count("ZeroDivisionError") == 1 and "error: node" not in err1


def test_bad_input_on_one_node_is_told_to_the_other(flags, launch):
    def refuse(rank):
        if rank == 0:
            raise InputError("no such thing; give another.")
        time.sleep(100)

    one = flags("a")
    (code0, _, err0), (code1, _, err1) = launch(one, shared(one, flags("b")), then=refuse)
    assert (code0, code1) == (2, node_watch.LOST)
    assert err0 == "error: no such thing; give another.\n"
    assert "error: node 0" in err1 and "ended with an error (in its rank 0): see its output." in err1


def test_a_killed_rank_ends_the_other_node(flags, launch):
    one = flags("a")
    (code0, *_), (code1, _, err1) = launch(
        one,
        shared(one, flags("b")),
        then=lambda rank: os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else time.sleep(100),
    )
    assert (code0, code1) == (-signal.SIGKILL, node_watch.LOST)
    assert "node 0" in err1 and "(its rank 0 was killed or crashed): see its output" in err1


def test_a_node_that_does_not_come_is_named(flags, launch, monkeypatch):
    monkeypatch.setattr(nodes, "ARRIVAL", timedelta(seconds=1.5))
    one = flags("a")
    monkeypatch.setattr(nodes, "launch_store", late(nodes.launch_store))
    code, _, err = launch(one, shared(one, flags("b")))[0]
    assert code == 2 and "Node 1 of 0 to 1 was launched but has not come within 0.025 minutes" in err


def late(opens):
    """Node 1 takes its time to get to the store."""

    def opened():
        if os.environ["RANK"] == "1":
            time.sleep(4)
        return opens()

    return opened


def test_settings_that_cannot_be_used(flags, launch, monkeypatch):
    monkeypatch.setenv("KIVQA_NODE_TIMEOUT", "soon")
    one = flags("a")
    for code, _, err in launch(one, shared(one, flags("b"))):
        assert code == 2 and "KIVQA_NODE_TIMEOUT=soon: a whole number" in err
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"KIVQA_NODE_PORT={port}: "):
            node_ties.listen(port)
