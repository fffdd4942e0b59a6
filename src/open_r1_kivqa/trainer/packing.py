"""From a batch of prompts and completions to packed rows in which every prompt stands once.

A prompt of P tokens with completions of R1, R2, … tokens becomes P - 1 tokens that all share, and for each completion a branch: the prompt's last token and the completion without its last. Each token of a branch
predicts a token of its completion, so every log-prob that is wanted is had at a place of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .prefix_attention import PackedLayout, PromptLayout

IGNORED = -100  # label of a place that predicts nothing


@dataclass(frozen=True)
class Prompt:
    """A prompt and the rows of the batch that continue it.

    Attributes:
        ids: (P,) tokens, without padding.
        positions: (axes, P) of the rotary embedding.
        rows: rows of the batch; the first one's images are the prompt's. Empty for a prompt that is only run.
        completions: the rows' completions, (R,) each, without padding; R may be 0.
        images: the inputs of its images, as the model takes them; {} without.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    rows: tuple[int, ...]
    completions: tuple[torch.Tensor, ...]
    images: dict[str, torch.Tensor]

    @property
    def branches(self) -> tuple[int, ...]:
        return tuple(max(1, len(completion)) for completion in self.completions)

    @property
    def length(self) -> int:
        return len(self.ids) - bool(self.rows) + sum(self.branches)

    def split(self, budget: int) -> Iterator["Prompt"]:
        """The prompt with a part of its rows each, of at most `budget` tokens, or with one row."""
        first, length = 0, len(self.ids) - 1
        for i, branch in enumerate(self.branches):
            if i > first and length + branch > budget:
                yield self._part(first, i)
                first, length = i, len(self.ids) - 1
            length += branch
        yield self._part(first, len(self.rows))

    def _part(self, start: int, end: int) -> "Prompt":
        return Prompt(self.ids, self.positions, self.rows[start:end], self.completions[start:end], self.images)


@dataclass(frozen=True)
class Pack:
    """A packed row.

    Attributes:
        inputs: what the model gets: input_ids, attention_mask and shift_labels, (1, L), position_ids, the images' inputs and `shared_prefix`.
        rows, columns, places: (N,) for each scored token: its row of the batch, its place in the completion, its place in the packed row.
    """

    inputs: dict
    rows: torch.Tensor
    columns: torch.Tensor
    places: torch.Tensor


def packs(prompts: Sequence[Prompt], budget: int | None) -> list[list[Prompt]]:
    """The prompts in their order, as many together as have at most `budget` tokens; None puts all together. A prompt with one completion is never cut, however long."""
    if budget is None:
        return [list(prompts)]
    filled: list[list[Prompt]] = []
    for prompt in prompts:
        for part in prompt.split(budget) if prompt.length > budget else [prompt]:
            if not filled or sum(one.length for one in filled[-1]) + part.length > budget:
                filled.append([])
            filled[-1].append(part)
    return filled


def pack(prompts: Sequence[Prompt]) -> Pack:
    """The packed row of these prompts."""
    ids, labels, positions, layouts = [], [], [], []
    rows, columns, places = [], [], []
    device, place = prompts[0].ids.device, 0
    for prompt in prompts:
        shared = len(prompt.ids) - 1 if prompt.rows else len(prompt.ids)
        layouts.append(PromptLayout(place, shared, prompt.branches))
        ids.append(prompt.ids[:shared])
        labels.append(torch.full_like(prompt.ids[:shared], IGNORED))
        positions.append(prompt.positions[:, :shared])
        place += shared
        for row, completion, length in zip(prompt.rows, prompt.completions, prompt.branches, strict=True):
            steps = torch.arange(length, device=device)
            ids += [prompt.ids[-1:], completion[: length - 1]]
            labels.append(completion if len(completion) else torch.full_like(prompt.ids[-1:], IGNORED))
            positions.append(prompt.positions[:, -1:] + steps)
            scored = steps[: len(completion)]
            rows.append(torch.full_like(scored, row))
            columns.append(scored)
            places.append(place + scored)
            place += length
    input_ids, position_ids = torch.cat(ids)[None], torch.cat(positions, dim=1)
    images = [prompt.images for prompt in prompts if prompt.images]
    inputs = {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),  # None would have the positions searched for packed rows
        "shift_labels": torch.cat(labels)[None],
        "position_ids": position_ids[:, None] if len(position_ids) > 1 else position_ids,
        "shared_prefix": PackedLayout(tuple(layouts), device),
        **{key: torch.cat([one[key] for one in images]) for key in (images[0] if images else ())},
    }
    none = torch.zeros(0, dtype=torch.long, device=device)
    return Pack(inputs, *(torch.cat(parts) if parts else none for parts in (rows, columns, places)))
