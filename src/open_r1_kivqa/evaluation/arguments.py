"""Flags of evaluate_jsonl.py beside the data's and the judge's: what is asked and measured, and the model that answers."""

import math
from dataclasses import dataclass

from trl import ModelConfig

from ..arguments import VLMModelConfig
from ..errors import InputError
from ..flags import flag, refuse_below
from ..remote import MOST_OPEN, check_url

IMAGE_LIMITS = ("min_pixels", "max_pixels", "max_anyres_num")
SERVER_FLAGS = ("server_api_key_env", "server_concurrency", "server_timeout", "server_retries", "server_request")


@dataclass
class EvaluatedModel(VLMModelConfig):
    """`VLMModelConfig`, but that --model_name_or_path may be missing: behind --server_url no weights are needed here. `evaluate_jsonl.refuse` says where it has to be given."""

    def __post_init__(self):
        if self.model_name_or_path:
            super().__post_init__()
        else:
            ModelConfig.__post_init__(self)


@dataclass
class EvaluationArguments:
    """What is asked under which settings, and how the answers are generated and measured."""

    output_dir: str = flag("outputs/evaluation", "Folder of predictions.jsonl, summary.json and manifest.json.")
    adapter_name_or_path: str | None = flag(None, "LoRA adapter on top of --model_name_or_path.")
    settings: str = flag(
        "normal",
        "Settings, separated by ',': normal, no_image, wrong_image, no_passages, gold_only, oracle_article, shuffled_passages, gold_removed.",
    )
    splits: str = flag("", "Only rows of these splits, separated by ','; default: all.")
    limit: int | None = flag(None, "At most so many rows, drawn once with --seed.")
    batch_size: int = flag(32, "Prompts per process in one batch.")
    max_new_tokens: int = flag(256, "Longest completion, in tokens.")
    seed: int = flag(
        42,
        "Seeds wrong images, the order of passages, the draw of --limit, the bootstrap and the sampling of --rollouts.",
    )
    overwrite: bool = flag(
        False,
        "Start anew where the output folder holds predictions of another model, data or flags; those of the same evaluation are kept and completed.",
    )
    rollouts: int = flag(
        1,
        "From 2 on: besides the greedy answers so many completions of each row, sampled as in training under the setting normal; gives avg@N, pass@N and suspect_labels.jsonl. 1: greedy answers only.",
    )
    temperature: float = flag(1.0, "Temperature of --rollouts.")
    conditions: str | None = flag(
        None,
        "yaml file that states what this evaluation was run under, and what is known of published ones, so that figures can stand side by side; see docs/evaluate.md.",
    )
    server_url: str | None = flag(
        None,
        "Base URL of an OpenAI-compatible server that answers, as http://localhost:8000/v1 of `vllm serve`. Default: --model_name_or_path is loaded here.",
    )
    server_model: str | None = flag(None, "Name under which the server knows the model.")
    server_api_key_env: str | None = flag(
        None, "NAME of the environment variable that holds the server's key, never the key itself. Default: no key."
    )
    server_concurrency: int = flag(64, "Most requests that one process has open at the server at the same time.")
    server_timeout: float = flag(600.0, "Seconds that the server may take for one try.")
    server_retries: int = flag(
        5,
        "More tries after a failed one (no connection, too late, status 408, 409, 425, 429 or 5xx), with growing waits.",
    )
    server_request: dict | str | None = flag(
        None,
        'More fields of each request as a JSON object; null takes one out, as {"repetition_penalty": null} for a server that refuses it. What is set beforehand: docs/evaluate.md.',
    )

    def __post_init__(self):
        refuse_below(self, 1, "batch_size", "max_new_tokens", "limit", "rollouts")
        refuse_below(self, 0, "seed")
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"--temperature {self.temperature}: a number above 0 is wanted; greedy answers are always given."
            )
        if self.rollouts == 1 and self.temperature != type(self).temperature:
            raise InputError("--temperature acts on sampled completions only: add --rollouts 16, or leave it out.")
        self._check_server()

    def _check_server(self):
        if self.server_url is None:
            for name in ("server_model", *SERVER_FLAGS):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(f"--{name} has no effect without --server_url: add it, or leave the flag out.")
            return
        check_url("server_url", self.server_url)
        if not self.server_model:
            raise InputError("--server_model is missing: name the model that --server_url serves.")
        if self.adapter_name_or_path:
            raise InputError(
                "--adapter_name_or_path has no effect with --server_url: start the server with the adapter (vllm serve --enable-lora) and give its name as --server_model."
            )
        if not 0 < self.server_timeout < math.inf:
            raise InputError(f"--server_timeout {self.server_timeout}: a number of seconds above 0 is wanted.")
        refuse_below(self, 0, "server_retries")
        refuse_below(self, 1, "server_concurrency")
        if self.server_concurrency > MOST_OPEN:
            raise InputError(f"--server_concurrency {self.server_concurrency}: at most {MOST_OPEN} is wanted.")
