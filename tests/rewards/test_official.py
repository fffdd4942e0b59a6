"""The official verdict on rows, and the guards before it: where the two differ, by hand."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from check_rows import row, write
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from open_r1_kivqa import cli
from open_r1_kivqa.data.row_checks import answer_problem
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.methods import METHODS, score
from open_r1_kivqa.rewards.official import OFFICIAL, as_answer


def sample(answers=None, method="infoseek", question_type="", own=None):
    turns = [{"from": "human", "value": "What?"}] + ([{"from": "gpt", "value": own}] if own else [])
    one = {"id": "1", "conversations": turns, "answers": answers, "question_type": question_type}
    return parse_row(one, image_folder="", reward_method=method, source="rows.jsonl:1")


def verdicts(answer, one):
    """The official one and the one behind the guards."""
    return OFFICIAL[one.reward_method](answer, one), score(answer, one)


@pytest.mark.parametrize(
    "answer, limits, own, official, guarded",
    [
        ("330 m", [320, 340], "330", 1.0, 1.0),
        ("341", [320, 340], "330", 0.0, 0.0),
        # no number: the official code reads 0 to 0
        ("unknown", [-1, 1], "0", 1.0, 0.0),
        ("", [-1, 1], "0", 1.0, 0.0),
        ("½", [0, 1], "0.5", 1.0, 0.0),
        ("0", [-1, 1], "0", 1.0, 1.0),
        # a range, where the row gives one number
        ("320-340", [320, 340], "330", 1.0, 0.0),
        ("310-350", [320, 340], "330 m", 1.0, 0.0),
        ("In 1990, 3000", [2000, 3000], "2500", 1.0, 0.0),
        ("900-1100", [900, 1100], "1,000 (2011 census)", 1.0, 0.0),  # two numbers, but one is outside: no range
        ("5-6", [5, 6], "<think>From 5 to 6.</think><answer>5.5</answer>", 1.0, 0.0),
        ("5-6", [5, 6], None, 1.0, 0.0),
        ("3 m3", [2.7, 3.3], "3 m3", 1.0, 1.0),  # 3 to 3 is one number
        ("20 10", [18, 22], "20", 1.0, 1.0),  # descending: the first alone counts
        # a range, where the row gives one
        ("10 to 12", [10, 12], "10–12 years", 1.0, 1.0),
        ("9.5-13", [10, 12], "from 10 to 12", 1.0, 1.0),  # 2 of 3.5
        ("9-13", [10, 12], "10-12", 1.0, 1.0),  # 2 of 4
        ("9-14", [10, 12], "10-12", 0.0, 0.0),
        # alternatives
        ("20 or 10", [18, 22], "20", 1.0, 0.0),
        ("20/10", [18, 22], "20", 1.0, 0.0),
        ("20; 10", [18, 22], "20", 1.0, 0.0),
        ("20 | 10", [18, 22], "20", 1.0, 0.0),
        ("20 or 10", [18, 22], "20 or 21", 1.0, 1.0),
        ("20 or 10", [18, 22], "<think>19 or 21?</think><answer>20</answer>", 1.0, 0.0),
        ("20 km/h", [18, 22], "20", 1.0, 1.0),  # a unit
        # words
        ("about " * 31 + "20", [18, 22], "20", 1.0, 1.0),
        ("about " * 32 + "20", [18, 22], "20", 1.0, 0.0),
    ],
)
def test_numbers(answer, limits, own, official, guarded):
    assert verdicts(answer, sample({"range": limits}, own=own)) == (official, guarded)


@pytest.mark.parametrize("method", ["infoseek", "viquae", "evqa"])
@pytest.mark.parametrize(
    "answer, answers, official, guarded",
    [
        ("The Eiffel Tower.", ["Paris", "Eiffel tower"], 1.0, 1.0),
        ("Eiffel", ["Eiffel tower"], 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0),
        ("Paris/", ["Paris"], 1.0, 0.0),
        ("Paris;", ["Paris"], 1.0, 0.0),
        ("ac/dc", ["AC/DC"], 1.0, 1.0),
        ("trick or treat", ["Trick or Treat"], 1.0, 1.0),
        ("1000", ["1,000"], 1.0, 1.0),
        ("a " * 32 + "Paris", ["Paris"], 1.0, 0.0),
        ("a " * 31 + "Paris", ["Paris"], 1.0, 1.0),
        ("b " * 40, ["b " * 40], 1.0, 1.0),  # as long as the reference
        ("Paris" + "!" * 2000, ["Paris"], 1.0, 0.0),
    ],
)
def test_texts(method, answer, answers, official, guarded):
    assert verdicts(answer, sample(answers, method)) == (official, guarded)


@pytest.mark.parametrize(
    "answer, answers, official, guarded",
    [
        ("red, blue", ["red&&blue"], 1.0, 1.0),
        ("red, blue and green", ["red&&blue"], 1.0, 1.0),  # one item too many
        ("red, blue, green, black", ["red&&blue"], 1.0, 0.0),  # two, and still 2 of 4
        ("red, red, red, red", ["red&&blue"], 1.0, 0.0),  # repeated ones are items too
        ("red, blue, green, black", ["red&&blue", "w&&x&&y&&z"], 1.0, 0.0),  # each reference has its own measure
        ("red", ["red&&blue"], 1.0, 1.0),
        ("red, blue; ", ["red&&blue"], 1.0, 0.0),
        ("red", ["a&&the", "red"], 1.0, 1.0),
    ],
)
def test_lists(answer, answers, official, guarded):
    assert verdicts(answer, sample(answers, "evqa", "multi_answer")) == (official, guarded)


def test_a_long_list_may_be_answered():
    names = [f"x{i}" for i in range(30)]
    one = sample(["&&".join(names)], "evqa", "multi_answer")
    assert verdicts(", ".join(names), one) == verdicts(" and ".join(names), one) == (1.0, 1.0)


def test_references_of_which_nothing_is_left():
    assert verdicts("the", sample(["A"], "infoseek")) == (1.0, 0.0)
    assert verdicts("the", sample(["A"], "viquae")) == (1.0, 0.0)
    assert verdicts("the", sample(["A"], "evqa")) == (None, None)  # the official code refuses it
    assert verdicts("Paris", sample(["The", "Paris"], "evqa")) == (1.0, 1.0)
    assert verdicts("a", sample(["&&"], "evqa", "multi_answer")) == (None, None)


@pytest.mark.parametrize("method", OFFICIAL)
def test_where_a_rule_does_not_apply(method):
    assert verdicts("Paris", sample(None, method)) == (None, None)
    applies = verdicts("1", sample({"range": [0, 1]}, method))
    assert applies == ((1.0, 1.0) if method == "infoseek" else (None, None))
    assert answer_problem(sample(None, method))[0] == "answer_missing"
    assert (answer_problem(sample({"range": [0, 1]}, method)) is None) is (method == "infoseek")
    assert answer_problem(sample(["A"], method))[0] == "answer_unscorable"
    assert answer_problem(sample(["A", "Paris"], method)) is None


def test_a_list_is_checked_as_an_answer_writes_it():
    one = sample(["red&&blue&&green", "x"], "evqa", "multi_answer")
    assert as_answer("red&&blue&&green", one) == "red, blue, green"
    assert answer_problem(sample(["red&&blue&&green"], "evqa", "multi_answer")) is None
    assert as_answer("red&&blue", sample(["red&&blue"], "evqa")) == "red&&blue"


@pytest.mark.parametrize("method", OFFICIAL)
def test_the_factbooks_rows(method):
    for name in ("train", "eval"):
        lines = (files("open_r1_kivqa") / f"demo/data/{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines[::20]]
        assert len(rows) > 5
        for one in rows:
            one = parse_row(one, image_folder="images", reward_method=method, source=name)
            assert verdicts(one.answers[0], one) == (1.0, 1.0)
            assert verdicts("no such thing", one) == (0.0, 0.0)
            assert answer_problem(one) is None


@pytest.mark.parametrize("method", OFFICIAL)
def test_kivqa_check_takes_the_methods(method, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    Image.effect_noise((56, 56), 80).convert("RGB").save(tmp_path / "good.png")
    flags = ["--image_folders", str(tmp_path), "--reward_method", method]
    path = write(tmp_path / "a.jsonl", [row("1", answers=["Paris"])])
    assert cli.main(["check", "--data_file_paths", path, *flags]) == 0
    path = write(tmp_path / "b.jsonl", [row("1", answers=["The"])])
    assert cli.main(["check", "--data_file_paths", path, *flags]) == 1
    assert "answer_unscorable: 1" in capsys.readouterr().out


ROWS = [sample(["Paris", "the City of Light"], method) for method in OFFICIAL]
ROWS += [sample({"range": limits}, own=own) for limits in ([0, 1], [-5, 40], [10, 12]) for own in ("10-12", "5", None)]
ROWS += [sample(["red&&blue", "5"], "evqa", "multi_answer"), sample(["A or b"], "infoseek"), sample(["the"], "viquae")]
PIECES = [
    "Paris",
    "the ",
    "City of Light",
    "red",
    "blue",
    ", ",
    " and ",
    " or ",
    "/",
    "|",
    ";",
    ".",
    "-",
    "5",
    "1",
    "2",
]
PIECES += ["10", "12", "0.5", "e3", " to ", "unknown", "½", "٣", "\ud800", "<extra_id_0> ", "&&", "\n"]
ANSWERS = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(ANSWERS)
def test_the_guards_only_take_away(answer):
    for one in ROWS:
        official, guarded = verdicts(answer, one)
        assert official in (0.0, 1.0) and guarded in (0.0, 1.0) and guarded <= official


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(ANSWERS, st.lists(ANSWERS.filter(str.strip), min_size=1, max_size=3))
def test_more_references_never_cost_a_verdict(answer, answers):
    for method in OFFICIAL:
        for kind in ("", "multi_answer"):
            fewer, more = (sample(texts, method, kind) for texts in (answers, [*answers, "A or b | c"]))
            for before, after in zip(verdicts(answer, fewer), verdicts(answer, more), strict=True):
                assert before is None or before <= after


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.text(alphabet="bcXé19 .;|/", min_size=1, max_size=30))
def test_a_reference_is_right_as_its_own_answer(text):
    for method in OFFICIAL:
        if text.strip() and any(char.isalnum() for char in text):
            assert verdicts(text, sample([text], method)) == (1.0, 1.0)
            assert verdicts(f" The {text.upper()}!", sample([text], method)) == (1.0, 1.0)


def test_the_guards_of_the_page():
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text(encoding="utf-8")
    table = page.partition("| guard |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 9
    for line in table:
        cells = [cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        method, answers, own, answer, official, guarded = cells[1:]
        kind = "multi_answer" if "&&" in answers else ""
        one = sample(json.loads(answers), method, kind, own)
        assert verdicts(answer, one) == (float(official), float(guarded)), line


def test_the_methods_are_those_with_an_official_verdict():
    assert all(METHODS[name].__name__ == name for name in OFFICIAL)


LONG = 100_000
RUNS = ["1", "1-", "-", "1,", "1,111", "1.", "1e", "1e-", "+.5.3", "²-", "the ", "the answer is ", "answer is ", "a, "]
RUNS += [
    " and ",
    " & ",
    ",",
    "|",
    "&&",
    "or ",
    "/",
    "<extra_id_0> ",
    "dont ",
    "½",
    "ﷺ",
    "\ud800",
    "km²",
    "(",
    "e\u0301",
]
HUGE = [run * (LONG // len(run)) for run in RUNS]
HUGE += [
    "0." + "123456789" * (LONG // 9),
    "1e" + "9" * LONG,
    "0." + "0" * LONG + "1",
    "2.2250738585072011" + "0" * LONG,
]


@pytest.mark.parametrize("number", range(len(HUGE)))
def test_huge_answers(number):
    for one in ROWS:
        official, guarded = verdicts(HUGE[number], one)
        assert guarded == 0.0 and official in (0.0, 1.0)
