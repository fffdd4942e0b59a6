import pytest

from open_r1_kivqa.evaluation.ranks import by_gold, rank_table
from open_r1_kivqa.evaluation.summary import summarise


def record(id, rank, position, right, shown=3, setting="normal"):
    return {
        "id": id,
        "split": "s",
        "setting": setting,
        "question_type": "",
        "entity": None,
        "gold_rank": rank,
        "gold_position": position,
        "passages": [f"p{i}" for i in range(shown)],
        "correct_lenient": right,
        "correct_strict": right,
        "format": True,
        "pick": None,
        "copy": None,
    }


RECORDS = [
    record("a", 1, 1, 1.0),
    record("b", 1, 1, 0.0),
    record("c", 2, 2, 1.0),
    record("d", 7, 0, 0.0),  # behind what is shown
    record("e", 0, 0, 0.0),
    record("f", None, None, 1.0),  # no evidence: counts nowhere
    record("g", None, 0, 0.0, shown=0),  # no candidates: nothing shown, so a miss
    record("h", 2, 2, None),  # not scored
]


def test_accuracy_by_the_place_of_the_gold_passage_and_recall_by_hand():
    found = by_gold(RECORDS)
    assert found["gold_rank"] == {
        "1": {"n": 2, "accuracy": 0.5},
        "2": {"n": 1, "accuracy": 1.0},
        "7": {"n": 1, "accuracy": 0.0},
        "absent": {"n": 1, "accuracy": 0.0},
    }
    assert found["gold_position"] == {
        "1": {"n": 2, "accuracy": 0.5},
        "2": {"n": 1, "accuracy": 1.0},
        "absent": {"n": 3, "accuracy": 0.0},
    }
    # Seven rows name their evidence: two have it first, two second.
    assert found["recall"] == {"1": pytest.approx(2 / 7), "2": pytest.approx(4 / 7), "3": pytest.approx(4 / 7)}


def test_rows_that_show_no_passage_have_no_places():
    assert by_gold([record("a", None, 0, 1.0, shown=0)]) == {} and by_gold([]) == {}
    summary = summarise([record("a", None, 0, 1.0, shown=0)])
    assert rank_table(summary) is None


def test_only_settings_that_show_what_was_retrieved_have_places():
    shown = ("normal", "shuffled_passages")
    records = [record("a", 1, 1, 1.0, setting=setting) for setting in (*shown, "gold_only", "no_image")]
    settings = summarise(records)["splits"]["s"]["settings"]
    assert [setting for setting in settings if "recall" in settings[setting]] == list(shown)


def test_the_table_joins_far_places_and_leaves_empty_columns_out():
    further = [record("x", 6, 6, 1.0, shown=8), record("y", 8, 8, 0.0, shown=8), record("z", 8, 8, 0.0, shown=8)]
    table = rank_table(summarise([*RECORDS, *further]))
    columns = {column.header: list(column.cells) for column in table.columns}
    assert list(columns) == ["split", "setting", "place", "1", "2", "3", "4", "5", "6+", "absent"]
    assert columns["place"] == ["among candidates", "as shown", "recall"]
    assert columns["1"] == ["50.0 (2)", "50.0 (2)", "20.0"]  # two of ten
    assert columns["6+"] == ["25.0 (4)", "33.3 (3)", "70.0"]  # with rank 7; recall at 8
    assert columns["3"] == ["", "", "40.0"]
    few = rank_table(summarise([record("a", 1, 1, 1.0, shown=1)]))
    assert [column.header for column in few.columns] == ["split", "setting", "place", "1"]
