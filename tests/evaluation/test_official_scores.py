import json
from collections import Counter

import pytest
from evaluation_rows import sample

from open_r1_kivqa.cli import main
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.official import (
    figures,
    guard_differences,
    guard_lines,
    official_scores,
    official_table,
    refuse_shared_ids,
    write_official_predictions,
)
from open_r1_kivqa.evaluation.predict import score_texts
from open_r1_kivqa.evaluation.summary import summarise


def infoseek(id, answers, split, question_type="String", **fields):
    fields = {"answers": answers, "split": f"val_{split}", "question_type": question_type, "data_id": id} | fields
    return sample(id, accu_reward_method="infoseek", **fields)


def evqa(number, answers, question_type, picture=1, **fields):
    fields = {"answers": answers, "question_type": question_type, "data_id": number} | fields
    id = f"evqa-{number}" + (f"-{picture}" if picture > 1 else "")
    return sample(id, accu_reward_method="evqa", **{"split": "test"} | fields)


def viquae(id, answers):
    return sample(id, accu_reward_method="viquae", answers=answers, split="test", data_id=id)


def records_of(rows, texts, setting="normal"):
    verdicts = score_texts(texts, rows)
    names = ("id", "split", "question_type", "entity")
    more = {"setting": setting, "pick": None, "copy": None, "gold_position": None}
    return [
        {**{name: getattr(row, name) for name in names}, **more, **verdict, "prediction": text}
        for row, text, verdict in zip(rows, texts, verdicts, strict=True)
    ]


def answered(text):
    return f"<think>x</think><answer>{text}</answer>"


INFOSEEK = [
    infoseek("q1", ["Paris"], "unseen_question"),
    infoseek("q2", ["1889"], "unseen_question", "Time"),
    infoseek("q3", {"range": [90, 110]}, "unseen_question", "Numerical"),
    infoseek("q4", ["oak", "Quercus"], "unseen_question"),
    infoseek("e1", ["Rome"], "unseen_entity"),
    infoseek("e2", {"range": [0, 2]}, "unseen_entity", "Numerical"),
]
# Right: q1 q2 q3 of four, e1 of two. So 75.0 and 50.0, harmonic mean 60.0, mean over questions 4 of 6.
INFOSEEK_TEXTS = [answered("paris"), answered("1889"), "about\n100", answered("elm"), answered("Rome"), answered("5")]


def test_infoseeks_figures_by_hand():
    scores = official_scores(records_of(INFOSEEK, INFOSEEK_TEXTS), INFOSEEK)["normal"]["infoseek"]
    assert (scores["questions"], scores["rows"], scores["left_out"]) == (6, 6, 0)
    lenient = {name: score for name, score, _ in figures("infoseek", scores["lenient"])}
    assert lenient == {
        "unseen_question": 75.0,
        "unseen_entity": 50.0,
        "harmonic_mean": 60.0,
        "mean": 66.67,
        "String": 66.67,
        "Time": 100.0,
        "Numerical": 50.0,
    }
    strict = {name: score for name, score, _ in figures("infoseek", scores["strict"])}
    assert strict["unseen_question"] == 50.0  # q3's answer has no tags


def test_official_verdicts_take_the_rewards_place_and_differences_are_counted():
    rows = [*INFOSEEK, infoseek("e3", {"range": [0, 2]}, "unseen_entity", "Numerical")]
    texts = [*INFOSEEK_TEXTS, answered("unknown")]  # no number reads as 0 by the official rule
    records = records_of(rows, texts)
    assert (records[-1]["correct_lenient"], records[-1]["guarded_lenient"]) == (1.0, 0.0)
    assert "guarded_lenient" not in records_of([sample("1", answer="x")], [answered("x")])[0]
    assert guard_differences(records) == {
        form: {"official_only": {"count": 1, "ids": ["e3"]}, "guarded_only": {"count": 0, "ids": []}}
        for form in ("lenient", "strict")
    }
    summary = summarise(records)
    assert summary["splits"]["val_unseen_entity"]["settings"]["normal"]["guard"] == guard_differences(records)
    assert guard_lines(summary) == ["val_unseen_entity, normal: right by the official rule alone: 1 (e3)"]
    assert guard_differences(records_of([sample("1", answer="x")], [answered("x")])) == {}


EVQA = [
    evqa(0, ["oak"], "templated"),
    evqa(0, ["oak"], "templated", picture=2),
    evqa(1, ["red&&green&&blue"], "multi_answer"),
    evqa(2, ["1789"], "2_hop"),
    evqa(3, ["Bach"], "automatic"),
]
# Right: question 0 by its first picture (not by its second), two of three items (IoU 2/3), not the 2-hop one, not "Johann Sebastian Bach" by exact match.
EVQA_TEXTS = [answered(text) for text in ("Oak.", "elm", "red, green", "1790", "Johann Sebastian Bach")]


def test_encyclopedic_vqas_figures_count_questions_and_name_the_missing_judge():
    scores = official_scores(records_of(EVQA, EVQA_TEXTS), EVQA)["normal"]["evqa"]
    assert scores["judge"] == "exact match only, no BEM"
    assert (scores["questions"], scores["rows"]) == (4, 5)
    lines = {name: (score, count) for name, score, count in figures("evqa", scores["lenient"])}
    assert lines["single_hop"] == (pytest.approx(200 / 3), 3) and lines["all"] == (50.0, 4)
    assert lines["templated"] == (100.0, 1) and lines["2_hop"] == (0.0, 1)
    assert scores["lenient_all_rows"]["types"]["templated"] == {"score": 50.0, "count": 2}


def test_viquaes_figures():
    rows = [viquae("a", ["the Eiffel Tower", "La Tour Eiffel"]), viquae("b", ["Rome"])]
    scores = official_scores(records_of(rows, [answered("Eiffel Tower"), answered("ancient Rome")]), rows)
    # "ancient Rome": one of two words, and all of the reference: F1 2/3
    assert figures("viquae", scores["normal"]["viquae"]["lenient"]) == [
        ("exact_match", 50.0, 2),
        ("f1", pytest.approx(100 * (1 + 2 / 3) / 2), 2),
    ]


def test_rows_of_other_methods_and_types_are_left_out():
    rows = [sample("1", answer="x"), evqa(0, ["x"], "capital"), infoseek("q", ["x"], "unseen_entity", "capital")]
    records = records_of(rows, [answered("x")] * 3)
    scores = official_scores(records, rows)["normal"]
    assert set(scores) == {"evqa", "infoseek"}
    assert scores["evqa"]["left_out"] == 1 and scores["evqa"]["lenient"]["all"]["score"] is None
    assert scores["infoseek"]["lenient"]["types"]["String"] == {
        "score": 100.0,
        "count": 1,
    }  # by the form of its answers
    assert official_scores(records[:1], rows[:1]) == {} and official_table({}) is None


def test_the_table_shows_what_there_is():
    table = official_table(official_scores(records_of(EVQA, EVQA_TEXTS), EVQA))
    assert [column.header for column in table.columns][2:] == ["figure", "questions", "lenient", "strict", "judge"]
    assert list(table.columns[2].cells) == ["single_hop", "all", "templated", "automatic", "multi_answer", "2_hop"]
    assert list(table.columns[4].cells)[:2] == ["66.67", "50.00"]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row.row) + "\n" for row in rows))
    return str(path)


def scores_of(capsys, *words):
    assert main(["score", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_kivqa_score_reads_the_predictions_and_gives_the_same_figures(tmp_path, capsys):
    """InfoSeek's and Encyclopedic-VQA's own files beside ours."""
    (path,) = write_official_predictions(tmp_path, records_of(INFOSEEK, INFOSEEK_TEXTS), INFOSEEK)
    assert path.name == "official_predictions.normal.jsonl"
    assert json.loads(path.read_text().splitlines()[2]) == {"data_id": "q3", "prediction": "100"}
    references = [
        {
            "data_id": row.id,
            "image_id": "oven_1",
            "question": row.question,
            "answer": ["x"],
            "answer_eval": list(row.answers) if isinstance(row.answers, tuple) else [{"wikidata": 1.0, **row.answers}],
            "data_split": row.split,
            "question_type": row.question_type,
        }
        for row in INFOSEEK
    ]
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(line) + "\n" for line in references))
    given = scores_of(capsys, "infoseek", "--references", tmp_path / "val.jsonl", "--predictions", path)
    ours = official_scores(records_of(INFOSEEK, INFOSEEK_TEXTS), INFOSEEK)["normal"]["infoseek"]
    assert given["scores"] == ours["lenient"] and given["scores"]["score"] == 60.0
    assert given["coverage"]["answered"] == 6

    (path,) = write_official_predictions(tmp_path, records_of(EVQA, EVQA_TEXTS), EVQA)
    columns = "question answer dataset_image_ids dataset_name dataset_category_id question_type wikipedia_url wikipedia_title evidence evidence_section_id evidence_section_title encyclopedic_vqa_split question_original wikipedia_url_used_in_train".split()
    questions = [EVQA[0], *EVQA[2:]]
    lines = [",".join(columns)] + [
        ",".join(
            {"question": "What?", "answer": row.answers[0], "question_type": row.question_type}.get(c, "x")
            for c in columns
        )
        for row in questions
    ]
    (tmp_path / "test.csv").write_text("\n".join(lines) + "\n")
    given = scores_of(capsys, "evqa", "--references", tmp_path / "test.csv", "--predictions", path)
    ours = official_scores(records_of(EVQA, EVQA_TEXTS), EVQA)["normal"]["evqa"]["lenient"]
    assert [given["scores"][part]["score"] for part in ("all", "single_hop")] == [
        ours[part]["score"] for part in ("all", "single_hop")
    ]
    assert given["coverage"]["answered"] == 4


def test_kivqa_score_gives_the_summarys_macro_means_of_rows_of_ours(tmp_path, capsys):
    rows = [
        sample(str(i), answer=answer, question_type=kind, split=split)
        for i, (answer, kind, split) in enumerate(
            [("a", "t", "s"), ("b", "t", "s"), ("c", "u", "s"), ("d", "u", "other"), ("e", "u", "s")]
        )
    ]
    records = records_of(rows, [answered(text) for text in ("a", "x", "c", "d", "e")])
    (path,) = write_official_predictions(tmp_path, records, rows)
    given = scores_of(capsys, "rows", "--references", write_rows(tmp_path / "rows.jsonl", rows), "--predictions", path)
    splits = summarise(records)["splits"]
    assert {split: given["scores"]["splits"][split]["macro"] for split in splits} == {"s": 75.0, "other": 100.0}
    assert {split: 100 * scores["accuracy"] for split, scores in splits.items()} == {"s": 75.0, "other": 100.0}


def test_several_methods_and_settings_have_files_of_their_own_and_older_ones_go(tmp_path):
    rows = [evqa(7, ["oak"], "templated"), infoseek("7", ["oak"], "unseen_entity")]  # the same id in both
    (tmp_path / "official_predictions.normal.jsonl").write_text("old")
    records = records_of(rows, [answered("oak"), ""]) + records_of(rows, ["", ""], setting="no_image")
    paths = write_official_predictions(tmp_path, records, rows * 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert Counter(path.name.split(".")[1] for path in paths) == {"normal": 2, "no_image": 2}
    lines = {path.name: path.read_text() for path in paths}
    assert lines["official_predictions.normal.evqa.jsonl"] == '{"data_id": 7, "prediction": "oak"}\n'
    assert lines["official_predictions.normal.infoseek.jsonl"] == '{"data_id": "7", "prediction": ""}\n'


def test_questions_of_two_files_with_one_id_are_refused():
    val, test = (evqa(0, [city], "templated", split=split) for city, split in (("Rome", "val"), ("Paris", "test")))
    with pytest.raises(InputError, match="the same data_id 0 but not the same question"):
        refuse_shared_ids([val, test])
    refuse_shared_ids([val, evqa(0, ["Rome"], "templated", picture=2), evqa(1, ["Paris"], "templated")])
    refuse_shared_ids([val, viquae(0, ["Paris"]), sample("a", data_id=0), sample("b", answers=["x"], data_id=0)])
