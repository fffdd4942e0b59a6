"""--vllm_mode server against a real `vllm serve`. New weights travel by NCCL, which wants GPUs: here the server keeps those that the trainer starts with."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from test_vllm_rollouts import logged
from training_rows import write_data


@pytest.fixture
def serve(tmp_path):
    """serve(model, *flags) -> base URL of a server, which ends with the test."""
    started = []

    def start(model: str, *flags: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
        command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
        command += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", *flags]
        settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        log = (tmp_path / "server.log").open("w")
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        started.append((process, log))
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                return url
            except OSError:
                assert process.poll() is None and time.monotonic() < end, Path(log.name).read_text()[-3000:]
                time.sleep(1)

    yield start
    for process, log in started:
        process.terminate()
        process.wait(60)
        log.close()


@pytest.fixture
def asked(monkeypatch):
    """The trainer's client without the transfer of weights; the list of what it posted."""
    from trl.generation.vllm_client import VLLMClient

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda client, metadata, parameters: list(parameters))
    posted = []
    import requests

    post = requests.Session.post
    monkeypatch.setattr(
        requests.Session, "post", lambda session, url, **kw: posted.append(url) or post(session, url, **kw)
    )
    return posted


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_a_server_completes_prompts_with_images(family, serve, asked, tiny_model, tmp_path):
    from grpo_run import config, make_trainer

    url = serve(tiny_model(family))
    flags = write_data(tmp_path / "data")
    options = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "learning_rate": 1e-6}
    args = config(tmp_path / "run", num_generations=4, per_device_train_batch_size=8, **options)
    trainer = make_trainer(tiny_model(family), flags, args)
    trainer.train()
    assert len(logged(trainer, "loss")) == 2 and logged(trainer, "completions/with_vision_tokens") == [0, 0]
    assert 0 < max(logged(trainer, "sampling/sampling_logp_difference/max")) < 0.1  # the forbidden tokens' share
    assert max(logged(trainer, "sampling/importance_sampling_ratio/max")) < 1
    addresses = [address.removeprefix(url) for address in asked]
    assert addresses.count("/reset_encoder_cache") == 2 and "/inference/v1/generate" in addresses


def test_a_server_with_other_limits_is_refused(serve, asked, tiny_model, tmp_path):
    from grpo_run import config, make_trainer

    from open_r1_kivqa.errors import InputError

    url = serve(tiny_model("qwen2_5_vl"))
    flags = write_data(tmp_path / "data", "22222222")
    args = config(tmp_path / "run", use_vllm=True, vllm_mode="server", vllm_server_base_url=url)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args, {"max_pixels": 1_600, "min_pixels": 784})
    with pytest.raises(InputError, match="and the trainer .*--mm-processor-kwargs '.*longest_edge"):
        trainer.train()
