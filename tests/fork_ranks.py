"""Runs scripts on several ranks, each a process forked from this one, so that what they import is paid for once a session.

Started by `launch.fork_ranks`. Reads requests from stdin and answers on stdout, one json line each:

    {"script": ..., "argv": [...], "ranks": 2, "env": {...}, "stdout": path, "stderr": path, "timeout": seconds}
    {"returncode": 0}

A rank starts as under torchrun, from the libraries imported and nothing else: no process group, no accelerator, no DeepSpeed engine of a request before. As under torchrun the others end when
one fails.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import warnings

# What the entries and the workers of the tests import when they start to work. Nothing here starts a thread, so that forking is safe.
SHARED = [
    "deepspeed",
    "peft",
    "open_r1_kivqa.recipe",
    "open_r1_kivqa.trainer.grpo_trainer",
    "open_r1_kivqa.trainer.sft_trainer",
    "transformers.models.internvl.modeling_internvl",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
]
TIMED_OUT = "timed out"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # ranks get files of their own in place of stdout
    warnings.simplefilter("ignore", FutureWarning)  # as run_scripts/start.sh; thousands of them cost seconds
    for name in SHARED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.freeze()  # collections in the processes forked leave the imported modules alone, and so their memory shared
    for line in sys.stdin:
        answers.write(json.dumps({"returncode": run(**json.loads(line))}) + "\n")
        answers.flush()


def run(script: str, argv: list[str], ranks: int, env: dict, stdout: str, stderr: str, timeout: float) -> int | str:
    """The exit code of the first rank that failed, 0, or TIMED_OUT; no rank is left."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = set()
    for rank in range(ranks):
        own = world | {"RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
        child = os.fork()
        if child == 0:
            run_rank(script, argv, env | {name: str(value) for name, value in own.items()}, stdout, stderr)
        running.add(child)
    end = time.monotonic() + timeout
    result = 0
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            if time.monotonic() > end and result != TIMED_OUT:
                result = TIMED_OUT
                kill(running)
            time.sleep(0.02)
            continue
        running.discard(child)
        code = os.waitstatus_to_exitcode(status)
        if code and not result:
            result = code
            kill(running)
    return result


def kill(processes: set[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def run_rank(script: str, argv: list[str], env: dict[str, str], stdout: str, stderr: str) -> None:
    """Runs the script as `python script argv` does, and ends this process."""
    os.environ.clear()
    os.environ.update(env)
    for file, number in ((stdout, 1), (stderr, 2)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [script, *argv]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
