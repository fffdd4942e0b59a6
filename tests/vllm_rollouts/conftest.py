"""Skips these tests where vLLM is missing; see setup.sh for the environment."""

import importlib.util
import os

import pytest

MISSING = (
    "needs vLLM: bash tests/vllm_rollouts/setup.sh FOLDER, then KIVQA_TEST_VLLM=1 FOLDER/bin/python -m pytest tests/vllm_rollouts"
    if os.environ.get("KIVQA_TEST_VLLM") != "1"
    else "KIVQA_TEST_VLLM is 1 and vLLM is not installed"
    if importlib.util.find_spec("vllm") is None
    else None
)
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29633"}


def pytest_collection_modifyitems(items):
    for item in items:
        if MISSING and "vllm_rollouts" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture
def engine(monkeypatch):
    """`vllm.LLM` for a model's folder, and the trainer's engines alike."""
    from cpu_engine import SETTINGS, free_caches, prepare_engine

    for name, value in {**SETTINGS, **ONE_RANK}.items():
        monkeypatch.setenv(name, value)
    yield prepare_engine(monkeypatch.setattr)
    free_caches()
