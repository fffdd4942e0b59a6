"""Attention over a row in which completions of the same prompt share it.

A packed row is, for each of its prompts one after the other, the prompt and then each of its completions (branches). A token of a prompt attends to the prompt's tokens up to itself; a token of a branch to its whole
prompt and to its branch up to itself. So a prompt's keys and values are computed once, whatever the number of its completions.

`use_shared_prefix(model)` gives the language model attention functions of transformers' AttentionInterface under names of our own. They read a forward keyword, `shared_prefix`, and without it do what the model did
before; generation, evaluation and the vision tower are as they were. A keyword, since what is set on the side is lost where activation checkpointing computes a layer once more.
"""

from dataclasses import dataclass
from functools import cached_property, partial, wraps

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "shared_prefix_"
BASES = ("sdpa", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class PromptLayout:
    """Where one prompt and its branches lie in a packed row.

    Attributes:
        start: place of the prompt's first token.
        prefix: number of tokens that all branches share; may be 0.
        branches: number of tokens of each branch, at least 1 each; the branches follow the prefix. May be empty.
    """

    start: int
    prefix: int
    branches: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.prefix + sum(self.branches)


@dataclass(frozen=True)
class PackedLayout:
    """The prompts of a packed row in their order, without gaps. `device` is where the row's tensors are."""

    prompts: tuple[PromptLayout, ...]
    device: torch.device

    @cached_property
    def branches(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For each prompt: places (branches, longest) of the branches' tokens in the row, short ones filled up with their last; which of them (branches, longest) are real; and what they see of prompt and branch,
        (1, 1, longest, prefix + longest). The same in every layer."""
        return [_branches(prompt, self.device) for prompt in self.prompts]

    @cached_property
    def segments(self) -> dict[str, torch.Tensor | int]:
        """The row as sequences of queries with keys of their own, as flash attention's varlen form takes them, and the places of these keys: a prefix has its own, a branch its prefix's and its own."""
        queries, keys, places = [0], [0], []
        for prompt in self.prompts:
            prefix = torch.arange(prompt.start, prompt.start + prompt.prefix, device=self.device)
            start = prompt.start + prompt.prefix
            parts = [prefix] if prompt.prefix else []
            for length in prompt.branches:
                parts.append(torch.cat([prefix, torch.arange(start, start + length, device=self.device)]))
                start += length
            lengths = [prompt.prefix] * bool(prompt.prefix) + list(prompt.branches)
            for length, part in zip(lengths, parts, strict=True):
                queries.append(queries[-1] + length)
                keys.append(keys[-1] + len(part))
            places += parts
        return {
            "key_places": torch.cat(places),
            "cu_seq_lens_q": torch.tensor(queries, dtype=torch.int32, device=self.device),
            "cu_seq_lens_k": torch.tensor(keys, dtype=torch.int32, device=self.device),
            "max_length_q": max(after - before for before, after in zip(queries, queries[1:], strict=False)),
            "max_length_k": max(after - before for before, after in zip(keys, keys[1:], strict=False)),
        }


def _branches(prompt: PromptLayout, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.tensor(prompt.branches, device=device)
    starts = prompt.start + prompt.prefix + lengths.cumsum(0) - lengths
    steps = torch.arange(max(prompt.branches, default=0), device=device)
    real = steps < lengths[:, None]
    sees = torch.ones(len(steps), prompt.prefix + len(steps), dtype=torch.bool, device=device).tril(prompt.prefix)
    return starts[:, None] + torch.minimum(steps, lengths[:, None] - 1), real, sees[None, None]


def sdpa_shared_prefix(base, module, query, key, value, attention_mask, *, shared_prefix=None, **kwargs):
    """Two calls for each prompt: its tokens on themselves, then all of its branches, as a batch, on the prompt and themselves.

    Args:
        query, key, value: (1, heads, length, head width), keys and values perhaps of fewer heads.

    Returns:
        (1, length, heads, head width) and None, as transformers' own.
    """
    if shared_prefix is None:
        return base(module, query, key, value, attention_mask, **kwargs)
    kwargs.pop("is_causal", None)
    outputs = []
    for prompt, (places, real, sees) in zip(shared_prefix.prompts, shared_prefix.branches, strict=True):
        prefix = slice(prompt.start, prompt.start + prompt.prefix)
        if prompt.prefix:
            own = (part[:, :, prefix] for part in (query, key, value))
            outputs.append(base(module, *own, None, is_causal=True, **kwargs)[0])
        if prompt.branches:
            keys, values = (
                torch.cat(
                    [part[:, :, prefix].expand(len(places), -1, -1, -1), part[0, :, places].transpose(0, 1)], dim=2
                )
                for part in (key, value)
            )
            queries = query[0, :, places].transpose(0, 1)
            branches, _ = base(module, queries, keys, values, sees, is_causal=False, **kwargs)
            outputs.append(branches[real][None])
    return torch.cat(outputs, dim=1), None


def flash_shared_prefix(base, module, query, key, value, attention_mask, *, shared_prefix=None, **kwargs):
    """One call in flash attention's varlen form, whose causal mask ends where queries and keys end."""
    if shared_prefix is None:
        return base(module, query, key, value, attention_mask, **kwargs)
    segments = dict(shared_prefix.segments)
    places = segments.pop("key_places")
    kwargs.pop("position_ids", None)  # they would be read as the row's parts
    kwargs.pop("is_causal", None)
    return base(module, query, key[:, :, places], value[:, :, places], None, is_causal=True, **segments, **kwargs)


def use_shared_prefix(model) -> bool:
    """Gives the language model attention functions that know `shared_prefix`. False, and nothing done, if its attention is none of BASES (eager, say), or not all of its layers see the whole row."""
    config = model.config.get_text_config()
    base = config._attn_implementation
    if base.startswith(NAME):
        return True
    if base not in BASES or any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or []):
        return False
    function = sdpa_shared_prefix if base == "sdpa" else flash_shared_prefix
    AttentionInterface.register(NAME + base, partial(function, _under_its_name(ALL_ATTENTION_FUNCTIONS[base], base)))
    AttentionMaskInterface.register(NAME + base, ALL_MASK_ATTENTION_FUNCTIONS[base])
    model.set_attn_implementation({"text_config": NAME + base})
    return True


def _under_its_name(base, name: str):
    """`base`, which may look its kernel up by the config's name of it, as flash attention does, and wouldn't find ours."""

    @wraps(base)
    def call(module, *args, **kwargs):
        config = module.config
        ours, config._attn_implementation = config._attn_implementation, name
        try:
            return base(module, *args, **kwargs)
        finally:
            config._attn_implementation = ours

    return call
