import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.repetition import repeated_share, repetition_reward


def reward(text, **options):
    (value,) = repetition_reward([None], [[{"role": "assistant", "content": text}]], **options)
    return value


@pytest.mark.parametrize(
    "text, value",
    [
        ("", 0.0),
        ("one two three four five", 0.0),  # fewer words than a run has
        ("a a a a a", 0.0),
        ("a a a a a a", 0.0),  # one run
        ("a a a a a a a", -1 / 2),  # two equal runs
        ("a b c d e f a b c d e f", -1 / 7),  # 7 runs, the last as the first
        ("A b\nc  d\te f a B C D E F", -1 / 7),
        ("the cat sat on the mat and the dog sat on the mat", 0.0),
        ("a " * 105, -99 / 100),
    ],
)
def test_runs_of_six_words(text, value):
    assert reward(text) == pytest.approx(value, abs=1e-12)


def test_runs_of_other_lengths():
    assert reward("a b a b", ngram=1) == -0.5
    assert reward("a b a b", ngram=2) == pytest.approx(-1 / 3)
    assert reward("a b a b", ngram=5) == 0.0
    assert str(reward("a b c", ngram=1)) == "0.0"  # not -0.0


@pytest.mark.parametrize(
    "text",
    [
        "我不知道。" * 20,
        "わからない" * 20,
        "ไม่รู้" * 20,
        "한국어 " * 100,
        "哈" * 100,
        "!" * 1000,
        "0" * 1000,
        "<think>" * 200,
    ],
)
def test_scripts_without_spaces_and_words_without_end_repeat_too(text):
    assert reward(text) < -0.7


def test_plain_text_without_spaces_does_not():
    assert reward("床前明月光疑是地上霜举头望明月低头思故乡") == 0.0  # 20 characters, some of them twice
    assert reward("https://example.org/a/rather/long/address/of/a/page/that/is/one/word") == 0.0


BOXES = [[0, 0, 10, 10], [20, 20, 30, 30], [40, 40, 50, 50], [60, 60, 70, 70]]


def detections(*labels):
    return json.dumps([{"bbox_2d": box, "label": label} for box, label in zip(BOXES, labels, strict=False)])


@pytest.mark.parametrize(
    "labels, value",
    [(["cat"], 0.0), (["cat", "dog"], 0.0), (["cat", "dog", "Cat "], -1 / 3), (["cat"] * 4, -3 / 4)],
)
@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```"])
def test_labels_of_a_list_of_detections(labels, value, fence):
    answer = fence.format(detections(*labels))
    assert reward(f"<think>I look.</think><answer>{answer}</answer>") == pytest.approx(value, abs=1e-12)


def test_a_label_as_often_as_the_row_has_it_repeats_nothing():
    def row(answer):
        turns = [{"from": "human", "value": "Find all."}, {"from": "gpt", "value": answer}]
        return parse_row({"id": "1", "conversations": turns}, image_folder="", reward_method="od_ap", source="r:1")

    def with_row(labels, answer):
        return repetition_reward([None], [f"<answer>{detections(*labels)}</answer>"], sample=[row(answer)])[0]

    three_cats = detections("cat", "CAT", "cat")
    assert with_row(["cat", "Cat ", "cat"], three_cats) == 0.0
    assert with_row(["cat"] * 4, three_cats) == -1 / 4
    assert with_row(["dog"] * 4, three_cats) == -3 / 4
    assert with_row(["cat"] * 2, "None") == -1 / 2
    assert with_row(["cat"] * 2, "a cat") == -1 / 2


def test_text_around_a_list_counts_and_its_json_does_not():
    listed = f"<answer>{detections('cat', 'dog', 'bird', 'fish')}</answer>"
    assert reward(f"<think>{'I look at it. ' * 3}</think>{listed}") == pytest.approx(-2 / 9)  # 14 words outside
    assert reward(f"<think>I look.</think>{listed}") == 0.0
    assert reward(f"<think>a</think>{listed * 100}") < -0.9
    assert reward(f"<think>I look.</think><answer>{detections('cat')} {'and more ' * 100}</answer>") < -0.9
    assert reward(f"<think>a</think><answer>{detections(*'abcd')[:-1]}{', then nothing' * 100}") < -0.8  # cut off
    assert reward(f"<think>{'wait ' * 200}</think><answer>None</answer>") < -0.9  # nothing there: a text


@settings(max_examples=300, deadline=None)
@given(st.text(), st.integers(1, 8))
def test_any_text_is_within_the_range(text, ngram):
    assert -1 < reward(text, ngram=ngram) <= 0 and 0 <= repeated_share(text, ngram) < 1


@pytest.mark.parametrize("piece", ["a ", "[", '{"bbox_2d": [1, 2, 3, 4], "label": "a"}, ', "<answer>", "词", "\ud800"])
def test_huge_completions_take_linear_time(piece):
    assert reward(piece * 100_000) < -0.9
