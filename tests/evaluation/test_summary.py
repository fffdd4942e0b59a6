import io

import numpy as np
import pytest
from rich.console import Console

from open_r1_kivqa.evaluation.summary import macro, score_table, summarise


def record(id, entity, question_type, lenient, *, setting="normal", split="seen", strict=None, pick=None):
    return {
        "id": id,
        "split": split,
        "setting": setting,
        "question_type": question_type,
        "entity": entity,
        "correct_lenient": lenient,
        "correct_strict": lenient if strict is None else strict,
        "format": 1.0,
        "pick": pick,
        "copy": None,
        "gold_position": None,
    }


def test_scores_are_averaged_over_question_types_not_rows():
    records = [record(str(i), f"e{i}", "capital", 1.0) for i in range(9)] + [record("x", "e0", "area", 0.0)]
    scores = summarise(records)["splits"]["seen"]
    assert scores["accuracy"] == 0.5  # 9 of 10 rows, but one type right and one wrong
    assert scores["question_types"] == {"area": 0.0, "capital": 1.0}
    assert scores["n"] == 10 and scores["entities"] == 9


def test_rows_that_the_scorer_does_not_apply_to_are_left_out():
    scores = summarise([record("a", "e", "t", 1.0), record("b", "f", "t", None)])["splits"]["seen"]
    assert scores["accuracy"] == 1.0 and scores["n"] == 2
    assert scores["copy"] is None


def test_strict_format_and_pick_are_reported_beside_the_accuracy():
    records = [record("a", "e", "t", 1.0, strict=0.0, pick=True), record("b", "f", "t", 1.0, strict=1.0, pick=False)]
    scores = summarise(records)["splits"]["seen"]
    assert (scores["accuracy_strict"], scores["format"], scores["pick"]) == (0.5, 1.0, 0.5)


def test_gain_is_normal_minus_wrong_image_and_its_interval_is_paired():
    records = []
    for i in range(50):
        right = float(i % 2 == 0)
        records += [record(str(i), f"e{i}", "t", right), record(str(i), f"e{i}", "t", 0.0, setting="wrong_image")]
        records += [record(str(i), f"e{i}", "t", right, setting="no_image")]
    scores = summarise(records)["splits"]["seen"]
    assert scores["wrong_image"] == 0.0 and scores["no_image"] == 0.5
    assert scores["gain"] == 0.5
    assert scores["gain_interval"] == scores["interval"]  # wrong_image is 0 in each draw
    low, high = scores["interval"]
    # 50 independent coins of which 25 are right: standard error sqrt(.25 / 50) = 0.0707
    assert low == pytest.approx(0.5 - 1.96 * 0.0707, abs=0.03) and high == pytest.approx(0.5 + 1.96 * 0.0707, abs=0.03)


def test_intervals_draw_entities_not_rows():
    """100 rows of one entity are no more evidence than one."""
    few = [record(f"{e}{i}", e, "t", float(e == "a")) for e in "ab" for i in range(100)]
    assert summarise(few)["splits"]["seen"]["interval"] == [0.0, 1.0]
    alone = [record(f"{e}{i}", None, "t", float(e == "a")) for e in "ab" for i in range(100)]
    low, high = summarise(alone)["splits"]["seen"]["interval"]
    assert 0.4 < low < 0.45 and 0.55 < high < 0.6


def test_intervals_are_seeded():
    records = [record(str(i), f"e{i}", "t", i / 40) for i in range(40)]
    assert summarise(records, seed=1) == summarise(records, seed=1)
    assert summarise(records, seed=1) != summarise(records, seed=2)


def test_splits_are_apart_and_rows_without_one_are_in_all():
    records = [record("a", "e", "t", 1.0, split="unseen"), record("b", "e", "t", 0.0, split="")]
    splits = summarise(records)["splits"]
    assert splits["unseen"]["accuracy"] == 1.0 and splits["all"]["accuracy"] == 0.0


def test_macro_leaves_out_types_without_rows():
    assert macro(np.array([[3.0, 0.0]]), np.array([[4.0, 0.0]])).tolist() == [0.75]
    assert np.isnan(macro(np.zeros((1, 2)), np.zeros((1, 2)))).all()


def test_table_shows_settings_gain_and_baselines():
    summary = summarise([record("a", "e", "t", 1.0), record("a", "e", "t", 0.0, setting="wrong_image")])
    summary["splits"]["seen"]["baselines"] = {"chance": 0.2, "medoid": None}
    out = io.StringIO()
    Console(file=out, width=110).print(score_table(summary))
    text = out.getvalue()
    assert "normal - wrong_image" in text and "100.0  [100.0 100.0]" in text
    assert "rule: chance" in text and "20.0" in text and "medoid" not in text


BOX = {"box": [0.0, 0.0, 10.0, 10.0], "label": "cat"}
FAR = {"box": [50.0, 50.0, 60.0, 60.0], "label": "cat"}


def found(id, boxes, score, *, strict=True, setting="normal"):
    """The record of a row that expects BOX."""
    answered = record(id, None, "", score, setting=setting, strict=score if strict else 0.0)
    return answered | {"boxes": boxes, "expected": [BOX], "answer_strict": "[]" if strict else None}


def shown(summary):
    """The lines of the table, under its title."""
    out = io.StringIO()
    Console(file=out, width=130).print(score_table(summary))
    title, *lines = out.getvalue().splitlines()
    assert title.strip().endswith("95 % interval")
    return lines


def test_rows_of_one_box_have_a_mean_iou():
    rows = [record("a", None, "", 1.0) | {"iou": 0.9}, record("b", None, "", 0.0) | {"iou": 0.2}]
    summary = summarise([*rows, record("c", None, "", 0.0) | {"iou": None}])
    scores = summary["splits"]["seen"]
    assert scores["iou"] == pytest.approx(0.55) and scores["accuracy"] == pytest.approx(1 / 3)
    assert "AP" not in scores
    head, line = shown(summary)[:2]
    assert head.split()[-1] == "IoU" and line.split()[-1] == "55.0"


def test_rows_of_lists_have_an_average_precision_over_all_rows_of_a_setting():
    records = [found("a", [BOX], 1.0), found("b", [BOX], 1.0, strict=False)]
    records += [found(id, [FAR], 0.0, setting="wrong_image") for id in "ab"]
    summary = summarise(records)
    scores = summary["splits"]["seen"]
    assert (scores["AP"], scores["AP50"]) == (1.0, 1.0)
    assert scores["AP_strict"] == pytest.approx(51 / 101)  # one of two: precision 1 at the recalls up to .5
    assert scores["settings"]["wrong_image"]["AP"] == 0.0
    assert "iou" not in scores
    head, line = shown(summary)[:2]
    assert head.split()[-4:] == ["AP", "AP50", "AP", "strict"] and line.split()[-3:] == ["100.0", "100.0", "50.5"]


def test_the_table_has_columns_only_for_what_there_is():
    table = "\n".join(shown(summarise([record("a", "e", "t", 1.0, pick=True)])))
    assert "pick" in table and "copy" not in table and "IoU" not in table and "AP" not in table
    mixed = [record("a", None, "", 1.0), record("b", None, "", 1.0) | {"iou": 0.7}, found("c", [BOX], 1.0)]
    assert shown(summarise(mixed))[0].split()[-5:] == ["IoU", "AP", "AP50", "AP", "strict"]
