"""vLLM's build for CPUs, made to run beside the trainer in one process; see setup.sh for the environment."""

import functools
import gc
import importlib.util
import os
import sys

import pytest

MISSING = (
    "needs vLLM: bash tests/vllm_rollouts/setup.sh FOLDER, then KIVQA_TEST_VLLM=1 FOLDER/bin/python -m pytest tests/vllm_rollouts"
    if os.environ.get("KIVQA_TEST_VLLM") != "1"
    else "KIVQA_TEST_VLLM is 1 and vLLM is not installed"
    if importlib.util.find_spec("vllm") is None
    else None
)


def pytest_collection_modifyitems(items):
    for item in items:
        if MISSING and "vllm_rollouts" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture
def engine(monkeypatch):
    """`vllm.LLM`, as TRL builds it for --vllm_mode colocate, but in float32 and without compiling, so that it can be compared and starts soon."""
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, whose weights the trainer sets
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29633",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    import torch
    import trl.generation.vllm_generation as generation
    import vllm
    import vllm.model_executor.layers.utils as layers
    import vllm.triton_utils.dispatcher as dispatcher

    def keep(layer, remove_weight):
        """The build packs a layer's weight for its kernels and throws it away, so that no new one could be loaded."""
        layer.cpu_linear = torch.nn.functional.linear

    rebind = dispatcher._rebind_kernels

    def rebind_elsewhere(overrides):
        """It looks at every object of every module, and stumbles over llvmlite's, which numba has imported."""
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite")}
        rebind(overrides)
        sys.modules.update(hidden)

    monkeypatch.setattr(dispatcher, "_rebind_kernels", rebind_elsewhere)
    monkeypatch.setattr(layers, "dispatch_cpu_unquantized_gemm", keep)
    exact = functools.partial(
        vllm.LLM,
        distributed_executor_backend="external_launcher",
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        max_num_batched_tokens=4096,
    )
    monkeypatch.setattr(generation, "LLM", lambda **options: exact(**{**options, "dtype": "float32"}))
    yield lambda model: exact(model=model, dtype="float32", max_model_len=1024)
    gc.collect()
