"""Vision-R1's hard formatting result reward (HFRRF; arXiv 2503.06749, section 3.3): form and answer right, or nothing."""

from collections.abc import Callable
from typing import Any

from open_r1_kivqa.rewards.extraction import completion_text
from open_r1_kivqa.rewards.format import has_format


def hard_format_reward(
    prompts: list,
    completions: list[Any],
    *,
    correct: Callable[..., list[float | None]],
    threshold: float = 0.5,
    **kwargs,
) -> list[float | None]:
    """1.0 if and only if a completion has the form `has_format` and its answer is right by its row's own method, else 0.0; None where only the answer's score is missing.

    Args:
        correct: scores of the answers (`rewards.accuracy.answer_scores`), called with the completions and the other keywords.
        threshold: an answer is right if its score is at least this.
    """
    formed = [has_format(completion_text(completion)) for completion in completions]
    scores = correct(completions, **kwargs)
    return [
        0.0 if not form else None if score is None else float(score >= threshold)
        for form, score in zip(formed, scores, strict=True)
    ]
