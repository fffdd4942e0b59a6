"""`kivqa score rows`: rows of ours, each by its own method. What is right is known from how the predictions were made, and counted again here."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from judge_server import serving
from published_factbook import lines_of
from pytest import approx
from scoring import kivqa_score, lines, predictions, scored

from open_r1_kivqa.demo import EVAL


def row(id, answers, split="", kind="", method=None, question="Where is it?", **more):
    one = {"id": id, "conversations": [{"from": "human", "value": question}], "answers": answers}
    one |= {"split": split, "question_type": kind} | ({"accu_reward_method": method} if method else {}) | more
    return one


def test_the_embedded_questions(tmp_path, capsys):
    """Every third row is answered wrongly, the others with their first accepted answer."""
    rows = [json.loads(line) for line in Path(EVAL).read_text(encoding="utf-8").splitlines()]
    right = {one["id"]: i % 3 != 0 for i, one in enumerate(rows)}
    given = [(one["id"], one["answers"][0] if right[one["id"]] else "nothing of that") for one in rows]
    words = ["rows", "--references", str(EVAL), "--predictions", predictions(tmp_path / "p.jsonl", given)]
    scores = scored(capsys, *words)["scores"]
    by_split = defaultdict(lambda: defaultdict(list))
    for one in rows:
        by_split[one["split"]][one["question_type"]].append(right[one["id"]])
    assert set(scores["splits"]) == {*by_split, "all rows"}
    means, macros = {}, {}
    for split, kinds in by_split.items():
        every = [value for values in kinds.values() for value in values]
        means[split] = 100 * sum(every) / len(every)
        macros[split] = 100 * sum(sum(values) / len(values) for values in kinds.values()) / len(kinds)
        part = scores["splits"][split]
        assert (part["mean"], part["macro"], part["count"]) == (
            approx(means[split], abs=0.005),
            approx(macros[split], abs=0.005),
            len(every),
        )
        assert {kind: one["count"] for kind, one in part["types"].items()} == {k: len(v) for k, v in kinds.items()}
    assert scores["splits"]["all rows"]["mean"] == approx(100 * sum(right.values()) / len(rows), abs=0.005)
    for kind, of in (("mean", means), ("macro", macros)):
        q, e = of["unseen_question"], of["unseen_entity"]
        assert scores["harmonic"][""][kind] == approx(2 * q * e / (q + e), abs=0.02)
    _, out, _ = kivqa_score(capsys, *words)
    assert f"coverage: 100.00 %, {len(rows):,} of {len(rows):,} questions" in out and f"default, {len(rows)}" in out
    assert "harmonic mean of unseen_question and unseen_entity" in out and "judge: none; no row's method has one" in out


def test_each_row_by_its_own_method(tmp_path, capsys):
    """The official verdict where a method is a benchmark's: no number is right where the range holds 0, which training's own method refuses."""
    rows = [
        row("1", {"range": [-1, 1]}, "val_unseen_question", "Numerical", "infoseek", data_id="q1"),
        row("2", ["Paris"], "val_unseen_entity", "String", "infoseek", data_id="q2"),
        row("3", ["mice&&birds&&eggs"], "test", "multi_answer", "evqa", data_id=0),
        row("4", ["Levi's", "Levis"], "test", "", "viquae"),
        row("5", ["colour"], "test", "", "similarity"),
        row("6", ["a"], "test"),
    ]
    given = [
        ("q1", "unknown"),
        ("q2", "the Paris"),
        ("0", "birds and mice"),
        ("4", "Levis"),
        ("5", "color"),
        ("6", "b"),
    ]
    out = tmp_path / "verdicts.jsonl"
    words = ["rows", "--references", lines(tmp_path / "r.jsonl", rows), "--reward_method", "exact"]
    words += ["--predictions", predictions(tmp_path / "p.jsonl", given), "--per_sample", str(out)]
    result = scored(capsys, *words)
    similar = 2 * 5 / 11  # of c-o-l-o-r and c-o-l-o-u-r
    assert [one["data_id"] for one in lines_of(out)] == ["q1", "q2", "0", "4", "5", "6"]
    assert [one["correct"] for one in lines_of(out)] == [1.0, 1.0, 1.0, 1.0, approx(similar), 0.0]
    assert result["rule"] == (
        "each row by its own method: evqa (official verdict), 1; exact, 1; infoseek (official verdict), 2; similarity, 1; viquae (official verdict), 1"
    )
    assert result["judge"].startswith("exact match only")
    assert result["scores"]["harmonic"] == {"val_": {"mean": 100.0, "macro": 100.0}}
    test = result["scores"]["splits"]["test"]
    assert test["mean"] == approx(100 * (2 + similar) / 4, abs=0.005)
    assert test["macro"] == approx(
        100 * (1 + (1 + similar) / 3) / 2, abs=0.005
    )  # multi_answer, and rows without a type


def test_several_files_with_a_method_each(tmp_path, capsys):
    references = ":".join(
        lines(tmp_path / f"{name}.jsonl", [row(name, [answer])]) for name, answer in (("a", "1,000"), ("b", "1,000"))
    )
    given = predictions(tmp_path / "p.jsonl", [("a", "1000 m"), ("b", "1000 m")])
    words = ["rows", "--references", references, "--reward_method", "numeric:exact", "--predictions", given]
    result = scored(capsys, *words)
    assert result["scores"]["splits"]["all"]["mean"] == 50.0
    assert [file["path"] for file in result["files"]["references"]] == references.split(":")


def test_several_images_of_one_question_take_several_predictions(tmp_path, capsys):
    rows = [row(f"test-4{more}", ["Paris"], method="evqa", data_id=4) for more in ("", "-2", "-3")]
    references = lines(tmp_path / "r.jsonl", rows)
    words = ["rows", "--references", references, "--predictions"]
    result = scored(capsys, *words, predictions(tmp_path / "p.jsonl", [(4, "Paris"), (4, "Rome"), (4, "paris")]))
    assert result["scores"]["splits"]["all"]["mean"] == approx(66.67)
    result = scored(capsys, *words, predictions(tmp_path / "p2.jsonl", [(4, "Paris"), (4, "Rome")]))
    assert result["scores"]["splits"]["all"]["mean"] == approx(33.33) and result["coverage"]["missing"] == 1
    result = scored(capsys, *words, predictions(tmp_path / "p1.jsonl", [(4, "Paris")]))  # one for the question
    assert result["scores"]["splits"]["all"]["mean"] == 100.0 and result["coverage"]["questions"] == 1
    code, _, err = kivqa_score(capsys, *words, predictions(tmp_path / "p3.jsonl", [(4, "Paris")] * 4))
    assert code == 2 and "1 of 4 predictions are further ones of an id ('4')" in err


def test_one_id_for_two_questions_is_refused(tmp_path, capsys):
    rows = [row("a", ["Paris"], data_id=4), row("b", ["Rome"], data_id=4)]
    words = ["rows", "--references", lines(tmp_path / "r.jsonl", rows)]
    code, _, err = kivqa_score(capsys, *words, "--predictions", predictions(tmp_path / "p.jsonl", [(4, "x"), (4, "y")]))
    assert code == 2 and "r.jsonl:1 and" in err and "have the same data_id '4' but not the same question" in err


def test_rows_that_no_rule_applies_to_do_not_count(tmp_path, capsys):
    rows = [row("a", {"range": [1, 2]}, method="viquae"), row("b", {"range": [1, 2]}, method="viquae"), row("c", ["x"])]
    given = predictions(tmp_path / "p.jsonl", [("a", "1"), ("c", "x")])  # b is missing, and counts for nothing either
    result = scored(capsys, "rows", "--references", lines(tmp_path / "r.jsonl", rows), "--predictions", given)
    assert result["scores"]["without_verdict"] == 2
    assert (result["scores"]["splits"]["all"]["mean"], result["scores"]["splits"]["all"]["count"]) == (100.0, 1)
    assert any("2 rows have no reference that their method reads" in warning for warning in result["warnings"])

    # Where no row has a verdict there is no question type to show a table of.
    unanswered = {"id": "d", "conversations": [{"from": "human", "value": "Where?"}], "accu_reward_method": "infoseek"}
    words = ["rows", "--references", lines(tmp_path / "none.jsonl", [unanswered])]
    code, out, err = kivqa_score(capsys, *words, "--predictions", predictions(tmp_path / "d.jsonl", [("d", "x")]))
    assert code == 0 and out.rstrip().splitlines()[-1].split() == ["all", "0", "-", "-"] and "1 rows have no" in err


def test_a_judge_for_rows_of_evqa_and_of_llm(tmp_path, capsys):
    rows = [
        row("a", ["Paris", "City of Paris"], method="evqa"),
        row("b", ["Paris", "Lutetia"], method="llm"),
        row("c", ["Rome"], method="llm"),
        row("d", ["Rome"], method="exact"),
    ]
    given = predictions(
        tmp_path / "p.jsonl", [("a", "in Paris"), ("b", "in Paris"), ("c", "no idea"), ("d", "in Rome")]
    )
    words = ["rows", "--references", lines(tmp_path / "r.jsonl", rows), "--predictions", given]
    code, _, err = kivqa_score(capsys, *words)
    assert code == 2 and "r.jsonl:2: a row of method llm needs a language model: give --judge llm" in err
    with serving() as serve:
        server = serve(lambda number, shown: "correct" if "Paris" in shown["answer"] else "incorrect")
        out = tmp_path / "verdicts.jsonl"
        judge = ["--judge", "llm", "--judge_url", server.url, "--judge_model", "grader", "--per_sample", str(out)]
        result = scored(capsys, *words, *judge)
        seen = [json.loads(body["messages"][1]["content"].splitlines()[0]) for body in server.seen]
    assert [one["correct"] for one in lines_of(out)] == [1.0, 1.0, 0.0, 0.0]
    assert result["scores"]["judged"] == {"pairs": 4, "cut": 0, "unclear": 0}
    assert ["Paris", "Lutetia"] in [one["reference_answers"] for one in seen]  # as in training: all at once


def test_a_judge_that_no_row_asks_is_refused(tmp_path, capsys):
    references = lines(tmp_path / "r.jsonl", [row("a", ["x"])])
    given = predictions(tmp_path / "p.jsonl", [("a", "x")])
    with serving() as serve:
        judge = ["--judge", "llm", "--judge_url", serve(lambda number, shown: "correct").url, "--judge_model", "grader"]
        words = ["rows", "--references", references, "--predictions", given, *judge]
        code, out, err = kivqa_score(capsys, *words)
    assert code == 2 and out == "" and "--judge acts on rows of evqa and llm, and there are none" in err


def test_rows_with_and_without_a_split(tmp_path, capsys):
    references = lines(tmp_path / "r.jsonl", [row("a", ["x"]), row("b", ["x"], "test"), row("c", ["x"], "test")])
    given = predictions(tmp_path / "p.jsonl", [("a", "x"), ("b", "x"), ("c", "y")])
    splits = scored(capsys, "rows", "--references", references, "--predictions", given)["scores"]["splits"]
    assert {split: part["mean"] for split, part in splits.items()} == {"all": 100.0, "test": 50.0, "all rows": 66.67}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"accu_reward_method": "guess"}, "Unknown reward method 'guess'"),
        ({"data_id": None}, "`data_id` is null"),
        ({"answers": []}, "`answers` is []"),
        ({"conversations": []}, "`conversations` is a list"),
    ],
)
def test_bad_rows(tmp_path, capsys, more, message):
    references = lines(tmp_path / "r.jsonl", [row("a", ["x"]) | more])
    given = predictions(tmp_path / "p.jsonl", [("a", "x")])
    code, out, err = kivqa_score(capsys, "rows", "--references", references, "--predictions", given)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
