"""Rewards: pure functions from completions to numbers, used by training and evaluation alike.

A reward has TRL's signature, `f(prompts, completions, **kwargs) -> list[float | None]`: one number a completion, None where it does not apply. `kwargs` holds one list per key, each
as long as `completions`: `sample` (`Sample`), `solution` (str), `image_path` (list of str), `accu_reward_method`, `sample_id`, `level`, `passages` (list of keys shown), `box_scale`
(pair of floats), `completion_ids` (list of int).
"""

from open_r1_kivqa.rewards.accuracy import accuracy_reward
from open_r1_kivqa.rewards.extraction import EXTRACTIONS, completion_text, lenient_answer, strict_answer, think_text
from open_r1_kivqa.rewards.format import format_reward, has_format
from open_r1_kivqa.rewards.loading import REWARDS, load_reward_functions
from open_r1_kivqa.rewards.methods import METHODS, check_methods, score, score_all

__all__ = [
    "EXTRACTIONS",
    "METHODS",
    "REWARDS",
    "accuracy_reward",
    "check_methods",
    "completion_text",
    "format_reward",
    "has_format",
    "lenient_answer",
    "load_reward_functions",
    "score",
    "score_all",
    "strict_answer",
    "think_text",
]
