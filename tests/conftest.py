"""What every test shares: no network, and the tiny models, made once a session."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# DeepSpeed compiles its CPU collectives once, if the ninja on the PATH is always the same: this environment's own.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

import pytest


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
