"""Whether a completion has the form that the prompt asks for."""

from typing import Any

from open_r1_kivqa.rewards.extraction import FORM_TAG, completion_text

TAGS_IN_ORDER = ["<think>", "</think>", "<answer>", "</answer>"]


def has_format(text: str) -> bool:
    """True for `<think>…</think>\\s*<answer>…</answer>` as the whole text, both contents non-empty, each tag once. Whitespace at the end is allowed."""
    if FORM_TAG.findall(text) != TAGS_IN_ORDER:
        return False
    before, thinking, between, answer, after = FORM_TAG.split(text)
    return (
        before == ""
        and bool(thinking.strip())
        and between.strip() == ""
        and bool(answer.strip())
        and after.strip() == ""
    )


def format_reward(prompts: list, completions: list[Any], **kwargs) -> list[float]:
    """1.0 for a completion of the form `has_format`, else 0.0; one number a completion."""
    return [float(has_format(completion_text(completion))) for completion in completions]
