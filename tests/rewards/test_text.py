import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.text import all_match, boxed, cleaned, similarity


def sample(answers):
    row = {"id": "1", "conversations": [{"from": "human", "value": "What?"}], "answers": answers}
    return parse_row(row, image_folder="", reward_method="similarity", source="rows.jsonl:1")


@pytest.mark.parametrize(
    "answer, answers, value",
    [
        ("1997", ["1998"], 6 / 8),  # three of four characters in common, of both texts
        ("The Paris!", ["paris"], 1.0),
        ("abcd", ["xyz"], 0.0),
        ("ab", ["ba"], 2 / 4),
        ("kitten", ["sitting", "mitten"], 10 / 12),  # the best of the two
        ("Roma", ["Rome"], 6 / 8),
        ("", ["Rome"], 0.0),
        ("?!", ["?!"], 0.0),  # nothing is left to compare
        ("Rome " * 1001, ["Rome " * 1001], 0.0),  # too long to be looked at
        ("Rome " * 999, ["Rome " * 999], 1.0),
    ],
)
def test_similarity(answer, answers, value):
    assert similarity(answer, sample(answers)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "answer, right",
    [
        ("left\nbutton  is missing.", 1.0),
        (" LEFT button is missing ", 1.0),
        ("left button is missing .", 1.0),
        ("left button is missing..", 0.0),
        ("left button is missing!", 0.0),
        ("left-button is missing", 0.0),
        ("leftbutton is missing", 0.0),
        ("e\u0301cran noir", 1.0),  # decomposed
        ("ecran noir", 0.0),
        ("", 0.0),
        (".", 0.0),
    ],
)
def test_all_match(answer, right):
    assert all_match(answer, sample(["Left button is missing.", "Écran noir"])) == right


def test_all_match_gives_nothing_for_nothing():
    assert cleaned(" . ") == "" and all_match("", sample(["."])) == 0.0


def test_texts_do_not_apply_to_a_range():
    assert similarity("5", sample({"range": [1, 9]})) is None
    assert all_match("5", sample({"range": [1, 9]})) is None


@pytest.mark.parametrize(
    "text, contents",
    [
        (r"\boxed{ 1 }", ["1"]),
        (r"so \boxed{\frac{1}{2}}, or \fbox {x}.", [r"\frac{1}{2}", "x"]),
        (r"\boxed{a \boxed{b} c} \boxed{d}", ["b", "d"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"} {\boxed{A} {", ["A"]),
        (r"\boxed{A", []),
        (r"\boxed A", []),
        (r"\boxed{}", [""]),
        ("a toolbox{1}", []),
        ("", []),
    ],
)
def test_boxed(text, contents):
    assert boxed(text) == contents
