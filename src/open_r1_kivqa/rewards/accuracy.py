"""Whether the answer is right: the reward `accuracy`, by the method of each row."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.extraction import EXTRACTIONS, completion_text
from open_r1_kivqa.rewards.methods import Scale, score_all

if TYPE_CHECKING:
    from open_r1_kivqa.rewards.judge import Judge


def answer_scores(
    completions: list[Any],
    *,
    sample: list[Sample],
    box_scale: list[Scale] | None = None,
    answer_extraction: str = "strict",
    judge: "Judge | None" = None,
    log_judge: Callable[[str, float], None] | None = None,
    **kwargs,
) -> list[float | None]:
    """The score of each completion's answer under its row's method (`rewards.methods`). A completion without an answer in the demanded form scores as an empty answer does: 0.

    Args:
        box_scale: from the model's coordinates to the rows' original pixels. judge: grades the rows of the method `llm`, which without one score None.
        log_judge: takes what the judge has had to do since it was last told, as `judge/asked` and a number.
    """
    extract = EXTRACTIONS[answer_extraction]
    answers = [extract(completion_text(completion)) or "" for completion in completions]
    scores = score_all(answers, sample, box_scale, judge)
    if judge is not None and log_judge is not None:
        for name, value in judge.metrics().items():
            log_judge(f"judge/{name}", value)
    return scores


def accuracy_reward(prompts: list, completions: list[Any], **kwargs) -> list[float | None]:
    """The reward `accuracy`: `answer_scores`."""
    return answer_scores(completions, **kwargs)
