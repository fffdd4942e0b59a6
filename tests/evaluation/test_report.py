"""What an evaluation leaves at its end, from records that stand there already."""

import json

import pytest
from evaluation_rows import knowledge

from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.evaluation.predict import score_texts
from open_r1_kivqa.evaluation.published import Conditions
from open_r1_kivqa.evaluation.records import ROLLOUTS, RankFile
from open_r1_kivqa.evaluation.report import conclude
from open_r1_kivqa.evaluation.rollouts import score_records
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template

IDS = ["q1", "q2", "e1", "e2"]


def answered(text):
    return f"<think>x</think><answer>{text}</answer>"


@pytest.fixture
def rows(tmp_path):
    """Four InfoSeek questions: two of each split."""
    lines = []
    for id, answers in zip(IDS, (["Paris"], ["Oslo"], {"range": [0, 2]}, ["Kristiania"]), strict=True):
        turns = [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": "x"}]
        split = "val_unseen_question" if id[0] == "q" else "val_unseen_entity"
        lines.append({"id": id, "data_id": id, "conversations": turns, "answers": answers, "split": split})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line | {"accu_reward_method": "infoseek"}) + "\n" for line in lines))
    return Rows.open([str(path)], [], None)


def write(folder, rows, texts, drawn):
    """The files that two ranks leave: greedy answers to all rows, and `drawn` answers of each."""
    folder.mkdir()
    samples = [rows[rows.index_of(id)] for id in IDS]
    for i, (sample, verdict) in enumerate(zip(samples, score_texts(texts, samples), strict=True)):
        head = {"id": sample.id, "split": sample.split, "setting": "normal", "question_type": "", "entity": None}
        shown = {
            "passages": [],
            "gold_rank": None,
            "gold_position": None,
            "prompt_hash": "0",
            "pick": None,
            "copy": None,
        }
        file = RankFile(folder, i % 2)
        file.append([head | {"prediction": texts[i]} | verdict | shown])
        file.close()
        record = head | {"texts": drawn[sample.id]}
        score_records([record], [sample])
        file = RankFile(folder, i % 2, ROLLOUTS)
        file.append([record])
        file.close()


def finish(folder, rows, conditions=None, kb=None):
    jobs = [("normal", id) for id in IDS]
    return conclude(
        folder,
        rows,
        jobs,
        jobs,
        Prompting(load_template("default"), seed=0, kb=kb),
        temperature=1.0,
        training=None,
        image_folders=[],
        conditions=conditions or (Conditions(), {}),
        judge=None,
    )


# q1 and q2 right; e1 by the official rule alone; e2 wrong, always with the same answer.
TEXTS = [answered("Paris"), answered("Oslo"), answered("unknown"), answered("Oslo")]
DRAWN = {"q1": [answered("Paris")] * 16, "q2": [answered("Oslo")] * 8 + [""] * 8}
DRAWN |= {"e1": [answered("7")] * 16, "e2": [answered("Oslo")] * 12 + [answered(str(i)) for i in range(4)]}


def test_files_and_summary(rows, tmp_path, capsys):
    folder = tmp_path / "out"
    write(folder, rows, TEXTS, DRAWN)
    summary = finish(folder, rows)
    assert json.loads((folder / "summary.json").read_text()) == summary
    figures = summary["official"]["normal"]["infoseek"]["lenient"]
    assert (figures["splits"]["unseen_question"]["score"], figures["splits"]["unseen_entity"]["score"]) == (100.0, 50.0)
    assert figures["score"] == 66.67  # 2 / (1/100 + 1/50)
    assert summary["splits"]["val_unseen_question"]["rollouts"]["avg"] == 0.75
    suspects = [json.loads(line) for line in (folder / "suspect_labels.jsonl").read_text().splitlines()]
    assert [(one["id"], one["answer"], one["share"]) for one in suspects] == [("e1", "7", 1.0), ("e2", "Oslo", 0.75)]
    names = {"official_predictions.normal.jsonl", "predictions.jsonl", "rollouts.jsonl", "suspect_labels.jsonl"}
    assert {path.name for path in folder.iterdir()} == {*names, "summary.json"}
    printed = capsys.readouterr().out
    assert "harmonic_mean" in printed and "66.67" in printed and "pass@16" in printed
    assert "val_unseen_entity, normal: right by the official rule alone: 1 (e1)" in printed
    assert "suspect references (75% of 16 rollouts agree on an answer that scores 0): 2" in printed
    assert "not comparable on infoseek: Wiki-R1 7B" in printed


def test_a_published_figure_stands_beside_ours_where_all_conditions_are_stated(rows, tmp_path, capsys):
    folder = tmp_path / "out"
    write(folder, rows, TEXTS, DRAWN)
    same = {"split": "val", "question_types": "String,Time,Numerical", "knowledge_base_articles": 9, "retriever": "r"}
    same |= {"recall_at": 5, "recall": 0.6}
    theirs = Conditions(judge="official rule", images_per_question=1, **same)
    conditions = (Conditions(**same), {("ReflectiVA", "infoseek"): theirs})
    found = finish(folder, rows, conditions)["published"]
    assert {(one["figure"], one["published"], one["ours"]) for one in found["comparable"]} == {
        ("unseen_question", 40.4, 100.0),
        ("unseen_entity", 39.8, 50.0),
        ("mean", 40.1, 75.0),
    }
    assert "infoseek mean: 75.0, ReflectiVA (published) 40.1" in capsys.readouterr().out


def test_rows_that_no_retrieval_gave_candidates_are_told(rows, tmp_path, capsys):
    write(tmp_path / "out", rows, TEXTS, DRAWN)
    assert finish(tmp_path / "out", rows, kb=knowledge(tmp_path))["without_passages"] == 4
    assert "WARNING: 4 rows were shown no passage under normal" in capsys.readouterr().out
    assert finish(tmp_path / "out", rows)["without_passages"] == 0  # without a knowledge base none were wanted
    assert "WARNING" not in capsys.readouterr().out


def test_without_enough_rollouts_no_row_is_suspect(rows, tmp_path, capsys):
    folder = tmp_path / "out"
    write(folder, rows, TEXTS, {id: texts[:8] for id, texts in DRAWN.items()})
    (folder / "suspect_labels.jsonl").write_text("of another evaluation")
    finish(folder, rows)
    assert not (folder / "suspect_labels.jsonl").exists()
    assert "suspect references are looked for from --rollouts 16 on" in capsys.readouterr().out


def test_rows_without_references_count_nowhere_but_in_the_official_file(rows, tmp_path, capsys):
    line = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])
    del line["answers"], line["conversations"][-1]
    (tmp_path / "more.jsonl").write_text(
        "".join(
            json.dumps(line | {"accu_reward_method": method, "id": f"{method}-{i}"}) + "\n"
            for i in range(2)
            for method in ("infoseek", "evqa", "viquae", "exact", "numeric", "math", "mcq", "iou", "od_ap", "llm")
        )
    )
    unanswered = Rows.open([str(tmp_path / "more.jsonl")], [], None)
    for sample, verdict in zip(unanswered, score_texts(TEXTS[:1] * len(unanswered), list(unanswered)), strict=True):
        assert (verdict["correct_lenient"], verdict["correct_strict"]) == (None, None), sample.reward_method
        assert "boxes" not in verdict

    line["id"] = line["data_id"] = "q2"
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join([lines[0], json.dumps(line), *lines[2:]]) + "\n")
    rows = Rows.open([str(tmp_path / "rows.jsonl")], [], None)
    folder = tmp_path / "out"
    write(folder, rows, TEXTS, DRAWN)
    summary = finish(folder, rows)
    figures = summary["official"]["normal"]["infoseek"]
    assert (figures["questions"], figures["left_out"]) == (3, 0)
    assert figures["lenient"]["splits"]["unseen_question"] | {"types": 0} == {"score": 100.0, "count": 1, "types": 0}
    assert summary["unanswered"] == 1
    scores = summary["splits"]["val_unseen_question"]
    assert (scores["n"], scores["scored"], scores["accuracy"]) == (2, 1, 1.0)
    out = capsys.readouterr().out
    assert "1 of 2" in out and "1 row has no reference answer: answered, not scored" in out
    assert len((folder / "official_predictions.normal.jsonl").read_text().splitlines()) == 4
