import pytest

from open_r1_kivqa.rewards.extraction import strict_answer
from open_r1_kivqa.rewards.format import format_reward


@pytest.mark.parametrize(
    "text, reward",
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>\n", 1.0),  # a newline at the end costs nothing
        ("<think></think><answer>b</answer>", 0.0),
        ("<think>a</think><answer> \n</answer>", 0.0),
        (" <think>a</think><answer>b</answer>", 0.0),
        ("<think>a</think>b<answer>c</answer>", 0.0),
        ("<think>a</think><answer>b</answer>c", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a<think>b</think></think><answer>c</answer>", 0.0),
        ("<think>a <answer> b</think><answer>c</answer>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<THINK>a</THINK><ANSWER>b</ANSWER>", 0.0),
        ("<think>a</think><answer>b", 0.0),
        ("", 0.0),
    ],
)
def test_format_reward(text, reward):
    assert format_reward([None], [[{"role": "assistant", "content": text}]]) == [reward]
    assert not reward or strict_answer(text)
