"""Training on two machines (network namespaces) by the script that starts a node: the run, a killed node, a cut cable, going on after each, and nodes that differ."""

import json
import shutil
import time
from pathlib import Path

import pytest
from netns import Machines, steps, two_machines
from training_rows import write_data

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "run_scripts" / "multinode_training_demo.sh"


@pytest.fixture
def machines():
    with two_machines() as both:
        yield both


class Launch:
    """The script, started on both machines."""

    def __init__(self, machines: Machines, folder: Path, flags: list[str], own: dict[int, list[str]] | None = None, **environment: str):  # fmt: skip
        folder.mkdir()
        self.machines, self.logs = machines, [folder / "0.log", folder / "1.log"]
        shared = ["--nnodes", "2", "--master_addr", machines.addresses[0], "--nproc_per_node", "1"]
        environment = {
            "KIVQA_CACHE": str(folder / "cache"),
            "KIVQA_NODE_TIMEOUT": "6",
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "DS_ACCELERATOR": "cpu",
            **environment,
        }
        self.processes = [
            machines.start(
                node, "bash", str(SCRIPT), *shared, "--node_rank", str(node), *flags, *(own or {}).get(node, []),
                log=self.logs[node], **environment,
            )
            for node in (0, 1)
        ]  # fmt: skip

    def text(self, node: int) -> str:
        return self.logs[node].read_text()

    def until(self, reached, timeout: float = 300) -> None:
        """Wait until `reached()`, while both nodes run."""
        end = time.monotonic() + timeout
        while not reached():
            assert time.monotonic() < end and all(process.poll() is None for process in self.processes), self.tails()
            time.sleep(0.1)

    def codes(self, *nodes: int, timeout: float) -> list[int]:
        """Exit codes of the nodes, which have to end within `timeout` seconds."""
        end = time.monotonic() + timeout
        while any(self.processes[node].poll() is None for node in nodes):
            assert time.monotonic() < end, self.tails()
            time.sleep(0.1)
        return [self.processes[node].returncode for node in nodes]

    def tails(self) -> str:
        return "\n".join(f"node {node}:\n{self.text(node)[-4000:]}" for node in (0, 1))


def newest(run: Path) -> int:
    return max(json.loads(path.read_text())["global_step"] for path in run.glob("checkpoint-*/complete.json"))


def test_two_machines_train_lose_each_other_and_go_on(machines, tmp_path):
    smoke = tmp_path / "smoke"
    first = Launch(machines, tmp_path / "first", [], SMOKE="1", SMOKE_OUTPUT=str(smoke))
    assert first.codes(0, 1, timeout=300) == [0, 0], first.tails()
    run = smoke / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["world_size"] == 2 and (run / "model.safetensors").exists() and newest(run) == 2
    assert "2 per device x 2 processes" in first.text(0) and steps(first.text(0)) == [1, 2] and not steps(first.text(1))
    assert not list(run.glob(".nodes-*"))
    shards = [path.name for path in run.glob("checkpoint-2/global_step*/*optim_states.pt")]
    assert len(shards) == 2  # one of each machine

    data = ROOT / "src" / "open_r1_kivqa" / "demo" / "data"
    flags = {
        "model_name_or_path": smoke / "node0" / "tiny_qwen2_5_vl",
        "data_file_paths": smoke / "node0" / "rows.jsonl",
        "image_folders": data / "images",
        "knowledge_base": data / "knowledge.jsonl",
        "output_dir": run,
        "use_cpu": "true",
        "max_steps": 1000,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "num_generations": 2,
        "max_completion_length": 8,
        "save_steps": 2,
        "resume_from_checkpoint": "true",
    }
    flags = [part for name, value in flags.items() for part in (f"--{name}", str(value))]

    second = Launch(machines, tmp_path / "second", flags)
    second.until(lambda: newest(run) >= 4)
    machines.kill(1)
    assert second.codes(0, timeout=60) != [0]
    assert (
        "error: node 1 (machine-1) is gone: its connection closed without a word. So node 0 (machine-0) ends too."
        in second.text(0)
    )
    assert steps(second.text(0))[:2] == [3, 4]

    saved = newest(run)
    third = Launch(machines, tmp_path / "third", flags)
    third.until(lambda: len(steps(third.text(0))) >= 1)
    machines.cut()
    assert 0 not in third.codes(0, 1, timeout=60)
    assert steps(third.text(0))[0] == saved + 1
    for node in (0, 1):
        line = f"error: node {1 - node} (machine-{1 - node}) has not been heard for 6 s. So node {node} (machine-{node}) ends too."
        assert line in third.text(node), third.tails()
        assert not machines.processes(node)  # watch and torchrun are gone as well


def test_nodes_that_differ_are_refused_before_the_model_loads(tiny_model, machines, tmp_path):
    """Other rows, another flag and another line of code on machine 1. The model's folder holds no weights, so that loading it would fail."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model("qwen2_5_vl"), model, ignore=shutil.ignore_patterns("*.safetensors"))
    write_data(tmp_path / "data")
    rows = tmp_path / "data" / "rows.jsonl"
    (tmp_path / "data1").mkdir()
    other = shutil.copy(rows, tmp_path / "data1" / "rows.jsonl")
    other.write_text(rows.read_text().replace("What is the capital? 7", "What is its capital? 7"))
    code = tmp_path / "code"
    shutil.copytree(ROOT / "src", code, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    changed = code / "open_r1_kivqa" / "rewards" / "format.py"
    changed.write_text(changed.read_text() + "\n# a line more\n")

    flags = {
        "model_name_or_path": model,
        "image_folders": tmp_path / "data" / "images",
        "knowledge_base": tmp_path / "data" / "wiki.jsonl",
        "output_dir": tmp_path / "run",
        "use_cpu": "true",
    }
    flags = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    own = {0: ["--data_file_paths", str(rows)], 1: ["--data_file_paths", str(other), "--learning_rate", "3e-6"]}
    entry = f"""#!/usr/bin/env bash
    [ "$(hostname)" = machine-0 ] || export PYTHONPATH={code}
    exec {ROOT}/.venv/bin/torchrun "$@"
    """
    launch = Launch(machines, tmp_path / "launch", flags, own, **{"BASH_FUNC_torchrun%%": f"() {{ bash {write(tmp_path / 'torchrun', entry)} \"$@\"; }}"})  # fmt: skip
    assert launch.codes(0, 1, timeout=300) == [1, 1]  # torchrun's own, whatever its ranks end with
    for node in (0, 1):
        text = launch.text(node)
        assert (
            "exitcode  : 2 " in text and "Traceback" not in text.partition("error: The nodes would not run the same")[0]
        )
        told = (
            text.partition("error: The nodes would not run the same:\n")[2]
            .partition("\nGive every node")[0]
            .splitlines()
        )
        assert len(told) == 3, told
        assert told[0].startswith("  code rewards/format.py: node 0 (machine-0): sha256 ")
        assert "  --learning_rate: node 0 (machine-0): 1e-06; node 1 (machine-1): 3e-06" in told
        assert any(line.startswith("  --data_file_paths: node 0 (machine-0): rows.jsonl sha256 ") for line in told)
        assert " is gone" not in text and "ended with an error" not in text
    assert not (tmp_path / "run").exists()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
