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
from ..prompting import Prompting
from ..rewards.methods import Scale, scale_of

ROW = "row"  # the only column of the dataset that TRL sees


def row_dataset(rows: Rows) -> Dataset:
    """The dataset TRL draws from: row numbers 0 .. len(rows) - 1."""
    return Dataset.from_dict({ROW: np.arange(len(rows))})


@dataclass
class Rollout:
    """Builds prompts and remembers how often each row was drawn.

    Attributes:
        level: of the prompts from now on; that of `prompting` until a curriculum sets another.
        box_scale: from the model's coordinates to a row's original pixels; None if they are the same.
        draws: (number of rows,) how many generation batches each row was part of. Everything random about a prompt is seeded by (seed, row id, draws), so it is the same on every rank and after a resume.
    """

    rows: Rows
    prompting: Prompting
    box_scale: Callable[[Sample], Scale] | None = None
    level: str = field(init=False)
    draws: np.ndarray = field(init=False)

    def __post_init__(self):
        self.level = self.prompting.level
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
        passages = self.prompting.passages(sample, draw=int(self.draws[number]), level=self.level)
        return {
            "prompt": self.prompting.prompt(sample, passages),
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
