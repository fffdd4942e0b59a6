"""Starts torchrun on this machine's CPUs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_ranks(script: Path | str, *arguments: str, ranks: int = 2, timeout: float = 600, check: bool = True):
    """Run a script in `ranks` processes (1: without torchrun) and return the finished process with its output.

    The first run on a machine compiles DeepSpeed's CPU collectives, which alone can take minutes when the machine is busy.

    Raises:
        AssertionError: it failed, with the end of its output, unless `check` is False.
        TimeoutExpired: it ran too long; none of its processes is left.
    """
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
    }
    process = subprocess.Popen(
        [*command, str(script), *arguments],
        env=environment,
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
    if check and process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}\n{stdout[-3000:]}\n{stderr[-6000:]}")
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
