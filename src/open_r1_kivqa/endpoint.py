"""One endpoint that speaks OpenAI's chat completions: a request, its tries, and what came back.

A try has a time limit as a whole: the client's own begins anew with every byte. A body that ends early, or is no chat completion, is a failed try like a lost connection.
"""

import asyncio
import email.utils
import json
import random
import time
from typing import Any, NamedTuple

from .errors import InputError
from .rewards.extraction import completion_text

LEAST_PATIENCE = 8  # requests in a row that may fail before an endpoint is given up, or the concurrency if that is more
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between tries: doubled each time
LONGEST_TOLD_WAIT = 600.0  # seconds that Retry-After may ask for; who asks for more has failed
TOLD_WAITS = 20  # so often may an endpoint say when to come back, for one request, before that counts as a failed try
CONNECT_SECONDS = 30.0  # for a connection to be there
CHECK_SECONDS = 60.0  # for one try of the first small request
AGAIN = frozenset({408, 409, 425, 429})  # statuses that are tried again, like those from 500 on
ABOUT_THIS_REQUEST = frozenset({400, 413, 422})  # statuses by which the endpoint shows that it works
LENGTHS = ("max_tokens", "max_completion_tokens")


class Reply(NamedTuple):
    """What the model wrote.

    Attributes:
        text: its answer. reasoning: what the endpoint gives beside it (`reasoning_content`, or `reasoning`), "" for none.
        end: why it ended: "stop", "length" (cut off), "content_filter", or whatever the endpoint says.
        refusal: what `refusal` says, "" for nothing.
        prompt_tokens, completion_tokens: as the endpoint counts them; None if it doesn't.
    """

    text: str
    reasoning: str = ""
    end: str = "stop"
    refusal: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Failure(NamedTuple):
    """Why there is no reply: a kind to count by, words for people, and whether another try may help (`wait`: seconds until then, if the endpoint says)."""

    kind: str
    words: str
    again: bool = False
    wait: float | None = None


class Gate:
    """What all requests to one address share: how many may be open, until when all wait, and whether it has been given up."""

    def __init__(self, concurrency: int):
        self.slots = asyncio.Semaphore(concurrency)
        self.patience = max(LEAST_PATIENCE, concurrency)
        self.closed_until = 0.0
        self.in_a_row = 0

    @property
    def given_up(self) -> bool:
        return self.in_a_row >= self.patience

    def close_for(self, seconds: float) -> None:
        self.closed_until = max(self.closed_until, time.monotonic() + seconds)

    async def wait_until_open(self) -> None:
        while (left := self.closed_until - time.monotonic()) > 0:
            await asyncio.sleep(left)


class Endpoint:
    """A model behind an address.

    Args:
        name: the flag's prefix, as "mllm"; errors name it.
        url: base URL, as http://localhost:8000/v1.
        key: sent as bearer token; None for an endpoint that wants none.
        timeout: seconds for one try, all of it.
        retries: further tries after no connection, a timeout, a body that is cut off or no chat completion, or status 408, 409, 425, 429, 5xx.
        gate: shared with another endpoint of the same address.
        may_be_empty: whether a reply without any text is a reply, as it is of a model that is being measured. Default: a failed try.

    Attributes:
        tried: requests sent so far, each try counted. last_failure: words of the last request that failed.
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: str,
        *,
        key: str | None,
        timeout: float,
        retries: int,
        gate: Gate,
        may_be_empty: bool = False,
    ):
        self.name, self.url, self.model = name, url, model
        self.timeout, self.retries, self.gate = timeout, retries, gate
        self.may_be_empty = may_be_empty
        self.tried = 0
        self.last_failure = ""
        self._key = key
        self._client = None

    async def chat(self, messages: list[dict], fields: dict[str, Any]) -> Reply | Failure:
        """The reply to one request, after as many tries as it takes and is allowed."""
        tries, told_waits = 0, 0
        while True:
            await self.gate.wait_until_open()
            async with self.gate.slots:
                if self.gate.given_up:
                    return Failure("given up", f"given up after others in a row failed ({self.last_failure})")
                if self.gate.closed_until > time.monotonic():  # closed while this one stood in line
                    continue
                outcome = await self._try(messages, fields, self.timeout)
            if isinstance(outcome, Reply):
                self.gate.in_a_row = 0
                return outcome
            told = outcome.wait is not None and told_waits < TOLD_WAITS
            told_waits, tries = told_waits + told, tries + (not told)
            if outcome.wait is not None:
                self.gate.close_for(outcome.wait)
            if not outcome.again or tries > self.retries:
                self.last_failure = outcome.words
                lives = outcome.kind in {f"status {status}" for status in ABOUT_THIS_REQUEST}
                self.gate.in_a_row = 0 if lives else self.gate.in_a_row + 1
                return outcome
            if not told:
                longest = min(FIRST_WAIT * 2 ** (tries - 1), LONGEST_WAIT)
                await asyncio.sleep(longest * random.uniform(0.75, 1.0))

    async def check(self, messages: list[dict], fields: dict[str, Any]) -> None:
        """One small request before any work, with the same fields as later ones, so that none of them is refused then.

        Raises:
            InputError: no reply to it; says why.
        """
        fields = {name: 16 if name in LENGTHS else value for name, value in fields.items()}
        for wait in (FIRST_WAIT, 2 * FIRST_WAIT, None):
            reply = await self._try(messages, fields, min(self.timeout, CHECK_SECONDS))
            if isinstance(reply, Reply) or reply.kind == "empty reply":  # a model that reasons may not come further
                return
            if not reply.again or wait is None:
                break
            await asyncio.sleep(wait if reply.wait is None else reply.wait)
        raise InputError(
            f"--{self.name}_model {self.model!r} at {self.url} cannot be used: {reply.words.rstrip('.')}. Start it, or correct the flags."
        )

    async def close(self) -> None:
        """Close the connections; a later request opens new ones, in another event loop if need be."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self):
        from openai import AsyncOpenAI, Timeout

        if self._client is None:
            key = self._key or "EMPTY"  # without one the client would take OPENAI_API_KEY, which is not this endpoint's
            self._client = AsyncOpenAI(
                base_url=self.url, api_key=key, timeout=Timeout(None, connect=CONNECT_SECONDS), max_retries=0
            )
        return self._client

    async def _try(self, messages: list[dict], fields: dict[str, Any], timeout: float) -> Reply | Failure:
        import openai

        self.tried += 1
        try:
            client = self._open()  # takes its time once, which is not the endpoint's
        except Exception as error:  # an address, or a proxy in the environment, that the client cannot use
            return Failure("no client", self._words(f"{type(error).__name__}: {error}"))
        try:
            async with asyncio.timeout(timeout):
                response = await client.chat.completions.with_raw_response.create(
                    model=self.model, messages=messages, extra_body=fields
                )
                body = response.http_response.content
        except TimeoutError:
            return Failure("timeout", f"no whole reply within {timeout:g} s", again=True)
        except openai.APITimeoutError:
            return Failure("no connection", f"no connection within {CONNECT_SECONDS:g} s", again=True)
        except openai.APIStatusError as error:
            return self._status(error.status_code, error.response)
        except openai.APIConnectionError as error:
            return Failure("no connection", self._words(f"no connection ({error.__cause__ or error})"), again=True)
        except Exception as error:  # whatever a reply makes the client stumble over (its encoding, say) is this request's failure; the report counts it by name
            return Failure(type(error).__name__, self._words(f"{type(error).__name__}: {error}"), again=True)
        return read_reply(body, may_be_empty=self.may_be_empty)

    def _status(self, status: int, response) -> Failure:
        words = self._words(f"status {status}: {response.text}")
        again = status in AGAIN or status >= 500
        wait = seconds_told(response.headers.get("retry-after")) if again else None
        if wait is not None and wait > LONGEST_TOLD_WAIT:
            words, again, wait = f"{words} (come back in {wait:.0f} s, it says)", False, None
        return Failure(f"status {status}", words, again, wait)

    def _words(self, text: str) -> str:
        """On one line, cut, and without the key, which an endpoint may repeat."""
        text = " ".join(text[:2000].split())
        return (text.replace(self._key, "***") if self._key else text)[:300]


def read_reply(body: bytes, *, may_be_empty: bool = False) -> Reply | Failure:
    """The first choice of a chat completion. A reply without any text, reasoning or refusal is a failure, unless its length was used up or it `may_be_empty`."""
    try:
        record = json.loads(body)
        choice = record["choices"][0]
        message, end = choice["message"], choice.get("finish_reason")
        parts = (message.get("content"), message.get("reasoning_content") or message.get("reasoning"))
        refusal, usage = message.get("refusal"), record.get("usage") or {}
        counts = [usage.get(f"{part}_tokens") for part in ("prompt", "completion")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shown = " ".join(body[:200].decode(errors="replace").split())
        return Failure("no chat completion", f"the reply is no chat completion: {shown!r}", again=True)
    text, reasoning, refusal = (_encodable(completion_text(part)) for part in (*parts, refusal))
    end = end if isinstance(end, str) else "stop"
    if end == "error":
        return Failure("error", "the endpoint broke off with an error", again=True)
    empty = not (text.strip() or reasoning.strip() or refusal.strip())
    if empty and not may_be_empty and end not in ("length", "content_filter"):
        return Failure("empty reply", "the reply holds no text", again=True)
    counts = [count if isinstance(count, int) and not isinstance(count, bool) else None for count in counts]
    return Reply(text, reasoning, end, refusal, *counts)


def _encodable(text: str) -> str:
    """Halves of surrogate pairs, which JSON can spell and no tokenizer encodes, as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def seconds_told(retry_after: str | None) -> float | None:
    """Seconds that a Retry-After header asks for: a number or an HTTP date. None without one, or for one that is neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None
