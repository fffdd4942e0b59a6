"""What every test shares: no network, and the tiny models, made once a session."""

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from open_r1_kivqa.entry import keep_deepspeed_builds

keep_deepspeed_builds()  # the tests start many processes with DeepSpeed
# A shell has what it runs in the background ignore interrupts, down to the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """tiny_model(family) -> folder of a tiny random checkpoint (see tests/tiny.py). Read it, don't write to it."""
    from tiny import make_tiny  # here, so that tests without a model don't wait for torch

    folders = {}

    def folder_of(family: str) -> str:
        if family not in folders:
            folders[family] = make_tiny(family, tmp_path_factory.mktemp("tiny") / family)
        return folders[family]

    return folder_of
