import math

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards import load_reward_functions
from open_r1_kivqa.rewards.arguments import RewardArguments
from open_r1_kivqa.rewards.length import cosine_length, length_options, length_reward


@pytest.mark.parametrize(
    "correct, tokens, reward",
    [
        (True, 0, 1.0),
        (True, 256, 0.5 + 0.25 * (1 + math.sqrt(0.5))),  # cos 45°
        (True, 512, 0.75),
        (True, 1024, 0.5),
        (True, 1025, 0.5),  # unclamped, the curve would rise again
        (True, 2048, 0.5),
        (True, 10**9, 0.5),
        (False, 0, -0.5),
        (False, 512, -0.25),
        (False, 1024, 0.0),
        (False, 2048, 0.0),
    ],
)
def test_the_curve(correct, tokens, reward):
    assert cosine_length(correct, tokens) == pytest.approx(reward, abs=1e-12)


def test_other_ends():
    curve = {"max_tokens": 10, "correct_range": (2.0, 0.0), "wrong_range": (-3.0, -1.0)}
    assert [cosine_length(True, n, **curve) for n in (0, 5, 10, 11)] == pytest.approx([2.0, 1.0, 0.0, 0.0])
    assert [cosine_length(False, n, **curve) for n in (0, 5, 10, 11)] == pytest.approx([-3.0, -2.0, -1.0, -1.0])


def test_a_longer_completion_never_earns_more_if_right_nor_less_if_wrong():
    right, wrong = ([cosine_length(correct, n) for n in range(1500)] for correct in (True, False))
    assert right == sorted(right, reverse=True) and wrong == sorted(wrong)


def test_right_is_a_score_from_the_threshold_on():
    scores = [1.0, 0.5, 0.49, 0.0, None]
    seen = {}

    def correct(completions, **kwargs):
        seen.update(kwargs, completions=completions)
        return scores

    ids = [[7] * 1024] * 5
    rewards = length_reward([None] * 5, list("abcde"), completion_ids=ids, correct=correct, sample=["s"] * 5)
    assert rewards == [0.5, 0.5, 0.0, 0.0, None]
    assert seen == {"sample": ["s"] * 5, "completions": list("abcde")}
    assert scores == [1.0, 0.5, 0.49, 0.0, None]
    assert length_reward([None], ["a"], completion_ids=[[]], correct=lambda c: [0.9], threshold=0.95) == [-0.5]


def row(method="exact", answers=("Paris",)):
    turns = [{"from": "human", "value": "Capital?"}, {"from": "gpt", "value": "Paris"}]
    fields = {"id": "1", "conversations": turns, "answers": list(answers)}
    return parse_row(fields, image_folder="", reward_method=method, source="rows.jsonl:1")


def test_beside_accuracy_whose_values_stay():
    settings = RewardArguments(cosine_max_tokens=4, cosine_correct=[1.0, 0.0], cosine_wrong=[-1.0, 0.0])
    accuracy, length = load_reward_functions(["accuracy", "length"], settings=settings)
    completions = ["<think>a</think><answer>Paris</answer>", "<think>a</think><answer>Rome</answer>", "Paris"]
    given = {"completion_ids": [[1, 2], [1, 2], []], "sample": [row()] * 3, "box_scale": [(1.0, 1.0)] * 3}
    assert length([None] * 3, completions, **given) == pytest.approx([0.5, -0.5, -1.0])
    assert accuracy([None] * 3, completions, **given) == [1.0, 0.0, 0.0]
    # a row whose accuracy cannot be said, and one that wants a judge where there is none
    nothing = {"completion_ids": [[1]] * 2, "sample": [row("numeric"), row("llm")], "box_scale": [(1.0, 1.0)] * 2}
    assert length([None] * 2, completions[:2], **nothing) == [None, None]


def test_the_flags_arrive():
    flags = RewardArguments(
        cosine_max_tokens=7, cosine_correct=[2.0, 1.0], cosine_wrong=[-1.0, 0.5], right_threshold=0.9
    )
    wanted = {"max_tokens": 7, "correct_range": (2.0, 1.0), "wrong_range": (-1.0, 0.5), "threshold": 0.9}
    assert length_options(flags) == wanted
    defaults = {"max_tokens": 1024, "correct_range": (1.0, 0.5), "wrong_range": (-0.5, 0.0), "threshold": 0.5}
    assert length_options(RewardArguments()) == defaults
