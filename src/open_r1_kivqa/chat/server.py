"""A model behind an OpenAI-compatible server, such as `vllm serve`: the same messages and pixels, its own chat template."""

import json
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from ..errors import InputError
from ..protocol import request_messages
from ..remote import check_key_name
from .reply import CUT, DONE, STOPPED, Completion, Sampling

OURS = ("model", "messages", "stream", "stream_options", "n")  # fields of a request that --request leaves alone


class Server:
    """Asks for streamed chat completions.

    Args:
        url: base URL, as http://localhost:8000/v1.
        model: name under which the server knows the model.
        key_env: NAME of the environment variable that holds the key; None for a server that wants none.
        request: more fields of each request, as a JSON object; null takes one out.
        timeout: seconds without a byte after which the server is given up.

    Raises:
        InputError: one of these cannot be used. The server isn't asked yet.
    """

    def __init__(
        self,
        url: str,
        model: str,
        sampling: Sampling,
        *,
        key_env: str | None = None,
        request: str | None = None,
        timeout: float = 600.0,
    ):
        import openai

        _check_url(url)
        self._url, self._model = url, model
        self._key = None if key_env is None else _key_in(key_env)
        self._fields = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            **_read_request(request),
        }
        self._fields = {name: value for name, value in self._fields.items() if value is not None}
        # Without a key the client would take OPENAI_API_KEY, which is not this server's.
        self._client = openai.OpenAI(base_url=url, api_key=self._key or "EMPTY", timeout=timeout)

    def load(self) -> None:
        """The server has its model."""

    def opens_thinking(self, prompt: list[dict]) -> bool:
        """False: the server's template is not seen here."""
        return False

    def complete(self, prompt: list[dict], on_text: Callable[[str], None]) -> Completion:
        """See `reply.Backend`. Reasoning that the server hands over apart is put back between `<think>` and `</think>`."""
        import openai

        text, tokens, end = "", None, None
        thinking = False
        started = time.monotonic()

        def give(new: str) -> None:
            nonlocal text
            text += new
            on_text(new)

        try:
            with self._client.chat.completions.create(
                model=self._model,
                messages=request_messages(prompt),
                stream=True,
                stream_options={"include_usage": True},
                extra_body=self._fields,
            ) as stream:
                for chunk in stream:
                    tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                    for choice in chunk.choices or ():
                        reasoning = _reasoning(choice.delta)
                        if reasoning:
                            give(reasoning if thinking else f"<think>{reasoning}")
                            thinking = True
                        if choice.delta.content:
                            give(f"</think>{choice.delta.content}" if thinking else choice.delta.content)
                            thinking = False
                        end = choice.finish_reason or end
        except KeyboardInterrupt:
            return Completion(text, tokens, STOPPED, time.monotonic() - started)
        except openai.APIStatusError as error:
            raise InputError(self._refusal(f"status {error.status_code}: {error.response.text}")) from error
        except openai.APITimeoutError as error:
            raise InputError(self._refusal("nothing came for too long")) from error
        except openai.APIConnectionError as error:
            raise InputError(self._refusal(f"no connection ({error.__cause__ or error})")) from error
        except (openai.OpenAIError, ValueError) as error:  # an error in the stream, or what is no stream
            raise InputError(self._refusal(str(error))) from error
        if end is None:
            raise InputError(self._refusal("the stream ended in the middle"))
        return Completion(text, tokens, CUT if end == "length" else DONE, time.monotonic() - started)

    def _refusal(self, reason: str) -> str:
        """On one line, cut, and without the key, which a server may repeat."""
        reason = " ".join(reason[:2000].split())
        reason = reason.replace(self._key, "***") if self._key else reason
        return f"The server at {self._url} gave no reply of {self._model!r}: {reason[:300]}"


def _reasoning(delta) -> str:
    """What a server with a reasoning parser hands over apart: vLLM's `reasoning`, in older versions and elsewhere `reasoning_content`."""
    found = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None)
    return found if isinstance(found, str) else ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InputError(f"--url {url!r} is no http or https address: give one like http://localhost:8000/v1.")


def _key_in(variable: str) -> str:
    """The key that the environment variable holds. Errors don't repeat it."""
    check_key_name("api_key_env", variable)
    key = os.environ.get(variable, "").strip()
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise InputError(f"The environment variable {variable}, which --api_key_env names, holds no key.")
    return key


def _read_request(request: str | None) -> dict:
    if request is None:
        return {}
    try:
        fields = json.loads(request)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InputError(f"""--request {request!r} is no JSON object: write one like '{{"top_k": 20}}'.""")
    taken = [name for name in OURS if name in fields]
    if taken:
        raise InputError(f"--request sets {taken[0]!r}, which kivqa chat sets itself: leave it out.")
    return fields
