"""vLLM's build for CPUs, made to run beside the trainer in one process, as TRL builds it for --vllm_mode colocate: in float32 and without compiling, so that it can be compared and starts soon."""

import functools
import sys

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, whose weights the trainer sets
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def prepare_engine(setattr=setattr):
    """Mends what in this build stands in the way, and has TRL build engines like this. Call it with SETTINGS in the environment.

    Args:
        setattr: sets an attribute of a module, as pytest's `monkeypatch.setattr` does for the time of a test.

    Returns:
        `vllm.LLM` for a model's folder.
    """
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

    exact = functools.partial(
        vllm.LLM,
        distributed_executor_backend="external_launcher",
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        max_num_batched_tokens=4096,
    )
    setattr(layers, "dispatch_cpu_unquantized_gemm", keep)
    setattr(dispatcher, "_rebind_kernels", rebind_elsewhere)
    setattr(generation, "LLM", lambda **options: exact(**{**options, "dtype": "float32"}))
    return lambda model: exact(model=model, dtype="float32", max_model_len=1024)
