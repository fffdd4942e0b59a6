"""Starts scripts on several ranks on this machine's CPUs: by torchrun, or forked from a process that has imported the libraries."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def run_ranks(script: Path | str, *arguments: str, ranks: int = 2, timeout: float = 600, check: bool = True):
    """Run a script in `ranks` processes by torchrun (1: without it) and return the finished process with its output.

    The first run on a machine compiles DeepSpeed's CPU collectives, which alone can take minutes when the machine is busy.

    Raises:
        AssertionError: it failed, with the end of its output, unless `check` is False.
        TimeoutExpired: it ran too long; none of its processes is left.
    """
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    process = subprocess.Popen(
        [*command, str(script), *arguments],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return _finished(process.args, process.returncode, stdout, stderr, check)


def fork_ranks(script: Path | str, *arguments: str, ranks: int = 2, timeout: float = 600, check: bool = True):
    """As `run_ranks`, without torchrun and some ten seconds faster: see fork_ranks.py. For scripts whose work is tested, not their start."""
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/{name}" for name in ("stdout", "stderr")}
        request = {"script": str(script), "argv": list(arguments), "ranks": ranks, "env": _environment()}
        server.stdin.write(json.dumps(request | files | {"timeout": timeout}) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, f"tests/fork_ranks.py ended with exit code {server.wait()}"
        stdout, stderr = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    code = json.loads(answer)["returncode"]
    if code == "timed out":
        raise subprocess.TimeoutExpired(str(script), timeout, stdout, stderr)
    return _finished([str(script), *arguments], code, stdout, stderr, check)


@cache
def _server() -> subprocess.Popen:
    """The process that forks. It ends with this one, when its input closes."""
    server = subprocess.Popen(
        [sys.executable, TESTS / "fork_ranks.py"],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.stdin.close)
    return server


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
    }


def _finished(command, code: int, stdout: str, stderr: str, check: bool) -> subprocess.CompletedProcess:
    if check and code != 0:
        raise AssertionError(f"exit code {code}\n{stdout[-3000:]}\n{stderr[-6000:]}")
    return subprocess.CompletedProcess(command, code, stdout, stderr)
