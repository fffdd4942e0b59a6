"""Files of predictions: what is refused, and in which words; how predictions and questions are matched."""

import json
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_factbook import lines_of
from scoring import (
    evqa_file,
    evqa_predictions,
    infoseek_files,
    infoseek_predictions,
    kivqa_score,
    lines,
    predictions,
)

from open_r1_kivqa.benchmarks.score_files import Matching, Predictions, Verdicts, csv_row, digests
from open_r1_kivqa.errors import InputError


@pytest.fixture
def flags(tmp_path):
    return ["infoseek", *infoseek_files(tmp_path)]


def refused(capsys, *words: str) -> str:
    """What is said about input that can't be used: one line, exit code 2, nothing on stdout."""
    code, out, err = kivqa_score(capsys, *words)
    assert code == 2 and out == "" and err.startswith("kivqa score: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('[{"data_id": "q1", "prediction": "x"}]', "holds one JSON list"),
        ('{"data_id": "q1", "prediction": "x"}\n{"data_id": "q2", "predic', "p.jsonl:2: the last line is cut off"),
        ('{"data_id": "q1", "predic\n{"data_id": "q2", "prediction": "x"}\n', "p.jsonl:1: not JSON"),
        ('{"data_id": "q1", "answer": "x"}\n', "p.jsonl:1: this line has data_id, answer; a prediction is one line as"),
        ('"q1"\n', "this line has str; a prediction is"),
        ('{"data_id": "q1", "prediction": 3}\n', '`prediction` is 3; write a text, "" where there is no answer'),
        ('{"data_id": "q1", "prediction": null}\n', "`prediction` is null"),
        ('{"data_id": "q1", "prediction": ["x"]}\n', '`prediction` is ["x"]'),
        ('{"data_id": 1.0, "prediction": "x"}\n', "`data_id` is a number (1.0)"),
        ('{"data_id": "", "prediction": "x"}\n', "`data_id` is a text ('')"),
        ("data_id,prediction\nq1,x\n", "p.jsonl:1: not JSON"),
    ],
)
def test_what_is_no_file_of_predictions(flags, tmp_path, capsys, text, message):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    assert message in refused(capsys, *flags, "--predictions", str(path))


def test_no_such_file(flags, tmp_path, capsys):
    assert "nowhere.jsonl does not exist" in refused(capsys, *flags, "--predictions", str(tmp_path / "nowhere.jsonl"))


def test_unknown_ids_are_named(flags, tmp_path, capsys):
    path = infoseek_predictions(tmp_path / "p.jsonl", more=[(f"x{i}", "") for i in range(7)])
    err = refused(capsys, *flags, "--predictions", path)
    assert "7 of 16 predictions belong to no question ('x0', 'x1', 'x2', 'x3', 'x4', …)" in err and "--official" in err


def test_repeated_ids_are_named(flags, tmp_path, capsys):
    path = infoseek_predictions(tmp_path / "p.jsonl", more=[("q2", "Rome"), ("e1", "oak"), ("q2", "")])
    assert "3 of 12 predictions are further ones of an id ('q2', 'e1', 'q2')" in refused(
        capsys, *flags, "--predictions", path
    )


def test_predictions_on_other_questions(flags, tmp_path, capsys):
    path = predictions(tmp_path / "p.jsonl", [("infoseek_val_00000007", "x")])
    err = refused(capsys, *flags, "--predictions", path, "--official")
    assert "no prediction belongs to any of the 9 questions" in err and "'q1'" in err and "infoseek_val_00000007" in err


def test_whole_completions_are_noticed(flags, tmp_path, capsys):
    path = predictions(tmp_path / "p.jsonl", [("q1", "<answer>Spain</answer>"), ("q2", "Paris")])
    _, _, err = kivqa_score(capsys, *flags, "--predictions", path)
    assert "WARNING: Predictions with </answer> or </think> in them: 1. They are whole completions" in err


@pytest.mark.parametrize("name", ["none/out.jsonl", ".", "p.jsonl", "infoseek_val.jsonl", "infoseek_val_qtype.jsonl"])
def test_verdicts_go_to_a_file_of_their_own(flags, tmp_path, capsys, name):
    path = infoseek_predictions(tmp_path / "p.jsonl")
    before = {file: file.read_bytes() for file in tmp_path.glob("*.jsonl")}
    assert "--per_sample" in refused(capsys, *flags, "--predictions", path, "--per_sample", str(tmp_path / name))
    assert {file: file.read_bytes() for file in tmp_path.glob("*.jsonl")} == before


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_verdicts_replace_nothing_that_is_no_file(tmp_path, make):
    path = tmp_path / "out"
    make(path)
    kind = path.stat().st_mode
    with pytest.raises(InputError, match="is no file"):
        Verdicts(str(path))
    assert path.stat().st_mode == kind and list(tmp_path.iterdir()) == [path]


def test_verdicts_of_a_stopped_run_leave_nothing_and_keep_what_was_there(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), Verdicts(str(path)) as file:
        file.write({"data_id": "a", "correct": True})
        raise KeyboardInterrupt
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with Verdicts(str(path)) as file:
        file.write({"data_id": "a", "correct": True})
    assert lines_of(path) == [{"data_id": "a", "correct": True}]


def test_digests_tell_ids_apart():
    ids = ["", "a", "b", "ä", "a\0", *map(str, range(2000))]
    found = digests(ids)
    assert found.itemsize == 16 and len(set(found.tolist())) == len(ids)
    assert (digests(ids) == found).all()


def test_numbers_of_csv_rows():
    assert [csv_row(id) for id in ("0", "007", " 12 ")] == ["0", "7", "12"]
    for id in ("-1", "1.0", "test-3", "", "²", "१"):
        with pytest.raises(ValueError):
            csv_row(id)


IDS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(references=IDS, given_ids=IDS)
def test_matching_against_plain_counting(tmp_path_factory, references, given_ids):
    """Several questions with an id take that many predictions of it; the others are left over."""
    path = tmp_path_factory.mktemp("p") / "p.jsonl"
    found = Predictions(predictions(path, [(id, f"{id}{i}") for i, id in enumerate(given_ids)]))
    wanted, have = Counter(references), Counter(given_ids)
    if have.total() == len(have):  # one prediction a question
        wanted = Counter(set(references))
    is_clean = all(have[id] <= wanted[id] for id in have)
    if not is_clean or not wanted & have:
        with pytest.raises(InputError):
            Matching(found, lambda: references, official=False, several=True)
    else:
        matching = Matching(found, lambda: references, official=False, several=True)
        texts = [matching.of(i) for i in range(len(references))]
        assert sum(map(len, texts)) == wanted.total() == matching.coverage()["questions"]
        assert all(text is None or text[0] == id for id, one in zip(references, texts, strict=True) for text in one)
        assert Counter(text for one in texts for text in one if text) == Counter(
            f"{id}{i}" for i, id in enumerate(given_ids)
        )
        assert matching.coverage()["missing"] == (wanted - have).total()
    if wanted & have:
        matching = Matching(found, lambda: references, official=True, several=True)
        counted = Counter(text for i in range(len(references)) for text in matching.of(i))
        assert counted == Counter(f"{id}{i}" for i, id in enumerate(given_ids) if id in wanted)
        coverage = matching.coverage()
        assert coverage["unknown"] == sum(id not in wanted for id in given_ids)
        assert coverage["repeated"] == sum(max(0, have[id] - wanted[id]) for id in wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(",", ";"), "separated by semicolons"),
        (lambda text: text.replace(",", "\t"), "separated by tabs"),
        (lambda text: text.replace("question_type", "kind"), "it has no column question_type"),
        (lambda text: text.replace("2_hop", "3_hop"), "`question_type` is '3_hop'"),
        (lambda text: text[: text.rindex("2_hop")], "fields and the header 14"),
        (lambda text: text.replace(",Paris,", ",the,"), "is empty, or nothing is left of it"),
        (lambda text: "", "is empty"),
    ],
)
def test_bad_csv(tmp_path, capsys, change, message):
    path = tmp_path / "test.csv"
    evqa_file(path)
    path.write_text(change(path.read_text()))
    words = ["evqa", "--references", str(path), "--predictions", evqa_predictions(tmp_path / "p.jsonl")]
    err = refused(capsys, *words)
    assert message in err and str(path) in err


@pytest.mark.parametrize("id", ["test-0", "-1", "1.5"])
def test_ids_that_are_no_csv_rows(tmp_path, capsys, id):
    given = predictions(tmp_path / "p.jsonl", [(id, "x")])
    err = refused(capsys, "evqa", "--references", evqa_file(tmp_path / "test.csv"), "--predictions", given)
    assert f"p.jsonl:1: data_id {id!r} is no row of the csv; wanted is its number, from 0" in err


def test_a_row_beyond_the_csv_is_unknown(tmp_path, capsys):
    given = predictions(tmp_path / "p.jsonl", [(7, "x"), (0, "paris")])
    err = refused(capsys, "evqa", "--references", evqa_file(tmp_path / "test.csv"), "--predictions", given)
    assert "1 of 2 predictions belong to no question ('7')" in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "input": "Q?"}, "this line has id, input; wanted is a line of ViQuAE's files"),
        ({"id": "a", "input": "Q?", "output": {"answer": []}}, "`output` is"),
        ({"id": "a", "input": "Q?", "output": {"answer": [3]}}, "`output` is"),
        ({"id": "a", "input": " ", "output": {"answer": ["x"]}}, "`input` is ' '"),
        ({"id": None, "input": "Q?", "output": {"answer": ["x"]}}, "`id` is null"),
    ],
)
def test_bad_viquae(tmp_path, capsys, row, message):
    references = lines(tmp_path / "test.jsonl", [row])
    given = predictions(tmp_path / "p.jsonl", [("a", "x")])
    err = refused(capsys, "viquae", "--references", references, "--predictions", given)
    assert message in err and f"{references}:1" in err


def test_truncated_references(flags, tmp_path, capsys):
    text = (tmp_path / "infoseek_val.jsonl").read_text()
    (tmp_path / "infoseek_val.jsonl").write_text(text[:-30])
    err = refused(capsys, *flags, "--predictions", infoseek_predictions(tmp_path / "p.jsonl"))
    assert "infoseek_val.jsonl:9: not JSON" in err


def test_json_is_all_that_stdout_holds(flags, tmp_path, capsys):
    path = infoseek_predictions(tmp_path / "p.jsonl", without=("q1",))
    code, out, err = kivqa_score(capsys, *flags, "--predictions", path, "--json")
    assert code == 0 and out.count("\n") == 1 and json.loads(out)["warnings"] and "WARNING" in err
