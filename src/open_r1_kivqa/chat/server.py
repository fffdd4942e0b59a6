"""A model behind an OpenAI-compatible server, such as `vllm serve`: the same messages and pixels, its own chat template."""

import time
from collections.abc import Callable

from ..errors import InputError
from ..protocol import request_messages
from ..remote import check_url, key_named, request_fields
from .reply import CUT, DONE, STOPPED, Completion, Sampling


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

        check_url("url", url)
        self._url, self._model = url, model
        self._key = key_named("api_key_env", key_env)
        defaults = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
        }
        self._fields = request_fields("request", request, defaults)
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
