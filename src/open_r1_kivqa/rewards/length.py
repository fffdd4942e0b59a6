"""A reward for the length of a completion: short right answers, and wrong ones that were thought through.

The curve is that of "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373, section 4.2), with VLM-R1's values.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from open_r1_kivqa.rewards.arguments import RewardArguments


def cosine_length(
    correct: bool,
    tokens: int,
    *,
    max_tokens: int = 1024,
    correct_range: tuple[float, float] = (1.0, 0.5),
    wrong_range: tuple[float, float] = (-0.5, 0.0),
) -> float:
    """Half a cosine from the range's first value (no token) to its second (`max_tokens`), which stays from there on."""
    start, end = correct_range if correct else wrong_range
    progress = min(tokens / max_tokens, 1.0)
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def length_reward(
    prompts: list,
    completions: list[Any],
    *,
    completion_ids: list[list[int]],
    correct: Callable[..., list[float | None]],
    threshold: float = 0.5,
    max_tokens: int = 1024,
    correct_range: tuple[float, float] = (1.0, 0.5),
    wrong_range: tuple[float, float] = (-0.5, 0.0),
    **kwargs,
) -> list[float | None]:
    """`cosine_length` of each completion; None where its accuracy is None, so that it cannot be said whether the answer is right.

    Args:
        completion_ids: tokens of each completion; their number is its length.
        correct: scores of the answers (`rewards.accuracy.answer_scores`), called with the completions and the other keywords. They are only read: the reward `accuracy` beside this one
            keeps its own values.
        threshold: an answer is right if its score is at least this.
    """
    scores = correct(completions, **kwargs)
    settings = {"max_tokens": max_tokens, "correct_range": correct_range, "wrong_range": wrong_range}
    return [
        None if score is None else cosine_length(score >= threshold, len(ids), **settings)
        for score, ids in zip(scores, completion_ids, strict=True)
    ]


def length_options(args: "RewardArguments") -> dict[str, Any]:
    """The flags as keywords of `length_reward`."""
    return {
        "max_tokens": args.cosine_max_tokens,
        "correct_range": tuple(args.cosine_correct),
        "wrong_range": tuple(args.cosine_wrong),
        "threshold": args.right_threshold,
    }
