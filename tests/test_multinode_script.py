"""Where run_scripts/multinode_training_demo.sh takes its values from. `torchrun` is a shell function that prints its arguments, since the script looks in .venv first."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "run_scripts" / "multinode_training_demo.sh"
STAND_INS = {
    "BASH_FUNC_torchrun%%": "() { printf '%s\\n' \"$@\"; }",
    "BASH_FUNC_timeout%%": "() { true; }",  # node 0 answers
    "BASH_FUNC_scontrol%%": '() { [ "$*" = "show hostnames gpu-[07-08]" ] && printf "gpu-07\\ngpu-08\\n"; }',
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "gpu-[07-08]",
    "SLURM_GPUS_ON_NODE": "4",
}


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_", "NNODES"))}
    return subprocess.run(
        ["bash", SCRIPT, *flags], env={**kept, **STAND_INS, **environment}, capture_output=True, text=True
    )


def arguments(*flags: str, **environment: str) -> dict[str, str]:
    """torchrun's flags, and under "script" all that follows its script."""
    done = run(*flags, **environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    words = done.stdout.splitlines()
    place = words.index("src/open_r1_kivqa/grpo_jsonl.py")
    return {**dict(zip(words[:place:2], words[1:place:2], strict=True)), "script": words[place + 1 :]}


FLAGS = ("--nnodes", "2", "--node_rank", "0", "--master_addr", "gpu-01")


def test_flags_of_node_0():
    found = arguments(*FLAGS, "--master_port=1234", "--nproc_per_node", "2", "--seed", "3", "--max_steps=5")
    assert found["--nnodes"] == found["--nproc_per_node"] == "2" and found["--rdzv_backend"] == "c10d"
    assert found["--rdzv_endpoint"] == "gpu-01:1234" and found["--local_addr"] == "gpu-01"
    assert found["--rdzv_conf"].startswith("is_host=1,")
    assert found["script"][-3:] == ["--seed", "3", "--max_steps=5"]
    assert found["script"][found["script"].index("--deepspeed") + 1] == "local_scripts/zero3.json"


def test_the_environment_serves_where_there_is_no_flag():
    given = {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2345", "NPROC_PER_NODE": "1"}
    found = arguments(**given)
    assert (found["--nnodes"], found["--nproc_per_node"]) == ("3", "1")
    assert found["--rdzv_endpoint"] == "10.0.0.1:2345" and found["--rdzv_conf"].startswith("is_host=0,")
    assert found["--rdzv_id"] == "kivqa-2345"
    assert arguments("--nnodes", "4", **given)["--nnodes"] == "4"
    assert arguments("--nproc_per_node=5", **given)["--nproc_per_node"] == "5"


def test_slurm_serves_where_there_is_neither():
    found = arguments(**SLURM)
    assert (found["--nnodes"], found["--nproc_per_node"]) == ("2", "4")
    assert found["--rdzv_endpoint"] == "gpu-07:29500" and found["--rdzv_id"] == "kivqa-4711"
    assert found["--rdzv_conf"].startswith("is_host=0,")
    assert arguments(**SLURM | {"SLURM_NODEID": "0"})["--local_addr"] == "gpu-07"
    assert arguments("--nproc_per_node", "1", MASTER_ADDR="ib-07", **SLURM)["--rdzv_endpoint"] == "ib-07:29500"


@pytest.mark.parametrize("master", ["10.0.0.1", "gpu-01", "zeta", "node-9", "fe80::1", "Z9"])
def test_torchrun_numbers_the_nodes_as_we_do(master):
    """It sorts what --local_addr gives."""
    labels = [
        arguments("--nnodes", "11", "--node_rank", str(node), "--master_addr", master)["--local_addr"]
        for node in (0, 1, 2, 9, 10)
    ]
    assert labels == sorted(labels) and labels[0] == master


def test_one_machine_needs_nothing_more():
    done = run("--nnodes", "1", "--nproc_per_node", "2")
    assert done.stdout.splitlines()[:5] == ["--standalone", "--nnodes", "1", "--nproc_per_node", "2"]


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ([], {}, "how many machines? Give --nnodes, or NNODES"),
        (["--nnodes"], {}, "--nnodes comes last, without its value"),
        (["--nnodes", "two"], {}, "--nnodes is 'two'; a number from 1"),
        (["--nnodes", "2"], {}, "which of the 2 machines is this one? Give --node_rank, 0 to 1"),
        (["--nnodes", "2", "--node_rank", "2"], {}, "--node_rank is '2'; a number from 0 to 1 is wanted"),
        (["--nnodes", "2", "--node_rank", "1"], {}, "where is node 0? Give --master_addr"),
        ([*FLAGS[:4], "--master_addr", "localhost"], {}, "--master_addr is localhost, which is each machine itself"),
        ([*FLAGS, "--master_port", "70000"], {}, "--master_port is '70000'; a number from 1024 to 65535"),
        ([*FLAGS, "--nproc_per_node", "0"], {}, "--nproc_per_node is '0'; a number from 1"),
        ([], {**SLURM, "SLURM_STEP_ID": ""}, "under sbatch it runs on the first node only; start it on all 2 of them: srun bash"),
        ([], {**SLURM, "SLURM_LOCALID": "1"}, "give sbatch or srun --ntasks-per-node=1"),
        ([], {**SLURM, "NNODES": "3"}, "--nnodes is 3, but this Slurm step has 2 nodes"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradictory_is_one_sentence(flags, environment, message):
    done = run(*flags, **environment)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("multinode_training_demo.sh: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
