"""Every method and every reward takes any text: none raises, and each gives None or a finite number in its range, also for text made to keep regexes and parsers busy."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards import REWARDS, load_reward_functions
from open_r1_kivqa.rewards.methods import BOX_METHODS, JUDGED, METHODS, score

RANGES = {"length": (-0.5, 1.0), "repetition": (-1.0, 0.0)}  # of the others 0 to 1
DETECTIONS = '[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [5, 5, 20, 20], "label": "dog"}]'
REFERENCES = [
    ["Paris", "Ville Lumière"],
    ["B"],
    ["(A) a cat"],
    ["Yes, it is."],
    ["1,000"],
    [r"\boxed{\frac{1}{2}}"],
    ["[10, 10, 20, 20]"],
    [f"```json\n{DETECTIONS}\n```"],
    ["None"],
    {"range": [0, 1]},
]


def sample(answers, method):
    question = "What is it?\nA. a cat\nB. a dog\nC. none of these"
    row = {"id": "1", "conversations": [{"from": "human", "value": question}], "answers": answers}
    return parse_row(row, image_folder="", reward_method=method, source="rows.jsonl:1")


SAMPLES = [sample(answers, method) for method in METHODS for answers in REFERENCES]
APPLIED = {
    method: [one for one in SAMPLES if one.reward_method == method and score("", one) is not None] for method in METHODS
}


SOME_OF_EACH = [one for method in METHODS for one in APPLIED[method][:3]]
ONE_OF_EACH = [APPLIED[method][0] for method in METHODS]


def scores(text, samples):
    return [score(text, one, (1.5, 0.5) if one.reward_method in BOX_METHODS else (1.0, 1.0)) for one in samples]


def check(values, low=0.0, high=1.0):
    assert all(
        value is None or (isinstance(value, float) and math.isfinite(value) and low <= value <= high)
        for value in values
    )


PIECES = r"""<answer> </answer> <think> </think> [ ] { } ( ) " ```json ``` \ $ \boxed{ \text{ A B. (C) yes no None bbox_2d label : , 10 1e999""".split()
PIECES += r"- NaN Infinity ^ 9 ! % ½ ٣ ² Ａ | ; Paris".split()
PIECES += ["1 000", " or ", "e\u0301", "\x00", "\x1b[0m", "\u202e", "\ud800", "\n", "\t", " ", "\U0001f600"]
TEXTS = st.one_of(st.text(max_size=50), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))

LONG = 20_000  # characters
RUNS = [*"a9([{)\\$^-! \n½\u0301\ud800\x00", "A ", "A, ", "(A) ", "A. x\n", "yes ", "no, ", "or ", "the answer is "]
RUNS += r"""\boxed{ \boxed{1} \text{ \( $1$ 9^ 1/ 1,000 [1,2,3,4] (1,2),(3,4) [1,2,3, [{"a": <answer> ```json""".split()
RUNS += ['{"bbox_2d": [1, 2, 3, 4], "label": "x"},', "[1, 2, 3, "]
HUGE = [run * (LONG // len(run)) for run in RUNS]
HUGE += [run * (5 * LONG) for run in "a9("]
HUGE += ["[" + DETECTIONS[1:-1] + ("," + DETECTIONS[1:-1]) * 300 + "]", json.dumps(["alias"] * 3000)]
HUGE += ['[{"a":' * 2000 + "1" + "}]" * 2000, "[" * 2000 + "]" * 2000, "(" * 2000 + "1" + ")" * 2000]
HUGE += [
    r"\frac{1}{" * 400 + "1" + "}" * 400,
    "9^{" * 400 + "9" + "}" * 400,
    "minus" + " " * LONG,
    f"1{' ' * LONG}million",
]


def test_every_method_applies_to_a_reference_here():
    assert [method for method in METHODS if not APPLIED[method]] == []
    assert JUDGED not in METHODS


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(TEXTS)
def test_methods_take_any_text(text):
    check(scores(text, SOME_OF_EACH))


def test_no_answer_changes_whether_a_method_applies():
    for one in SAMPLES:
        applies = {
            score(text, one) is not None
            for text in ("", "Paris", "B", "5", "[1, 2, 3, 4]", DETECTIONS, "None", "x" * 5000)
        }
        assert applies == {one in APPLIED[one.reward_method]}


@pytest.mark.parametrize("number", range(len(HUGE)))
def test_methods_take_huge_texts(number):
    values = scores(HUGE[number], ONE_OF_EACH)
    assert None not in values
    check(values)


@pytest.mark.parametrize("method", METHODS)
def test_a_reference_is_right_as_its_own_answer(method):
    for one in APPLIED[method]:
        if isinstance(one.answers, tuple):
            assert score(one.answers[0], one) == 1.0, one.answers


FUNCTIONS = load_reward_functions(list(REWARDS))


def check_rewards(texts):
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    number = len(completions)
    for function in FUNCTIONS:
        values = function(
            prompts=[""] * number,
            completions=completions,
            completion_ids=[[0] * len(text) for text in texts],
            sample=(ONE_OF_EACH * number)[:number],
            box_scale=[(1.0, 2.0)] * number,
        )
        assert len(values) == number
        check(values, *RANGES.get(function.__name__, (0.0, 1.0)))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.one_of(TEXTS, TEXTS.map(lambda text: f"<think>a</think><answer>{text}</answer>")),
        min_size=1,
        max_size=len(ONE_OF_EACH),
    )
)
def test_rewards_take_any_text(texts):
    check_rewards(texts)


def test_rewards_take_huge_texts():
    check_rewards([f"<think>a</think><answer>{text}</answer>" for text in HUGE])
    check_rewards(HUGE)
