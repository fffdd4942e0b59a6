"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): further prompts until a batch is full of groups that teach.

A group whose completions all got the same reward has no advantage and teaches nothing. Each round draws, generates and scores a whole generation batch; the groups that teach are kept in the order they were drawn. What
a round made stays in lists of one entry a completion, so nothing padded is ever merged: the stock method is then run once on the chosen rows, with their completions and rewards handed to it.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate.utils import gather_object

from ..prompts import decode_images


@dataclass
class Completion:
    """One completion with its prompt, on its way to the rank that trains on it."""

    row: dict  # what the rollout built
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int] | None  # 0 for tokens left out of the loss; None where there are none
    message: list[dict]
    logprobs: list[float] | None
    extra: dict = field(default_factory=dict)  # columns of the table of completions


class DynamicSamplingMixin:
    """For `VLMGRPOTrainer`, which draws rows by `CurriculumMixin`."""

    prepared: tuple | None = (
        None  # what `_generate` and `_calculate_rewards` give the stock method instead of making it
    )

    def teaching_rows(self, places: list[int], rounds: int) -> list[dict]:
        """Rows of groups that teach for this rank's `places`, after at most `rounds` rounds; the rest of the places, if any, gets groups that don't.

        No row is drawn twice for a batch, so there are no more rounds than the data has batches.
        """
        group = self.num_generations
        prompts = self.prompts_per_batch
        kept, others, mine, rewards = [], [], {}, {}
        drawn = np.zeros(0, dtype=np.int64)
        for number in range(min(rounds, len(self.rollout.rows) // prompts)):
            scored, completions = self._round(places, drawn)
            drawn = np.concatenate([drawn, self.batch.rows])
            teaches = has_advantage(scored, self.reward_weights, group, self.multi_objective_aggregation)
            for place in range(prompts):
                (kept if teaches[place] else others).append((number, place))
                rewards[number, place] = scored[place * group : (place + 1) * group]
            for place, completion in zip(places, completions, strict=True):
                mine.setdefault((number, place), []).append(completion)
            if len(kept) >= prompts:
                break
        self._log_metric("dynamic_sampling/rounds", number + 1)
        self._log_metric("dynamic_sampling/teaching_share", len(kept) / (len(kept) + len(others)))
        chosen = (kept + others)[:prompts]
        everyones = {}
        for one in gather_object([{key: mine[key] for key in chosen if key in mine}]):
            everyones |= one
        local = [one for place in dict.fromkeys(places) for one in everyones[chosen[place]]]
        self.prepared = self._as_generated(local), torch.cat([rewards[key] for key in chosen])
        for column in local[0].extra:
            self._log_completion_extra(column, [one.extra[column] for one in local])
        return [one.row for one in local]

    def _round(self, places: list[int], without: np.ndarray) -> tuple[torch.Tensor, list[Completion]]:
        """Draw, generate and score a generation batch: gathered rewards (prompts · G, rewards), and this rank's completions."""
        inputs = self.draw_rows(places, without)
        prompts = [row["prompt"] for row in inputs]
        prompt_ids, completion_ids, masks, messages, logprobs, *_ = self._generate(prompts)
        rewards = self._calculate_rewards(inputs, prompts, messages, completion_ids)
        extras = dict(self._pending_extra_logs)  # of all rounds they would outgrow the batch; the chosen ones go back
        self._pending_extra_logs.clear()
        nothing = [None] * len(inputs)
        parts = zip(inputs, prompt_ids, completion_ids, masks or nothing, messages, logprobs or nothing, strict=True)
        return rewards, [
            Completion(*part, extra={column: values[i] for column, values in extras.items()})
            for i, part in enumerate(parts)
        ]

    def _as_generated(self, completions: list[Completion]) -> tuple:
        """What the stock `_generate` would have returned for these completions."""
        prompts = decode_images([one.row["prompt"] for one in completions])
        images = [
            [block["image"] for message in prompt for block in message["content"] if block["type"] == "image"]
            for prompt in prompts
        ]
        return (
            [one.prompt_ids for one in completions],
            [one.completion_ids for one in completions],
            [one.mask or [1] * len(one.completion_ids) for one in completions]
            if any(one.mask for one in completions)
            else None,
            [one.message for one in completions],
            None if completions[0].logprobs is None else [one.logprobs for one in completions],
            {},
            images if any(images) else None,
            [],
        )


def has_advantage(rewards: torch.Tensor, weights: torch.Tensor, group: int, aggregation: str) -> np.ndarray:
    """(prompts,) whether a group's completions have different advantages.

    Args:
        rewards: (prompts · group, rewards), NaN where a reward does not apply.
        aggregation: TRL's --multi_objective_aggregation: the rewards are summed first, or each is normalised by itself.
    """
    grouped = rewards.view(-1, group, rewards.size(1)) * weights.to(rewards.device)
    if aggregation == "sum_then_normalize":
        unscored = grouped.isnan().all(dim=2)
        grouped = grouped.nansum(dim=2).masked_fill(unscored, torch.nan).unsqueeze(2)
    highest = grouped.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = grouped.nan_to_num(nan=torch.inf).amin(dim=1)
    return (highest > lowest).any(dim=1).cpu().numpy()
