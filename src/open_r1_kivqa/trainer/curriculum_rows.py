"""The trainer's side of the curriculum: rows drawn for the batch in hand, rewards handed back.

TRL's loader yields row numbers in order, and here they only say which place of the generation batch an entry has. Which row stands there is drawn when the batch is made. So neither the loader's prefetching nor its
workers put the draws behind the rewards, and a resumed run needs no drawn batches to be replayed.
"""

import hashlib

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object

from ..curriculum.curriculum import Batch, Curriculum
from ..data.samples import Sample
from .dynamic_sampling import has_advantage
from .rollout import ROW


class CurriculumMixin:
    """For `VLMGRPOTrainer`, which has `rollout`, `curriculum`, `phases`, `prompts_per_batch`."""

    curriculum: Curriculum | None
    batch: Batch | None = None  # the draw whose completions are being made
    places: list[int] = []  # of this rank's rows in it, 0 .. prompts - 1

    def places_of(self, inputs: list[dict]) -> list[int]:
        """The places in the generation batch, 0 .. prompts - 1, that the loader's entries stand for."""
        return [entry[ROW] % self.prompts_per_batch for entry in inputs]

    def draw_rows(self, places: list[int], without: np.ndarray | None = None) -> list[dict]:
        """Draw the rows of a whole generation batch, the same on every rank and none of the rows `without`, and build those at `places`."""
        with self.phases.phase("curriculum"):
            drawn = [None]
            if self.accelerator.is_main_process:
                drawn = [self.curriculum.draw(self.prompts_per_batch, without)]
            self.batch, self.places = broadcast_object_list(drawn)[0], places
        with self.phases.phase("prompts"):
            self.rollout.level = self.batch.level
            numbers = self.batch.rows.tolist()
            return self.rollout.build([{ROW: numbers[place]} for place in places], numbers)

    def observe(self, rewards: torch.Tensor, inputs: list[dict], completion_ids: list[list[int]]) -> None:
        """Hand the rewards of the batch in hand to the curriculum.

        Args:
            rewards: (prompts · G, rewards), gathered. inputs, completion_ids: this rank's rows.

        Raises:
            RuntimeError: the ranks saw other draws or other rewards.
        """
        batch, group = self.batch, self.num_generations
        teaches = has_advantage(rewards, self.reward_weights, group, self.multi_objective_aggregation)
        rewards = rewards.detach().cpu().numpy().astype(np.float64)
        seen = hashlib.blake2b(batch.rows.tobytes() + batch.importance.tobytes() + batch.level.encode())
        seen.update(rewards.tobytes())
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        mine = {
            "digest": seen.hexdigest(),
            "places": self.places,
            "hit": [shows_evidence(row["sample"], row["passages"], self.rollout.prompting.kb) for row in inputs],
            "truncated": [ids[-1] not in ends for ids in completion_ids],
        }
        told = gather_object([mine])
        places = [place for one in told for place in one["places"]]
        if len({one["digest"] for one in told}) > 1 or places != [i // group for i in range(len(rewards))]:
            raise RuntimeError(
                f"Draw {batch.number} at step {self.state.global_step}: the ranks saw other rows or other rewards, so their curricula would part. "
                "Resume from the last checkpoint; if it happens again, look for a reward that answers differently on each rank after the gathering, or a rank with other versions."
            )
        hit = np.array([shown for one in told for shown in one["hit"]])[::group]
        truncated = np.array([cut for one in told for cut in one["truncated"]]).reshape(-1, group).sum(axis=1)
        values = signal(rewards[:, self.signal_columns], *self.curriculum.settings.curriculum_signal_range)
        values = values.reshape(-1, group)
        self.curriculum.observe(self.state.global_step, batch, values, teaches, hit, truncated)
        if self.accelerator.is_main_process:
            ids = [self.curriculum.ids[row] for row in batch.rows.tolist()]
            self.observations.write(self.state.global_step, batch, ids, values, hit)


def shows_evidence(sample: Sample, passages: list[str], knowledge_base) -> bool:
    """Whether a prompt shows all evidence of its row; a row without any, or a run without passages, has nothing to miss."""
    return knowledge_base is None or set(sample.evidence) <= set(passages)


def signal(rewards: np.ndarray, low: float, high: float) -> np.ndarray:
    """(n,) mean of the rewards (n, k) that are not NaN, scaled from low..high to 0..1 and clipped; NaN where all are."""
    there = ~np.isnan(rewards)
    number = there.sum(axis=1)
    mean = np.where(there, rewards, 0).sum(axis=1) / np.maximum(number, 1)
    return np.where(number > 0, np.clip((mean - low) / (high - low), 0, 1), np.nan)
