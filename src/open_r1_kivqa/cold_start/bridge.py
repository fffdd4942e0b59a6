"""One row's way from picture and question to reasoning and answer: pseudo-CoT, description, reasoning, filter.

After Vision-R1 (arXiv 2503.06749): a multimodal model writes what the picture shows, a text-only reasoning model answers from that alone, and only right, well-formed, consistent responses are kept.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from ..data.images import image_size
from ..data.samples import Sample
from ..endpoint import Endpoint, Failure, Reply
from ..knowledge.base import KnowledgeBase, Passage
from ..knowledge.budget import PassageBudget
from ..knowledge.context import choose_passages
from ..knowledge.pictures import PassagePictures
from ..protocol import small_request
from ..rewards.answer import normalise
from ..rewards.boxes import scale_boxes
from ..rewards.extraction import strict_answer, think_text
from ..rewards.format import has_format
from ..rewards.methods import BOX_METHODS
from . import rules
from .answers import AnswerFiles, request_key
from .pictures import Pictures
from .prompt_files import Prompts, reword
from .scoring import Scorer
from .steps import Steps, named, plain_sample, sent

OUTCOMES = ("kept", "wrong_answer", "bad_format", "contradiction", "refused", "no_image", "endpoint_failed")
FRAMES = (
    "sent",
    "1000",
)  # what the models' box coordinates count: pixels of the picture as sent, or thousandths of its edges


@dataclass(frozen=True)
class Settings:
    """What a run asks and keeps.

    Attributes:
        level, num_passages, seed: see `choose_passages`.
        attempts: most times that the reasoning is asked for, until it is right.
        min_score: lowest score that counts as right.
        box_frame: one of FRAMES.
    """

    level: str = "retrieved"
    num_passages: int = 5
    seed: int = 42
    attempts: int = 1
    min_score: float = 1.0
    box_frame: str = "sent"


@dataclass(frozen=True)
class Outcome:
    """What became of a row.

    Attributes:
        kind: one of OUTCOMES. rule: which rule, step or failure; "" for kept.
        text: what shows it, for people.
        row: the row to write, if kept.
        attempts: how often the reasoning was asked for.
        answer_described: kept, and an accepted answer stands in the description.
    """

    kind: str
    rule: str = ""
    text: str = ""
    row: dict | None = None
    attempts: int = 0
    answer_described: bool = False


class _Stop(Exception):
    """Ends a row's way with an outcome."""

    def __init__(self, outcome: Outcome):
        self.outcome = outcome


class Asking:
    """A model as the steps ask it: from the answers on disk, else from its endpoint. Equal requests under way at the same time are sent once.

    Attributes:
        counts: requests `asked` now and `cached`, those that `failed`, and tokens `prompt_tokens`, `completion_tokens` of the replies to the requests asked now;
            `..._all` of all replies used; `uncounted`: replies used whose tokens the endpoint did not tell.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, Any], answers: AnswerFiles, pictures: Pictures):
        self.endpoint, self.fields = endpoint, fields
        self._answers, self._pictures = answers, pictures
        self._under_way: dict[bytes, asyncio.Future] = {}
        counted = ("asked", "cached", "failed", "prompt_tokens", "completion_tokens")
        self.counts = dict.fromkeys((*counted, "prompt_tokens_all", "completion_tokens_all", "uncounted"), 0)
        self.before_first = None  # awaited before the first request is sent

    async def ask(self, step: str, sample: Sample, messages: list[dict], attempt: int = 0) -> Reply | Failure:
        """The reply to the messages of a step; with another `attempt` another one."""
        fields = dict(self.fields)
        if attempt and isinstance(fields.get("seed"), int):
            fields["seed"] += attempt
        key = await asyncio.to_thread(self._key, messages, fields, attempt)
        while key in self._under_way:
            await asyncio.wait([self._under_way[key]])
        reply = self._answers.get(key)
        if reply is not None:
            self.counts["cached"] += 1
        else:
            self._under_way[key] = asyncio.get_running_loop().create_future()
            try:
                reply = await self._ask_now(messages, fields)
                if isinstance(reply, Reply):
                    self._answers.add(key, reply, {"model": self.endpoint.model, "step": step, "row": sample.id})
            finally:
                self._under_way.pop(key).set_result(None)
        if isinstance(reply, Reply):
            self._count_tokens(reply, "_all")
        return reply

    async def _ask_now(self, messages: list[dict], fields: dict[str, Any]) -> Reply | Failure:
        if self.before_first is not None:
            await self.before_first()
        reply = await self.endpoint.chat(await asyncio.to_thread(sent, messages, self._pictures), fields)
        self.counts["asked"] += 1
        if isinstance(reply, Reply):
            self._count_tokens(reply, "")
        else:
            self.counts["failed"] += 1
        return reply

    def _key(self, messages: list[dict], fields: dict[str, Any], attempt: int) -> bytes:
        return request_key(self.endpoint.model, named(messages, self._pictures), fields, attempt)

    def _count_tokens(self, reply: Reply, suffix: str) -> None:
        for name in ("prompt_tokens", "completion_tokens"):
            self.counts[name + suffix] += getattr(reply, name) or 0
        self.counts["uncounted"] += bool(suffix) and reply.completion_tokens is None

    async def check(self, with_picture: bool) -> None:
        """One small request; InputError if it brings no reply."""
        await self.endpoint.check(small_request(with_picture=with_picture), self.fields)


class Bridge:
    """Takes rows from picture to response. `await row(sample)`, for any number of rows at a time."""

    def __init__(
        self,
        mllm: Asking,
        reasoner: Asking,
        prompts: Prompts,
        scorer: Scorer,
        pictures: Pictures,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        knowledge_base: KnowledgeBase | None = None,
        budget: PassageBudget | None = None,
        passage_pictures: PassagePictures | None = None,
    ):
        self.mllm, self.reasoner, self.scorer, self.pictures = mllm, reasoner, scorer, pictures
        self.steps, self.replacements = Steps(prompts), prompts.replacements
        self.settings, self.knowledge_base = settings, knowledge_base
        self.budget, self.passage_pictures = budget, passage_pictures

    async def row(self, sample: Sample) -> Outcome:
        """What becomes of the row. Nothing that models or endpoints do raises.

        Raises:
            InputError: an endpoint can't be used at all, the disk takes no more answers, or an image vanished.
        """
        if not sample.images:
            return Outcome("no_image", "no_image", sample.question)
        settings = self.settings
        passages = choose_passages(
            sample,
            self.knowledge_base,
            level=settings.level,
            num_passages=settings.num_passages,
            seed=settings.seed,
            draw=None,
            budget=self.budget,
            passage_pictures=self.passage_pictures,
            keep_evidence=True,  # as training will show them
        )
        plain = plain_sample(sample)
        try:
            messages = self.steps.pseudo_cot(plain, passages)
            pseudo_cot = await self._written("pseudo_cot", self.mllm, sample, messages)
            messages = self.steps.description(plain, passages, pseudo_cot)
            description = await self._written("description", self.mllm, sample, messages)
        except _Stop as stop:
            return stop.outcome
        messages = self.steps.reasoning(plain, passages, description)
        outcome = Outcome("endpoint_failed")
        for attempt in range(settings.attempts):
            outcome = await self._attempt(plain, passages, messages, attempt)
            if outcome.kind in ("kept", "endpoint_failed"):
                break
        described = outcome.kind == "kept" and _names(description, sample)
        return replace(outcome, answer_described=described)

    async def _written(self, step: str, model: Asking, sample: Sample, messages: list[dict]) -> str:
        reply = await model.ask(step, sample, messages)
        if isinstance(reply, Failure):
            raise _Stop(_failed(step, reply))
        drop = rules.unfit_reply(reply, step)
        # A multimodal model that reasons writes its thoughts before what was asked for.
        text = reply.text.rpartition("</think>")[2].strip()
        if drop is None and not text:
            drop = rules.Drop("bad_format", f"{step}_empty", reply.reasoning or reply.text)
        if drop is not None:
            raise _Stop(_dropped(drop))
        return text

    async def _attempt(self, sample: Sample, passages: list[Passage], messages: list[dict], attempt: int) -> Outcome:
        reply = await self.reasoner.ask("reasoning", sample, messages, attempt)
        if isinstance(reply, Failure):
            return replace(_failed("reasoning", reply), attempts=attempt + 1)
        outcome = await self._filtered(reply, sample, passages)
        return replace(outcome, attempts=attempt + 1)

    async def _filtered(self, reply: Reply, sample: Sample, passages: list[Passage]) -> Outcome:
        """Kept with its row, or dropped by the first rule that it breaks."""
        response = rules.assemble(reply)
        drop = rules.unfit_reply(reply, "reasoning") or rules.malformed(response, reply)
        if drop is not None:
            return _dropped(drop)
        response = self._in_original_pixels(response, sample)
        thinking, answer = reword(think_text(response), self.replacements).strip(), strict_answer(response)
        settled = rules.settled_answer(thinking, answer)
        scores = await self.scorer.score([answer] if settled is None else [answer, settled], sample)
        if scores[0] is None:
            return Outcome("endpoint_failed", "judge", f"no score for {answer[:200]!r}")
        if scores[0] < self.settings.min_score:
            return Outcome("wrong_answer", sample.reward_method, answer)
        if settled is not None and scores[1] is not None and scores[1] < self.settings.min_score:
            return Outcome("contradiction", "other_answer", f"settles on {settled!r}, answers {answer!r}")
        response = f"<think>{thinking}</think><answer>{answer}</answer>"
        drop = rules.contradicts_the_picture(thinking, has_passages=bool(passages))
        if drop is None and not has_format(response):  # people's own rules of rewording may break it
            drop = rules.Drop("bad_format", "form", response)
        return (
            Outcome("kept", text=answer, row=kept_row(sample, response, passages)) if drop is None else _dropped(drop)
        )

    def _in_original_pixels(self, response: str, sample: Sample) -> str:
        """The response with its boxes as rows hold them; other methods' responses as they are."""
        if sample.reward_method not in BOX_METHODS:
            return response
        width, height = image_size(sample.images[0])
        across, down = (1000, 1000) if self.settings.box_frame == "1000" else self.pictures.size(width, height)
        return scale_boxes(response, (width / across, height / down), whole=(width, height) != (across, down))


def kept_row(sample: Sample, response: str, passages: list[Passage]) -> dict:
    """The row to write: as it was, with turns that ask for no tags and the response as the last one.

    What it took from its file or its old gpt turn now stands in the row: `answers`, and `accu_reward_method` if it isn't the default. `candidates` are the passages shown, in the
    order in which the reasoning may count them.
    """
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns = [{"from": names[role], "value": text} for role, text in sample.turns]
    row = {**sample.row, "conversations": [*turns, {"from": "gpt", "value": response}]}
    row.setdefault("answers", None)
    if row["answers"] is None:
        row["answers"] = list(sample.answers)
    if not row.get("accu_reward_method") and sample.reward_method != "default":
        row["accu_reward_method"] = sample.reward_method
    if passages:
        row["candidates"] = [passage.key for passage in passages]
    return row


def _failed(step: str, failure: Failure) -> Outcome:
    return Outcome("endpoint_failed", failure.kind, f"{step}: {failure.words}")


def _dropped(drop: rules.Drop) -> Outcome:
    return Outcome(drop.kind, drop.rule, drop.text)


def _names(description: str, sample: Sample) -> bool:
    if isinstance(sample.answers, dict):
        return False
    told = f" {normalise(description)} "
    return any(f" {normalise(answer)} " in told for answer in sample.answers if normalise(answer))
