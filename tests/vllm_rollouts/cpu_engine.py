"""vLLM's build for CPUs, made to run beside the trainer in one process, as TRL builds it for --vllm_mode colocate: in float32 and without compiling, so that it can be compared and starts soon."""

import sys

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, whose weights the trainer sets
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
ENGINES = []  # built so far


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

    def exact(**options):
        options |= {"dtype": "float32", "enforce_eager": True, "distributed_executor_backend": "external_launcher"}
        llm = vllm.LLM(**{"logprobs_mode": "processed_logprobs", "max_num_batched_tokens": 4096, **options})
        ENGINES.append(llm)
        return llm

    setattr(layers, "dispatch_cpu_unquantized_gemm", keep)
    setattr(dispatcher, "_rebind_kernels", rebind_elsewhere)
    setattr(generation, "LLM", exact)
    return lambda model: exact(model=model, max_model_len=1024)


def free_caches() -> None:
    """Gives back each engine's 1 GiB, which vLLM keeps as long as the process lives."""
    for llm in ENGINES:
        for cache in llm.llm_engine.model_executor.driver_worker.model_runner.kv_caches:
            cache.untyped_storage().resize_(0)
    ENGINES.clear()
