"""ViQuAE's official rules, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.benchmarks.viquae import exact_match, f1, normalise, summarise


@pytest.mark.parametrize(
    "prediction, answers, exact, words",
    [
        ("the Eiffel tower.", ["Paris", "Eiffel Tower"], 1.0, 1.0),
        ("the tall Eiffel Tower", ["Eiffel Tower"], 0.0, 0.8),  # 2 of 3 and of 2
        ("tower tower", ["Eiffel Tower"], 0.0, 0.5),  # a word counts as often as the reference has it
        ("Tower Eiffel", ["Eiffel Tower"], 0.0, 1.0),
        ("Eiffel", ["The Eiffel Tower of Paris", "Eiffel Tower"], 0.0, 2 / 3),  # the best alias
        ("Eiffel-Tower", ["Eiffel Tower"], 0.0, 0.0),
        ("London", ["Paris"], 0.0, 0.0),
        ("", ["The"], 1.0, 0.0),  # nothing is left of either
        ("", ["Paris"], 0.0, 0.0),
        ("Zurich", ["Zürich"], 0.0, 0.0),
        ("Paris", [], 0.0, 0.0),
    ],
)
def test_scores(prediction, answers, exact, words):
    assert exact_match(prediction, answers) == exact
    assert f1(prediction, answers) == pytest.approx(words)


def test_summary():
    assert summarise(iter([(1.0, 1.0), (0.0, 0.5), (0.0, 0.0)])) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": 50.0,
        "count": 3,
    }
    assert summarise([]) == {"exact_match": None, "f1": None, "count": 0}


WORDS = st.text(alphabet="abXé 1.,'", max_size=12)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_in_general(prediction, answers):
    for rule in (exact_match, f1):
        value = rule(prediction, answers)
        assert 0.0 <= value <= 1.0
        assert rule(f" The {prediction.upper()}!", answers) == value
        assert rule(prediction, [*answers, "more"]) >= value
    if normalise(prediction):
        assert exact_match(prediction, answers) <= f1(prediction, answers)
    assert exact_match(answers[0], answers) == 1.0
