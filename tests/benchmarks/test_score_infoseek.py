"""`kivqa score infoseek` on nine questions whose scores were counted by hand."""

import hashlib
import json
from pathlib import Path

import pytest
from published_factbook import lines_of
from scoring import (
    ENTITY,
    HARMONIC,
    INFOSEEK,
    MEAN,
    QUESTION,
    infoseek_files,
    infoseek_predictions,
    kivqa_score,
    lines,
    predictions,
    scored,
)


@pytest.fixture
def flags(tmp_path):
    return ["infoseek", *infoseek_files(tmp_path)]


def test_scores_of_splits_and_types(flags, tmp_path, capsys):
    given = infoseek_predictions(tmp_path / "p.jsonl")
    result = scored(capsys, *flags, "--predictions", given)
    scores = result["scores"]
    assert (scores["score"], scores["mean"], scores["count"]) == (HARMONIC, MEAN, 9)
    assert {name: part["score"] for name, part in scores["splits"].items()} == {
        "unseen_question": QUESTION,
        "unseen_entity": ENTITY,
    }
    by_type = {kind: (part["score"], part["count"]) for kind, part in scores["types"].items()}
    assert by_type == {"String": (60.0, 5), "Time": (50.0, 2), "Numerical": (50.0, 2)}
    assert scores["splits"]["unseen_question"]["types"]["String"] == {"score": 66.67, "count": 3}


def test_output_names_rule_judge_files_and_coverage(flags, tmp_path, capsys):
    given = infoseek_predictions(tmp_path / "p.jsonl")
    result = scored(capsys, *flags, "--predictions", given)
    assert result["benchmark"] == "InfoSeek" and "infoseek_eval.py" in result["rule"]
    assert result["judge"] == "none; InfoSeek has no judge" and result["warnings"] == []
    assert {name: [file["path"] for file in files] for name, files in result["files"].items()} == {
        "references": [flags[2]],
        "question_types": [flags[4]],
        "predictions": [given],
    }
    for (file,) in result["files"].values():
        assert file["sha256"] == hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest()
    assert result["coverage"]["questions"] == result["coverage"]["answered"] == 9


def test_table(flags, tmp_path, capsys):
    code, out, err = kivqa_score(capsys, *flags, "--predictions", infoseek_predictions(tmp_path / "p.jsonl"))
    assert code == 0 and err == ""
    rows = [line.split() for line in out.splitlines()]
    assert ["split", "questions", "String", "Time", "Numerical", "all"] in rows
    assert ["unseen_question", "5", "66.67", "0.00", "100.00", "60.00"] in rows
    assert ["unseen_entity", "4", "50.00", "100.00", "0.00", "50.00"] in rows
    assert ["all", "questions", "(mean)", "9", "60.00", "50.00", "50.00", "55.56"] in rows
    assert rows[-1][0] == "Score" and rows[-1][-1] == "54.55"
    assert "coverage: 100.00 %, 9 of 9 questions have a prediction" in out


def test_missing_predictions_are_wrong_and_loudly_so(flags, tmp_path, capsys):
    given = infoseek_predictions(tmp_path / "p.jsonl", without=("q1", "e4"))  # one right, one wrong
    code, out, err = kivqa_score(capsys, *flags, "--predictions", given)
    assert code == 0 and "coverage: 77.78 %, 7 of 9" in out
    assert err.startswith("WARNING: 2 of 9 questions (22.22 %) have no prediction and count as wrong: 'q1', 'e4'.")
    scores = scored(capsys, *flags, "--predictions", given)["scores"]
    assert (scores["splits"]["unseen_question"]["score"], scores["splits"]["unseen_entity"]["score"]) == (40.0, 50.0)
    assert (scores["score"], scores["mean"]) == (44.44, 44.44)  # 2·40·50/90, 4 of 9


def test_official_counting(flags, tmp_path, capsys):
    """As the official code: q1 missing leaves 2 of 4; a repeated right e1 makes 3 of 5; an unknown id is nothing."""
    more = [("e1", "oak"), ("nowhere", "Paris")]
    given = infoseek_predictions(tmp_path / "p.jsonl", without=("q1",), more=more)
    result = scored(capsys, *flags, "--predictions", given, "--official")
    splits = result["scores"]["splits"]
    assert (splits["unseen_question"]["score"], splits["unseen_question"]["count"]) == (50.0, 4)
    assert (splits["unseen_entity"]["score"], splits["unseen_entity"]["count"]) == (60.0, 5)
    assert (result["scores"]["score"], result["scores"]["mean"]) == (54.55, 55.56)  # 2·50·60/110, 5 of 9
    assert "official code" in result["counting"]
    coverage = result["coverage"]
    assert (coverage["missing"], coverage["unknown"], coverage["repeated"]) == (1, 1, 1)
    assert coverage["unknown_examples"] == ["nowhere"] and coverage["repeated_examples"] == ["e1"]
    assert result["warnings"] == [
        "1 of 9 questions (11.11 %) have no prediction and are left out: 'q1'.",
        "Predictions that belong to no question, passed over: 1 ('nowhere').",
        "Further predictions of an id, which count each: 1 ('e1').",
    ]


def test_verdicts_of_each_question(flags, tmp_path, capsys):
    out = tmp_path / "verdicts.jsonl"
    given = infoseek_predictions(tmp_path / "p.jsonl", without=("e3",))
    scored(capsys, *flags, "--predictions", given, "--per_sample", str(out))
    by_hand = [{"data_id": id, "correct": right and id != "e3"} for id, *_, right in INFOSEEK]
    assert lines_of(out) == by_hand and not Path(f"{out}.part").exists()


def test_order_of_predictions_does_not_matter(flags, tmp_path, capsys):
    pairs = [(id, prediction) for id, _, _, _, prediction, _ in INFOSEEK]
    given = predictions(tmp_path / "p.jsonl", reversed(pairs))
    assert scored(capsys, *flags, "--predictions", given)["scores"]["score"] == HARMONIC


def test_types_may_stand_in_the_references(flags, tmp_path, capsys):
    kinds = {id: kind.lower() for id, kind, *_ in INFOSEEK}
    rows = [json.loads(line) for line in Path(flags[2]).read_text().splitlines()]
    together = lines(tmp_path / "both.jsonl", [row | {"question_type": kinds[row["data_id"]]} for row in rows])
    given = infoseek_predictions(tmp_path / "p.jsonl")
    result = scored(capsys, "infoseek", "--references", together, "--predictions", given)
    assert result["scores"]["score"] == HARMONIC and "question_types" not in result["files"]
    code, _, err = kivqa_score(capsys, "infoseek", "--references", flags[2], "--predictions", given)
    assert code == 2 and "'q1'" in err and "--question_types" in err


def test_one_split_alone_has_no_harmonic_mean(flags, tmp_path, capsys):
    half = [json.loads(line) for line in Path(flags[2]).read_text().splitlines()][:5]
    references = lines(tmp_path / "half.jsonl", half)
    given = infoseek_predictions(tmp_path / "p.jsonl", without=("e1", "e2", "e3", "e4"))
    words = ["infoseek", "--references", references, *flags[3:], "--predictions", given]
    scores = scored(capsys, *words)["scores"]
    assert scores["score"] is None and scores["mean"] == QUESTION
    assert kivqa_score(capsys, *words)[1].splitlines()[-1].split()[-1] == "-"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_eval": None}, "`answer_eval` is None"),
        ({"answer_eval": []}, "`answer_eval` is []"),
        ({"answer_eval": [{"wikidata": 1, "range": [1]}]}, "wanted is a list of texts, or a range"),
        ({"answer_eval": [{"wikidata": 1, "range": [1, 2]}]}, "Do references and question types belong together?"),
        ({"data_split": 3}, "`data_split` is 3"),
        ({"data_id": None}, "`data_id` is null"),
        ({"data_id": "q2"}, "data_id 'q2' stands twice among the references, the second time as question 2"),
        ({"data_id": "new"}, "--question_types has no type of it"),
    ],
)
def test_bad_references(flags, tmp_path, capsys, change, message):
    rows = [json.loads(line) for line in Path(flags[2]).read_text().splitlines()]
    rows[0] |= change
    lines(Path(flags[2]), rows)
    ids = [str(row["data_id"]) for row in rows]
    given = predictions(tmp_path / "p.jsonl", [(id, "Spain") for id in dict.fromkeys(ids)])
    code, out, err = kivqa_score(capsys, *flags, "--predictions", given)
    assert code == 2 and out == "" and message in err
    assert err.startswith("kivqa score: ") and err.count("\n") == 1


def test_references_of_another_kind(flags, tmp_path, capsys):
    given = infoseek_predictions(tmp_path / "p.jsonl")
    words = ["infoseek", "--references", flags[4], "--question_types", flags[4], "--predictions", given]
    code, _, err = kivqa_score(capsys, *words)
    assert code == 2 and "`answer_eval` is missing" in err and "data_id, question_type" in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"data_id": "q0", "question_type": "Date"}, "question_type 'Date' is none of String, Time, Numerical"),
        ({"data_id": "q0"}, "wanted is a line with data_id and question_type"),
        ({"data_id": "q2", "question_type": "Time"}, "has a question type in an earlier line"),
    ],
)
def test_bad_question_types(flags, tmp_path, capsys, row, message):
    with open(flags[4], "a") as file:
        file.write(json.dumps(row) + "\n")
    code, _, err = kivqa_score(capsys, *flags, "--predictions", infoseek_predictions(tmp_path / "p.jsonl"))
    assert code == 2 and message in err and f"{flags[4]}:10" in err
