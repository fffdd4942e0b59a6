"""EchoSight's csv files of InfoSeek: the same questions as in InfoSeek's own files, in Encyclopedic-VQA's columns."""

import pytest
from evqa_fixture import write_csv
from published_factbook import DATA, encyclopedic_kb, flags_of, infoseek, lines_of, url_of

from open_r1_kivqa.benchmarks.evqa_csv import COLUMNS as EVQA_COLUMNS
from open_r1_kivqa.benchmarks.evqa_csv import read_csv
from open_r1_kivqa.benchmarks.infoseek_csv import is_number, read_csv_questions
from open_r1_kivqa.cli import main
from open_r1_kivqa.errors import InputError

ROWS = [row for row in lines_of(DATA / "eval.jsonl") if row["split"] != "maps"][::12]
COLUMNS = "data_id question answer dataset_image_ids dataset_name question_type wikipedia_url wikipedia_title encyclopedic_vqa_split".split()


def line(**columns) -> dict:
    row = {"data_id": "infoseek_val_00000000", "question": "How high is it?", "answer": "350|350.0"}
    row |= {"dataset_image_ids": "oven_04000000", "dataset_name": "infoseek", "question_type": "infoseek"}
    row |= {"wikipedia_url": "https://en.wikipedia.org/wiki/Eiffel_Tower", "wikipedia_title": "Eiffel Tower"}
    return row | {"encyclopedic_vqa_split": "val"} | columns


def csv_of(path, files, rows):
    """The csv of these questions: a url in place of the entity, texts in place of ranges, one split."""
    titles = {row["key"]: url_of(row) for row in lines_of(DATA / "knowledge.jsonl")}
    made = []
    for question, row in zip(lines_of(files["--input"]), rows, strict=True):
        texts = question["answer_eval"]
        texts = texts if isinstance(texts[0], str) else [str(texts[0]["wikidata"])]
        columns = {"data_id": question["data_id"], "question": question["question"], "answer": "|".join(texts)}
        columns |= {"dataset_image_ids": question["image_id"], "wikipedia_url": titles[row["entity"]]}
        made.append(line(**columns, wikipedia_title=""))
    return str(write_csv(path, made, COLUMNS))


def convert(tmp_path, name, flags, *more):
    output = str(tmp_path / f"{name}.jsonl")
    assert main(["convert", "infoseek", *flags_of(flags), "--output", output, *more]) == 0
    return lines_of(output)


def test_with_infoseeks_own_files_beside_the_rows_are_the_same(tmp_path, capsys):
    files = infoseek(tmp_path, ROWS)
    kb = str(tmp_path / "kb.jsonl")
    assert main(["convert", "kb", "--input", encyclopedic_kb(tmp_path / "wiki.json"), "--output", kb]) == 0
    own = convert(tmp_path, "own", files, "--knowledge_base", kb)
    flags = {"--input": csv_of(tmp_path / "test.csv", files, ROWS), "--image_roots": files["--image_roots"]}
    more = {"--references": files["--input"], "--question_types": files["--question_types"]}
    rows = convert(tmp_path, "csv", flags | more, "--knowledge_base", kb)
    assert rows == [{name: value for name, value in row.items() if name != "entity_id"} for row in own]
    assert len(rows) == len(ROWS) and {row["question_type"] for row in rows} == {"String", "Time", "Numerical"}
    assert "10 %" not in capsys.readouterr().out

    alone = convert(tmp_path, "alone", flags, "--knowledge_base", kb)
    for row, whole in zip(alone, rows, strict=True):
        assert row["accu_reward_method"] == "infoseek" and row["split"] == "val"
        assert (row["entity"], row["image"], row["data_id"]) == (whole["entity"], whole["image"], whole["data_id"])
        if isinstance(whole["answers"], dict) and isinstance(row["answers"], dict):
            assert row["answers"]["range"] == pytest.approx(whole["answers"]["range"])
    out = capsys.readouterr().out
    assert "a number without a range; 10 % on both sides are taken" in out
    assert f"answer and split as the csv has them (--references gives InfoSeek's own): {len(ROWS)}" in out
    assert (
        main(
            [
                "check",
                "--data_file_paths",
                str(tmp_path / "alone.jsonl"),
                "--image_folders",
                flags["--image_roots"],
                "--knowledge_base",
                kb,
            ]
        )
        == 0
    )


def test_what_a_cell_says_of_the_answer(tmp_path):
    written = "[{'wikidata': 350.0, 'range': [315.0, 385.0]}]"
    rows = [line(), line(answer=written), line(answer="1990"), line(answer="range {}")]
    path = write_csv(tmp_path / "a.csv", rows, COLUMNS)
    found = [question["answer_eval"] for question in read_csv_questions(path)]
    assert found == [["350", "350.0"], [{"wikidata": 350.0, "range": [315.0, 385.0]}], ["1990"], ["range {}"]]
    assert is_number(["350", "350.0"]) and is_number(["1,350.5"]) and is_number(["12000"])
    assert not any(map(is_number, (["1990"], ["350", "351"], ["350 m"], ["Paris"], ["nan"], [])))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"dataset_name": "landmarks"}, "`dataset_name` is 'landmarks'; wanted is infoseek"),
        ({"data_id": " "}, "`data_id` is empty"),
        ({"dataset_image_ids": "|"}, "`dataset_image_ids` is empty"),
        ({"question_type": "templated"}, "one of Encyclopedic-VQA's; convert its files by `kivqa convert evqa`"),
        ({"question_type": "other"}, "the benchmark has infoseek"),
    ],
)
def test_rows_that_are_none(tmp_path, columns, message):
    with pytest.raises(InputError, match=message):
        list(read_csv_questions(write_csv(tmp_path / "a.csv", [line(**columns)], COLUMNS)))


def test_the_files_of_the_two_benchmarks_are_told_apart(tmp_path, capsys):
    whole = {name: "" for name in EVQA_COLUMNS} | line()
    path = write_csv(tmp_path / "both.csv", [whole], list(whole))
    with pytest.raises(InputError, match="as EchoSight publishes it; convert it by `kivqa convert infoseek`"):
        list(read_csv(str(path)))
    assert [question["data_id"] for question in read_csv_questions(str(path))] == ["infoseek_val_00000000"]
    files = infoseek(tmp_path, ROWS[:2])
    words = [
        "convert",
        "infoseek",
        *flags_of(files),
        "--references",
        files["--input"],
        "--output",
        str(tmp_path / "o.jsonl"),
    ]
    assert main(words) == 2 and "--references is for a csv file" in capsys.readouterr().err
    assert not (tmp_path / "o.jsonl").exists()
