"""`kivqa score evqa` and `viquae` on a handful of questions whose scores were counted by hand."""

import pytest
from judge_server import says_paris, serving
from published_factbook import lines_of
from pytest import approx
from scoring import ALL, EVQA, SINGLE_HOP, evqa_file, evqa_predictions, kivqa_score, lines, predictions, scored


@pytest.fixture
def flags(tmp_path):
    return ["evqa", "--references", evqa_file(tmp_path / "test.csv")]


@pytest.fixture
def serve():
    with serving() as start:
        yield start


def test_exact_match(flags, tmp_path, capsys):
    result = scored(capsys, *flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"))
    assert result["judge"] == "exact match only (no BEM): a lower bound of the published figures"
    scores = result["scores"]
    types = {kind: (part["score"], part["count"]) for kind, part in scores["types"].items()}
    assert types == {"templated": (100.0, 2), "automatic": (50.0, 2), "multi_answer": (50.0, 2), "2_hop": (0.0, 1)}
    assert (scores["single_hop"]["score"], scores["all"]["score"]) == (approx(SINGLE_HOP), approx(ALL))
    assert scores["all"]["exact"] == scores["all"]["score"] and "judged" not in scores


def test_ids_may_be_texts_and_in_any_order(flags, tmp_path, capsys):
    given = predictions(tmp_path / "p.jsonl", [(f"{i}", row[3]) for i, row in reversed(list(enumerate(EVQA)))])
    assert scored(capsys, *flags, "--predictions", given)["scores"]["all"]["score"] == approx(ALL)


def test_table(flags, tmp_path, capsys):
    _, out, _ = kivqa_score(capsys, *flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"))
    rows = [line.split() for line in out.splitlines()]
    assert ["single-hop", "6", "66.67", "66.67", "-"] in rows and ["all", "7", "57.14", "57.14", "-"] in rows
    assert "judge: exact match only (no BEM): a lower bound of the published figures" in out


def test_a_language_model_judges_what_does_not_match(flags, tmp_path, capsys, serve):
    """It calls right what names Paris: "It is in Paris" of the four that don't match."""
    server = serve(says_paris)
    out = tmp_path / "verdicts.jsonl"
    judge = ["--judge", "llm", "--judge_url", server.url, "--judge_model", "grader"]
    judge += ["--judge_cache", str(tmp_path / "verdicts")]
    words = [*flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"), *judge]
    result = scored(capsys, *words, "--per_sample", str(out))
    assert result["judge"] == f"language model grader at {server.url}"
    assert result["scores"]["judged"] == {"pairs": 3, "cut": 0, "unclear": 0}
    assert result["scores"]["types"]["automatic"] == {"score": 100.0, "count": 2, "exact": 50.0}
    assert result["scores"]["all"] == {"score": approx(500 / 7), "count": 7, "exact": approx(ALL)}
    by = ["exact match" if right else "judge" if "Paris" in text else None for *_, text, right in EVQA]
    assert lines_of(out) == [{"data_id": i, "correct": one is not None, "by": one} for i, one in enumerate(by)]
    asked = len(server.seen)
    assert asked == 1 + 3  # one before anything else, to see whether it answers
    shown = [body["messages"][1]["content"] for body in server.seen[1:]]
    assert any(
        '"reference_answers": ["mice,birds,eggs"]' in text and '"answer": "fish, mice"' in text for text in shown
    )
    assert scored(capsys, *words)["scores"] == result["scores"]
    assert len(server.seen) == asked + 1  # the three verdicts came from the folder
    table = [line.split() for line in kivqa_score(capsys, *words)[1].splitlines()]
    assert ["automatic", "2", "100.00", "50.00", "50.00"] in table


def test_each_alternative_is_judged(tmp_path, capsys, serve):
    right = (["Seine"], ["Paris"])  # Paris is what it is asked first, to see whether it answers
    server = serve(lambda number, row: "correct" if row["reference_answers"] in right else "incorrect")
    references = evqa_file(tmp_path / "test.csv", [("Which river?", "Loire|Seine", "automatic")])
    given = predictions(tmp_path / "p.jsonl", [(0, "the river in Paris")])
    judge = ["--judge", "llm", "--judge_url", server.url, "--judge_model", "grader"]
    scores = scored(capsys, "evqa", "--references", references, "--predictions", given, *judge)["scores"]
    assert scores["all"]["score"] == 100.0 and scores["judged"]["pairs"] == 2


def test_a_judge_that_fails_gives_no_figure(flags, tmp_path, capsys, serve):
    def fails_later(number, row):
        return "correct" if number == 1 else (500, {}, {"error": "down"})

    server = serve(fails_later)
    judge = ["--judge", "llm", "--judge_url", server.url, "--judge_model", "grader", "--judge_retries", "0"]
    words = [*flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"), *judge]
    code, out, err = kivqa_score(capsys, *words, "--per_sample", str(tmp_path / "verdicts.jsonl"))
    assert code == 2 and out == "" and "failed on 3 of 3 answers" in err and "'status 500': 3" in err
    assert not list(tmp_path.glob("verdicts*"))


def test_replies_that_are_no_verdict_are_wrong_and_counted(flags, tmp_path, capsys, serve):
    server = serve(lambda number, row: "correct" if number == 1 else "perhaps")
    judge = ["--judge", "llm", "--judge_url", server.url, "--judge_model", "grader"]
    result = scored(capsys, *flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"), *judge)
    assert result["scores"]["all"]["score"] == approx(ALL) and result["scores"]["judged"]["unclear"] == 3
    assert "3 of the judge's 3 replies were no verdict" in result["warnings"][0]


def test_candidates_that_the_judge_sees_cut_are_counted(flags, tmp_path, capsys, serve):
    judge = ["--judge", "llm", "--judge_url", serve(says_paris).url, "--judge_model", "grader"]
    given = predictions(tmp_path / "p.jsonl", [(i, "long " * 30 if i == 3 else row[3]) for i, row in enumerate(EVQA)])
    result = scored(capsys, *flags, "--predictions", given, *judge, "--judge_max_answer_chars", "100")
    assert result["scores"]["judged"]["cut"] == 1
    assert "The judge saw 1 of 3 candidates cut" in result["warnings"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--judge", "gpt"], "--judge 'gpt' is no judge; give exact, bem:PATH or llm"),
        (["--judge", "bem"], "--judge 'bem' is no judge"),
        (["--judge", "llm"], "--judge llm needs --judge_url and --judge_model"),
        (["--judge", "llm", "--judge_url", "http://localhost:1/v1"], "--judge_model is missing"),
        (["--judge", "llm", "--judge_url", "ftp://x", "--judge_model", "m"], "is no http or https address"),
        (["--judge_url", "http://localhost:1/v1"], "--judge_url acts only with --judge llm: leave it out"),
        (["--bem_label", "0"], "--bem_label acts only with --judge bem:PATH"),
        (["--judge", "bem:x", "--judge_model", "m"], "--judge_model acts only with --judge llm"),
        (["--judge", "bem:nowhere"], "--judge bem:nowhere: no config.json lies there"),
    ],
)
def test_judges_that_are_none(flags, tmp_path, capsys, words, message):
    code, out, err = kivqa_score(capsys, *flags, "--predictions", evqa_predictions(tmp_path / "p.jsonl"), *words)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_viquae(tmp_path, capsys):
    """By hand: exact 1 of 3. F1: 1; "Levi Strauss" in "Levi Strauss & Co" 2·2/(2+3) = 0.8; nothing in common 0."""
    rows = [
        {"id": "v1", "input": "Which brand?", "output": {"answer": ["Levi's", "Levis"], "original_answer": "Levi's"}},
        {"id": "v2", "input": "Which firm?", "output": [{"answer": "Gap"}, {"answer": "Levi Strauss & Co."}]},
        {"id": "v3", "input": "Who?", "output": {"answer": ["Jackie Wilson"]}},
    ]
    references = lines(tmp_path / "test.jsonl", rows)
    given = predictions(tmp_path / "p.jsonl", [("v1", "the levis"), ("v2", "Levi Strauss"), ("v3", "Sam Cooke")])
    out = tmp_path / "verdicts.jsonl"
    words = ["viquae", "--references", references, "--predictions", given]
    scores = scored(capsys, *words, "--per_sample", str(out))["scores"]
    assert (scores["exact_match"], scores["f1"], scores["count"]) == (approx(100 / 3), approx(60.0), 3)
    assert [(one["data_id"], one["correct"], round(one["f1"], 6)) for one in lines_of(out)] == [
        ("v1", True, 1.0),
        ("v2", False, 0.8),
        ("v3", False, 0.0),
    ]
    assert ["all", "3", "33.33", "60.00"] in [line.split() for line in kivqa_score(capsys, *words)[1].splitlines()]
