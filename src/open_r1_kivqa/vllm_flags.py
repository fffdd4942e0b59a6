"""What --use_vllm needs, checked before anything is loaded (docs/vllm.md)."""

import time
import urllib.error
import urllib.request

from .errors import InputError

SERVE = 'VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --weight-transfer-config \'{"backend": "nccl"}\' --logprobs-mode processed_logprobs'


def refuse_unfit_vllm(args) -> None:
    """InputError for flags of training, a `VLMGRPOConfig` with `use_vllm`, that vLLM can't have, or where vLLM is missing."""
    from trl.import_utils import is_vllm_available

    if args.vllm_mode not in ("colocate", "server"):
        raise InputError(f"--vllm_mode {args.vllm_mode!r} is unknown: give colocate or server.")
    if args.vllm_model_impl != "vllm":
        raise InputError(
            f"--vllm_model_impl {args.vllm_model_impl} puts images into prompts in a way of its own, which isn't handled: leave the flag out."
        )
    if args.vllm_max_model_length is not None and args.vllm_max_model_length <= args.max_completion_length:
        raise InputError(
            f"--vllm_max_model_length {args.vllm_max_model_length} has to hold prompt and completion, and completions alone may have {args.max_completion_length} tokens: "
            "raise it, lower --max_completion_length, or leave it out to take the model's own length."
        )
    if not is_vllm_available():
        raise InputError(
            "--use_vllm: vLLM is not installed here. It pins an older torch and transformers, so it lives in an environment of its own: make it with bash setup.sh --gpu "
            "and train with .venv-vllm/bin/python, or leave the flag out."
        )


def refuse_model_for_vllm(model_args, args) -> None:
    """InputError for flags of the model, a `VLMModelConfig`, that vLLM's copy of it would not have."""
    if model_args.load_in_4bit or model_args.load_in_8bit:
        raise InputError(
            "--use_vllm with --load_in_4bit or --load_in_8bit: the engine would have to quantise the weights anew after each step, which isn't done. Train LoRA without quantising, or leave --use_vllm out."
        )
    if args.vllm_mode == "colocate" and model_args.model_revision != "main":
        raise InputError(
            f"--use_vllm with --model_revision {model_args.model_revision}: TRL's engine takes the main revision's config and processor. Download the revision and give its folder as --model_name_or_path."
        )


def wait_for_server(args) -> None:
    """Waits until the server of --vllm_mode server answers, --vllm_server_timeout seconds at most. Raises InputError where it doesn't, or can't take new weights."""
    url = (args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}").rstrip("/")
    end = time.monotonic() + args.vllm_server_timeout
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            break
        except OSError as error:  # no server, or not yet
            if time.monotonic() > end:
                raise InputError(
                    f"No vLLM server answered at {url} within {args.vllm_server_timeout:g} seconds ({error}): start it with {SERVE}, or give its address as --vllm_server_base_url."
                ) from None
            time.sleep(min(2.0, args.vllm_server_timeout / 10 + 0.01))
    try:
        urllib.request.urlopen(f"{url}/server_info?config_format=json", timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise InputError(f"The vLLM server at {url} answers /server_info with {error}.") from None
        raise InputError(
            f"The vLLM server at {url} takes no new weights: start it with VLLM_SERVER_DEV_MODE=1 in its environment, as {SERVE}."
        ) from None
