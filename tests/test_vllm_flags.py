"""--use_vllm: what is refused before a model is loaded, with what to do about it."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from grpo_run import config
from training_rows import write_data
from trl import import_utils

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.grpo_jsonl import main
from open_r1_kivqa.recipe import before_the_model
from open_r1_kivqa.vllm_flags import wait_for_server


@pytest.fixture
def installed(monkeypatch):
    """As if vLLM were: nothing here loads it."""
    monkeypatch.setattr(import_utils, "is_vllm_available", lambda *args: True)


@pytest.fixture
def server():
    """server(without) -> base URL of a server that answers as vLLM does at the addresses asked before training, but for those in `without`."""
    servers = []

    def start(without: tuple[str, ...] = ()) -> str:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self):
                known = self.path.split("?")[0] in {"/health", "/server_info"} - set(without)
                self.send_response(200 if known else 404)
                self.end_headers()

            def log_message(self, *args):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def test_where_vllm_is_missing_the_way_to_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(import_utils, "is_vllm_available", lambda *args: False)
    with pytest.raises(InputError, match="--use_vllm: vLLM is not installed here.* bash setup.sh --gpu"):
        config(tmp_path, use_vllm=True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"vllm_mode": "remote"}, "--vllm_mode 'remote' is unknown: give colocate or server"),
        ({"vllm_model_impl": "transformers"}, "--vllm_model_impl transformers puts images"),
        (
            {"vllm_max_model_length": 2048, "max_completion_length": 2048},
            "--vllm_max_model_length 2048 .* completions alone may have 2048",
        ),
    ],
)
def test_flags_that_vllm_cannot_have(flags, words, tmp_path, installed):
    with pytest.raises(InputError, match=words):
        config(tmp_path, use_vllm=True, **flags)
    with pytest.raises(InputError, match="acts only with --use_vllm true"):
        config(tmp_path, **{"max_completion_length": 6} | flags)


def test_what_fits_is_let_through(tmp_path, installed):
    args = config(tmp_path, use_vllm=True, vllm_max_model_length=2049, max_completion_length=2048, vllm_mode="server")
    assert args.use_vllm and args.vllm_mode == "server"


@pytest.mark.parametrize(
    ("model_flags", "mode", "words"),
    [
        ({"use_peft": True, "load_in_4bit": True}, "colocate", "--load_in_4bit or --load_in_8bit"),
        ({"use_peft": True, "load_in_8bit": True}, "server", "--load_in_4bit or --load_in_8bit"),
        ({"model_revision": "v2"}, "colocate", "--model_revision v2: .* give its folder"),
    ],
)
def test_models_that_vllm_would_hold_another_copy_of(model_flags, mode, words, tmp_path, installed):
    args = config(tmp_path / "run", use_vllm=True, vllm_mode=mode)
    model_args = VLMModelConfig(model_name_or_path="unread", **model_flags)
    with pytest.raises(InputError, match=words):
        before_the_model(DataArguments(**write_data(tmp_path / "data")), model_args, args, frozenset())


def test_a_server_is_looked_for_before_the_model_is_loaded(tmp_path, installed, server):
    data_args = DataArguments(**write_data(tmp_path / "data"))
    model_args = VLMModelConfig(model_name_or_path="unread")
    flags = {"use_vllm": True, "vllm_mode": "server", "vllm_server_timeout": 0.2}
    with pytest.raises(
        InputError, match="No vLLM server answered at http://127.0.0.1:9 within 0.2 seconds .*: start it"
    ):
        args = config(tmp_path / "run", vllm_server_base_url="http://127.0.0.1:9/", **flags)
        before_the_model(data_args, model_args, args, frozenset())
    before_the_model(
        data_args, model_args, config(tmp_path / "run", vllm_server_base_url=server(), **flags), frozenset()
    )


def test_a_server_that_takes_no_weights_is_refused(server):
    url = server(without=("/server_info",))
    host, port = url.removeprefix("http://").split(":")
    args = SimpleNamespace(
        vllm_server_base_url=None, vllm_server_host=host, vllm_server_port=int(port), vllm_server_timeout=5
    )
    with pytest.raises(InputError, match=f"{url} takes no new weights: start it with VLLM_SERVER_DEV_MODE=1"):
        wait_for_server(args)


def test_prompts_too_long_for_the_engine_are_refused(tmp_path, installed, tiny_model, monkeypatch):
    """The model takes 4,096 tokens; what counts is what the engine holds."""
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    given = {"model_name_or_path": tiny_model("internvl"), **write_data(tmp_path / "data"), "use_vllm": True}
    given |= {"max_completion_length": 6, "per_device_train_batch_size": 8, "output_dir": tmp_path / "run"}
    given |= {"use_cpu": True, "bf16": False, "vllm_max_model_length": 100, "report_to": "none"}
    with pytest.raises(InputError, match="the model takes 100 with 6 kept for the completion"):
        main([part for name, value in given.items() for part in (f"--{name}", str(value))])
