"""InfoSeek's official rules: every verdict in the tables was worked out by hand from the official code's steps."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.benchmarks.infoseek import (
    bounds,
    harmonic_mean,
    normalise,
    numbers,
    score,
    split_of,
    summarise,
)
from open_r1_kivqa.errors import InputError


@pytest.mark.parametrize(
    "text, form",
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("Eiffel-Tower", "eiffeltower"),  # punctuation is deleted, not made a space
        ("A.N. Other", "other"),  # punctuation goes first: "an"
        ("Theatre of the Absurd", "theatre of absurd"),
        ("New\u00a0York\n City", "new york city"),
        ("St. John’s", "st john’s"),  # ASCII punctuation only
        ("Zürich", "zürich"),
        ("U.S.", "us"),
        ("a_b", "ab"),
        ("the", ""),
        ("…", "…"),
        ("", ""),
    ],
)
def test_normalise(text, form):
    assert normalise(text) == form


@pytest.mark.parametrize(
    "prediction, aliases, right",
    [
        ("eiffel tower", ["Paris", "The Eiffel Tower"], True),
        ("Eiffel Tower, Paris", ["Eiffel Tower"], False),  # no part of an answer counts
        ("1990", ["1 May 1990", "1990"], True),
        ("May 1, 1990", ["1 May 1990"], False),
        ("Zurich", ["Zürich"], False),
        ("Paris or London", ["Paris"], False),
        ("", ["Paris"], False),
        ("", ["The"], True),  # nothing is left of either
        ("a", ["…"], False),
    ],
)
def test_texts(prediction, aliases, right):
    assert score(prediction, aliases, "String") is score(prediction, aliases, "time") is right


@pytest.mark.parametrize(
    "text, values",
    [
        ("", []),
        ("unknown", []),
        ("½", []),  # no decimal digit
        ("1,000 m", [1000]),
        ("1,0000", [10000]),  # three digits behind a comma, then whatever follows
        ("12,34,567", [12, 34567]),
        ("1,00", [1, 0]),
        ("1990,3000", [19903000]),
        ("In 1990, 3000", [1990, 3000]),
        ("1e3 1E+3 1e-3 2.5e-1", [1000, 1000, 0.001, 0.25]),
        ("1e", [1]),
        ("1.e3", [1000]),
        ("-5", [-5]),
        ("+5", [5]),
        ("5-7", [5, 7]),  # after a digit a hyphen parts
        ("5 -7", [5, -7]),
        ("5--7", [5, -7]),
        ("-5--7", [-5, -7]),
        ("10²-20", [10, 20]),  # ² counts as a digit before a hyphen, though it is none of a number
        ("x-20", [-20]),
        ("5–7", [5, 7]),
        ("\u22125", [5]),  # the minus sign of typography is not read
        ("٣٤", [34]),
        ("５.５", [5.5]),
        (".5", [5]),  # points at both ends go
        ("0.5 -.5 5.", [0.5, -0.5, 5]),
        ("1.5.3", [1.5, 3]),
        ("1.000.000", [1, 0]),
        ("-.5.3", []),  # the official code stops here
        ("-.5.3 7", [7]),
        ("5 km2", [5, 2]),
        ("1e999", [math.inf]),
        ("1/2", [1, 2]),
    ],
)
def test_numbers(text, values):
    assert numbers(text) == values


@pytest.mark.parametrize(
    "prediction, reference, right",
    [
        # one number: inside, ends included
        ("about 1.0 m", [0.9, 1.1], True),
        ("0.9", [0.9, 1.1], True),
        ("1.1", [0.9, 1.1], True),
        ("1.1000001", [0.9, 1.1], False),
        ("1,000", [900, 1100], True),
        ("1e3", [900, 1100], True),
        ("-5", [-6, -4], True),
        ("\u22125", [-6, -4], False),
        ("5", [5, 5], True),
        (".5", [0.4, 0.6], False),
        (".5", [4, 6], True),
        ("1e999", [0, 1e308], False),
        # none: 0 to 0
        ("unknown", [-1, 1], True),
        ("", [0, 100], True),
        ("unknown", [1, 2], False),
        ("-.5.3", [0, 1], True),
        # two ascending: both inside, or half of the union shared
        ("10-12", [9, 13], True),
        ("10 to 20", [18, 22], False),  # 2 of 12
        ("10-30", [10, 20], True),  # 10 of 20: a range twice as wide
        ("10-31", [10, 20], False),  # 10 of 21
        ("5-20", [10, 20], True),  # 10 of 15
        ("0-40", [10, 20], False),
        ("10 20 500", [10, 20], True),  # the third doesn't count
        ("In 1990, 3000", [2000, 3000], True),  # 1000 of 1010
        ("In 1990, 3000", [1990, 1990], False),
        ("5 5", [5, 5], True),
        ("4 6", [5, 5], False),
        ("4 6", [4.999999, 5.000001], False),
        ("3 m3", [2.7, 3.3], True),
        ("1 km2", [0.9, 1.1], False),  # reads as 1 to 2: 0.1 of 1.1
        ("10²-20", [10, 20], True),
        ("0 1e999", [0, 1], False),
        ("1e999 1e999", [0, 1], False),
        # two descending: the first
        ("20 10", [18, 22], True),
        ("10-5", [9, 11], True),
        ("5--7", [4, 6], True),
        ("1.000.000", [1, 1], True),
        # one number as reference: 10 % around it
        ("90", 100, True),
        ("110", 100.0, True),
        ("89.9", 100, False),
        ("0", 0, True),
        ("unknown", 0, True),
        ("0.1", 0, False),
        ("-10", -10, False),  # from -9 to -11 there is no number
        ("-11 -9", -10, True),  # though that range is the reference
    ],
)
def test_numerical(prediction, reference, right):
    assert score(prediction, reference, "Numerical") is right
    if isinstance(reference, list):
        whole = {"wikidata": 1.0, "range": reference}
        assert score(prediction, [whole], "Numerical") is score(prediction, whole, "numerical") is right


def test_forms_of_a_numerical_reference():
    assert bounds([{"wikidata": 1.0, "range": [0.9, 1.1]}]) == (0.9, 1.1)
    assert bounds([{"range": [0.9, 1.1]}, {"range": [5, 6]}]) == (0.9, 1.1)
    assert bounds({"range": ["0.9", "1.1"]}) == (0.9, 1.1)  # the official code turns them into texts and back
    assert bounds((2, 3)) == (2, 3)
    assert bounds(10) == bounds("10") == bounds([10.0]) == (9, 11)


@pytest.mark.parametrize(
    "reference, kind",
    [
        *[
            (reference, "Numerical")
            for reference in (
                [],
                {},
                {"range": [1]},
                {"range": "ab"},
                "x",
                math.nan,
                [0, math.inf],
                None,
                [1, 2, 3],
                [{"wikidata": 1}],
            )
        ],
        *[(reference, "Time") for reference in ([], "1990", [1990], {"range": [1, 2]}, None)],
        (["Paris"], "Sting"),
        (["Paris"], ""),
    ],
)
def test_a_reference_that_is_none(reference, kind):
    with pytest.raises(InputError, match="reference|Unknown InfoSeek question type"):
        score("1", reference, kind)


def test_splits():
    names = ["val_unseen_question", "unseen_question", "val_unseen_entity", "val", "unseen_question_x", ""]
    assert [split_of(name) for name in names] == ["unseen_question"] * 2 + ["unseen_entity"] * 4


def test_summary():
    rows = [("val_unseen_question", "String", True), ("val_unseen_question", "string", False)]
    rows += [("val_unseen_question", "Time", True), ("val_unseen_question", "Numerical", True)]
    rows += [("val_unseen_entity", "String", True)] + [("val_unseen_entity", "String", False)] * 3
    assert summarise(iter(rows)) == {
        "score": 37.5,  # 2 / (1/75 + 1/25)
        "mean": 50.0,
        "count": 8,
        "splits": {
            "unseen_question": {
                "score": 75.0,
                "count": 4,
                "types": {
                    "String": {"score": 50.0, "count": 2},
                    "Time": {"score": 100.0, "count": 1},
                    "Numerical": {"score": 100.0, "count": 1},
                },
            },
            "unseen_entity": {
                "score": 25.0,
                "count": 4,
                "types": {
                    "String": {"score": 25.0, "count": 4},
                    "Time": {"score": None, "count": 0},
                    "Numerical": {"score": None, "count": 0},
                },
            },
        },
        "types": {
            "String": {"score": 33.33, "count": 6},
            "Time": {"score": 100.0, "count": 1},
            "Numerical": {"score": 100.0, "count": 1},
        },
    }


def test_harmonic_mean():
    assert harmonic_mean([33.33, 66.67]) == 44.44
    assert harmonic_mean([0.0, 50.0]) == harmonic_mean([0.0, 0.0]) == 0.0
    assert harmonic_mean([50.0, None]) is None
    assert summarise([("val_unseen_entity", "String", True)])["score"] is None
    empty = summarise([])
    assert empty["score"] is None and empty["mean"] is None and empty["count"] == 0
    with pytest.raises(InputError, match="question type 'Date'"):
        summarise([("val_unseen_entity", "Date", True)])


WORDS = st.text(alphabet="abcXYZ019 .,'-é", max_size=12)
NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_texts_in_general(prediction, aliases):
    right = score(prediction, aliases, "String")
    for same in (prediction.upper(), f"  the {prediction}!", prediction.replace(",", "").replace(".", "")):
        assert score(same, aliases, "String") is right
    assert right <= score(prediction, [*aliases, "more"], "String")
    assert all(score(alias, aliases, "String") for alias in aliases)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_numbers_in_general(low, high, value):
    low, high = min(low, high), max(low, high)
    assert score(repr(value), [low, high], "Numerical") is (low <= value <= high)
    assert score(f"{low!r} to {high!r}", [low, high], "Numerical")
    assert score(f"{value:+,.3f} metres", [low, high], "Numerical") is (low <= value <= high)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.text(), st.text(alphabet="0123456789.,-+eE ²٣", max_size=20))
def test_no_prediction_raises(text, digits):
    for prediction in (text, digits):
        assert all(value == value for value in numbers(prediction))
        assert score(prediction, {"range": [0, 1]}, "Numerical") in (True, False)
        assert score(prediction, ["Paris"], "String") in (True, False)
