"""Scores answers by their rows' own methods while requests are under way: in one thread of its own, all that wait at a time together, so that a judge is asked in batches."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..data.samples import Sample
from ..rewards.methods import score_all

if TYPE_CHECKING:
    from ..rewards.judge import Judge


class Scorer:
    """`await score(answers, sample)`, from any number of tasks of one event loop.

    Args:
        judge: grades the rows of method `llm`; without one they score None.
    """

    def __init__(self, judge: "Judge | None" = None):
        self._judge = judge
        self._waiting: list[tuple[list[str], Sample, asyncio.Future]] = []
        self._thread = ThreadPoolExecutor(1, "scores")
        self._running: asyncio.Task | None = None

    async def score(self, answers: list[str], sample: Sample) -> list[float | None]:
        """The score of each answer to the row, as `score_all` gives it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((answers, sample, future))
        if self._running is None:
            self._running = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            answers = [answer for given, _, _ in batch for answer in given]
            samples = [sample for given, sample, _ in batch for _ in given]
            try:
                scores = await asyncio.get_running_loop().run_in_executor(self._thread, self._score, answers, samples)
            except Exception as error:  # each task that waits must hear of it
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            left = iter(scores)
            for given, _, future in batch:
                own = [next(left) for _ in given]
                if not future.done():
                    future.set_result(own)
        self._running = None

    def _score(self, answers: list[str], samples: list[Sample]) -> list[float | None]:
        return score_all(answers, samples, judge=self._judge)

    def close(self) -> None:
        self._thread.shutdown()
