"""A model behind an OpenAI-compatible server, such as `vllm serve`, answers the prompts of an evaluation: the same messages and the same pixels as a model in this process gets."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from ..endpoint import Endpoint, Gate, Reply
from ..errors import InputError
from ..protocol import picture_url, request_messages, small_request
from ..remote import key_named, request_fields
from .arguments import EvaluationArguments

REMEMBERED = 64  # encoded pictures kept, as a row's rollouts ask for the same one
# Each is set, since vLLM fills what is left open from the checkpoint's generation_config.json, where Qwen's has a repetition penalty.
PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": True}


class ServedModel:
    """Answers prompts over HTTP, many at a time.

    Attributes:
        failed: how many requests got no reply. last_failure: why the last of them didn't.

    Raises:
        InputError: a flag cannot be used. The server isn't asked yet.
    """

    def __init__(self, args: EvaluationArguments):
        defaults = {"temperature": 0.0, "max_tokens": args.max_new_tokens, **PLAIN}
        self._greedy_fields = request_fields("server_request", args.server_request, defaults)
        if self._greedy_fields.get("temperature") != 0.0 or "seed" in self._greedy_fields:
            raise InputError(
                "--server_request sets the temperature or the seed, which evaluation sets itself: answers are greedy, and those of --rollouts have --temperature and a seed each."
            )
        self._temperature, self._workers = args.temperature, args.server_concurrency
        self._endpoint = Endpoint(
            "server",
            args.server_url,
            args.server_model,
            key=key_named("server_api_key_env", args.server_api_key_env),
            timeout=args.server_timeout,
            retries=args.server_retries,
            gate=Gate(args.server_concurrency),
            may_be_empty=True,  # a model that says nothing has answered
        )
        self._picture_url = lru_cache(REMEMBERED)(picture_url)
        self._loop = asyncio.Runner()  # one loop for all calls: connections and the gate belong to it
        self.failed, self.last_failure = 0, ""

    def check(self, *, with_picture: bool) -> None:
        """One small request. Raises InputError if it brings no reply."""
        self._loop.run(self._endpoint.check(small_request(with_picture=with_picture), self._greedy_fields))
        self._loop.run(self._endpoint.close())

    @property
    def given_up(self) -> bool:
        """Whether so many requests in a row failed that no more are sent."""
        return self._endpoint.gate.given_up

    def greedy(self, prompts: list[list[dict]]) -> list[str | None]:
        """The most likely answers, in the prompts' order; None for a request that failed, after all its tries."""
        return self._loop.run(self._all(prompts, [self._greedy_fields] * len(prompts)))

    def sampled(self, prompts: list[list[dict]], seeds: Sequence[int]) -> list[str | None]:
        """Answers drawn at --temperature with these seeds; else as `greedy`."""
        fields = [{**self._greedy_fields, "temperature": self._temperature, "seed": seed} for seed in seeds]
        return self._loop.run(self._all(prompts, fields))

    def refuse_failures(self) -> None:
        """InputError if a request got no reply."""
        if self.failed:
            raise InputError(
                f"The server at {self._endpoint.url} failed on {self.failed:,} requests (the last time: {self.last_failure.rstrip('.')}). All other answers are kept: start the same command again to ask for the rest."
            )

    def close(self) -> None:
        """Closes the connections."""
        self._loop.run(self._endpoint.close())
        self._loop.close()

    async def _all(self, prompts: list[list[dict]], fields: list[dict]) -> list[str | None]:
        texts: list[str | None] = [None] * len(prompts)
        left = iter(range(len(prompts)))

        async def work():
            for i in left:
                messages = await asyncio.to_thread(request_messages, prompts[i], self._picture_url)
                outcome = await self._endpoint.chat(messages, fields[i])
                if isinstance(outcome, Reply):
                    texts[i] = _text(outcome)
                else:
                    self.failed += 1
                    self.last_failure = outcome.words

        await asyncio.gather(*(work() for _ in range(min(self._workers, len(prompts)))))
        return texts


def _text(reply: Reply) -> str:
    """The whole text. Reasoning that a server hands over apart is put back between its tags."""
    return f"<think>{reply.reasoning}</think>{reply.text}" if reply.reasoning else reply.text
