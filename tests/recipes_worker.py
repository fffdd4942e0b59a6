"""Runs several recipes one after another under one torchrun: as by `torchrun` each, but what they import is paid for once.

    torchrun --nproc_per_node 2 recipes_worker.py calls.json

calls.json: [{"entry": path of the script, "argv": its arguments, "port": a free one}]. Every rank imports the libraries and then forks for each call a process that runs the entry's `main`, so each call starts
from the same state: no process group, no accelerator, no DeepSpeed engine of the one before. The first failure ends the run.
"""

import gc
import importlib
import json
import os
import sys
import threading
import warnings
from pathlib import Path

# What the entries import when they start to work. Nothing here starts a thread, so that forking is safe.
SHARED = [
    "deepspeed",
    "open_r1_kivqa.recipe",
    "open_r1_kivqa.trainer.grpo_trainer",
    "open_r1_kivqa.trainer.sft_trainer",
]


def main(calls: list[dict]) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # as run_scripts/start.sh; thousands of them cost seconds
    for name in SHARED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.freeze()  # collections in the processes forked leave the imported modules alone, and so their memory shared
    for call in calls:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            run_entry(**call)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"rank {os.environ['RANK']}: {call['entry']} {' '.join(call['argv'])} ended with status {status}")


def run_entry(entry: str, argv: list[str], port: int) -> None:
    """Runs the entry as `torchrun entry argv` does, and ends this process. The ranks meet at a port of the call's own: at torchrun's they would find what the call before left there."""
    from open_r1_kivqa.entry import run

    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    code = 1
    try:
        run(lambda: importlib.import_module(f"open_r1_kivqa.{Path(entry).stem}").main(argv))
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
