"""HFRRF: form and answer right, or nothing."""

import pytest
from test_rewards import sample

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards import accuracy_reward, format_reward, load_reward_functions
from open_r1_kivqa.rewards.arguments import RewardArguments

RIGHT = "<think>a</think><answer>Paris</answer>"


def score(*texts, row=None, settings=None):
    (reward,) = load_reward_functions(["hard_format"], settings=settings)
    return reward([None] * len(texts), list(texts), sample=[row or sample(["Paris"])] * len(texts))


def test_both_or_nothing():
    texts = [
        RIGHT,
        "<think>a</think><answer>Rome</answer>",  # wrong
        "Paris",  # no form
        "<answer>Paris</answer>",
        "<think></think><answer>Paris</answer>",  # empty reasoning
        RIGHT + " Paris",  # something after it
        RIGHT + "\n",
        "",
    ]
    assert score(*texts) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_it_is_the_product_of_accuracy_and_format_for_rows_that_are_right_or_wrong():
    texts = [
        f"{open_}{answer}{close}"
        for open_ in ("<think>a</think><answer>", "")
        for answer in ("Paris", "Rome", "")
        for close in ("</answer>", "")
    ]
    rows = [sample(["Paris"])] * len(texts)
    accuracy, form = accuracy_reward([], texts, sample=rows), format_reward([], texts)
    assert score(*texts) == [a * b for a, b in zip(accuracy, form, strict=True)] and sum(score(*texts)) == 1


def test_a_score_between_right_and_wrong_is_right_from_the_threshold_on():
    row = sample(["[0, 0, 10, 10]"], "iou")
    text = "<think>a</think><answer>[0, 0, 10, 6]</answer>"  # IoU 0.6
    assert score(text, row=row) == [1.0]
    assert score(text, row=row, settings=RewardArguments(right_threshold=0.7)) == [0.0]


def test_where_the_answer_cannot_be_scored_only_the_form_is_judged():
    row = sample(["Paris"], "numeric")  # no number to compare with
    assert score(RIGHT, "Paris", row=row) == [None, 0.0]


def test_the_threshold_is_refused_without_a_reward_that_reads_it():
    settings = RewardArguments(right_threshold=0.7)
    settings.refuse_idle(["hard_format"])
    with pytest.raises(InputError, match="--right_threshold acts only with the reward length or hard_format"):
        settings.refuse_idle(["accuracy", "format"])
