"""From drawn row numbers to the rows of a generation batch.

TRL's dataset holds row numbers only. A row is parsed, its passages chosen and its prompt built when a generation batch is made: at the level of that moment, and once instead of once per micro-batch that
reuses the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from datasets import Dataset

from ..data.jsonl import Rows
from ..data.samples import Sample
from ..knowledge.base import KnowledgeBase
from ..knowledge.budget import PassageBudget
from ..knowledge.context import choose_passages
from ..knowledge.pictures import PassagePictures
from ..prompts import Template, build_prompt
from ..rewards.methods import Scale, scale_of

ROW = "row"  # the only column of the dataset that TRL sees


def row_dataset(rows: Rows) -> Dataset:
    """The dataset TRL draws from: row numbers 0 .. len(rows) - 1."""
    return Dataset.from_dict({ROW: np.arange(len(rows))})


@dataclass
class Rollout:
    """Builds prompts and remembers how often each row was drawn.

    Attributes:
        level: which passages prompts show from now on; see `knowledge.context.choose_passages`, also for `budget` and `passage_pictures`.
        box_scale: from the model's coordinates to a row's original pixels; None if they are the same.
        draws: (number of rows,) how many generation batches each row was part of. Everything random about a prompt is seeded by (seed, row id, draws), so it is the same on every rank and after a resume.
    """

    rows: Rows
    template: Template
    seed: int
    knowledge_base: KnowledgeBase | None = None
    system_prompt: str | None = None
    level: str = "retrieved"
    num_passages: int = 5
    budget: PassageBudget | None = None
    passage_pictures: PassagePictures | None = None
    box_scale: Callable[[Sample], Scale] | None = None
    draws: np.ndarray = field(init=False)

    def __post_init__(self):
        self.draws = np.zeros(len(self.rows), dtype=np.int32)

    def build(self, inputs: list[dict], all_row_numbers: list[int]) -> list[dict]:
        """Full rows for this rank's part of a generation batch.

        Args:
            inputs: this rank's entries of the dataset, (local batch,) of {"row": number}.
            all_row_numbers: the numbers on all ranks, in rank order; they count as drawn once each.

        Returns:
            (local batch,) dicts, all with the same keys: `prompt` for the trainer, the others reach the reward functions as lists.
        """
        built = {number: self._row(number) for number in dict.fromkeys(entry[ROW] for entry in inputs)}
        self.draws[np.unique(all_row_numbers)] += 1
        return [built[entry[ROW]] for entry in inputs]

    def _row(self, number: int) -> dict:
        sample = self.rows[number]
        passages = choose_passages(
            sample,
            self.knowledge_base,
            level=self.level,
            num_passages=self.num_passages,
            seed=self.seed,
            draw=int(self.draws[number]),
            budget=self.budget,
            passage_pictures=self.passage_pictures,
        )
        return {
            "prompt": build_prompt(sample, passages, self.template, system_prompt=self.system_prompt),
            "sample": sample,
            "sample_id": sample.id,
            "solution": sample.answer,
            "image_path": list(sample.images),
            "accu_reward_method": sample.reward_method,
            "passages": [passage.key for passage in passages],
            "level": self.level,
            "box_scale": scale_of(sample, self.box_scale),
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs to build the same prompts: the draws so far, by row id."""
        drawn = np.flatnonzero(self.draws)
        ids = self.rows.ids
        return {"ids": np.array([ids[i] for i in drawn], dtype=str), "draws": self.draws[drawn]}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over the draws of the rows that are still there; the others count as not drawn."""
        self.draws[:] = 0
        numbers = {str(id): number for number, id in enumerate(self.rows.ids)}
        for id, draws in zip(state["ids"].tolist(), state["draws"].tolist(), strict=True):
            if id in numbers:
                self.draws[numbers[id]] = draws
