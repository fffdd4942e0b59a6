import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.rewards.extraction import answer_blocks, completion_text, lenient_answer, strict_answer, think_text

GOOD = "<think>I see it.</think><answer>Paris</answer>"


@pytest.mark.parametrize(
    "text, strict, lenient",
    [
        ("Here:\n```json\n[1, 2]\n```", None, "```json\n[1, 2]\n```"),
        ("```", None, "```"),
        ("<think>a</think><answer><|begin_of_box|>42<|end_of_box|></answer>", "42", "42"),
        ("a</think>It is <|begin_of_box|>42<|end_of_box|>", None, "It is 42"),
        (GOOD, "Paris", "Paris"),
        ("<think>a</think>\n<answer> Paris \n</answer>\n", "Paris", "Paris"),
        ("a</think><answer>Paris</answer>", "Paris", "Paris"),  # the template opened <think>
        ("<answer>Paris</answer>", None, "Paris"),
        (GOOD + " so there", None, "Paris"),
        (GOOD + "<answer>Rome</answer>", None, "Rome"),
        ("<think>a</think>b</think><answer>Paris</answer>", None, "Paris"),
        ("<think>a</think> It is <answer>Paris</answer>", None, "Paris"),
        ("<think>not <answer>Rome</answer></think><answer>Paris</answer>", "Paris", "Paris"),
        ("<think>a</think><answer>Rome<answer>Paris</answer></answer>", None, "Paris"),
        ("<think>a</think><answer></answer>", "", ""),
        ("<think>a</think><answer>Paris", None, "Paris"),  # cut off
        ("<think>cut off in thought\nabout Paris", None, "about Paris"),
        ("<think>a</think>\n\nThe capital:\nParis\n\n", None, "Paris"),
        ("<think>only\nthought</think>", None, "thought"),
        ("Paris", None, "Paris"),
        ("<think></think><answer>", None, None),
        (" \n\t", None, None),
        ("", None, None),
    ],
)
def test_strict_and_lenient(text, strict, lenient):
    assert strict_answer(text) == strict
    assert lenient_answer(text) == lenient


def test_answer_blocks_are_the_innermost_in_order():
    assert answer_blocks("<answer>a</answer>b<answer><answer> c</answer></answer></answer><answer>d") == ["a", "c"]


@pytest.mark.parametrize(
    "text, thought",
    [
        (GOOD, "I see it."),
        ("open already </think>x", "open already"),
        ("<think>never closed", None),
        ("<think></think>", ""),
    ],
)
def test_think_text(text, thought):
    assert think_text(text) == thought


def test_completion_text_takes_strings_messages_and_blocks():
    blocks = [
        {"type": "text", "text": "<think>a"},
        {"type": "image", "image": "x.png"},
        {"type": "text", "text": "</think>"},
    ]
    assert completion_text("a") == "a"
    assert completion_text([{"role": "assistant", "content": "a"}]) == "a"
    assert completion_text([{"role": "assistant", "content": blocks}]) == "<think>a</think>"
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    assert completion_text(None) == completion_text([]) == ""


TAGS = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "\n", "\x00", "a"])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(TAGS, st.text(max_size=5))).map("".join)))
def test_any_text_is_read_and_strict_implies_lenient(text):
    strict, lenient = strict_answer(text), lenient_answer(text)
    assert strict is None or strict == lenient
    assert lenient is None or lenient == lenient.strip()
    think_text(text)


@pytest.mark.parametrize(
    "text", ["<answer>" * 200_000, "</answer>" * 200_000, "<" * 10**6, "<think>" + "\n" * 10**6, "[" * 10**6]
)
def test_huge_texts_take_linear_time(text):
    assert strict_answer(text) is None
    lenient_answer(text), think_text(text)
