"""Imported vectors: files of every form, EchoSight's index and pickle, names matched to articles, pickles that want to run something."""

import json
import os
import pickle
from pathlib import Path

import faiss
import numpy as np
import pytest
from PIL import Image

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.titles import Titles
from open_r1_kivqa.retrieval.encoders import load_image_encoder
from open_r1_kivqa.retrieval.imports import check_encoder, match, read_echosight, read_features, read_ids

URL = "https://en.wikipedia.org/wiki/"
NAMES = [f"{URL}Barn_owl", f"{URL}Red_fox", f"{URL}Barn_owl"]


@pytest.fixture
def kb(tmp_path):
    rows = [
        {"key": f"{URL}Barn_owl", "title": "Barn owl", "images": ["owl.png"]},
        {"key": f"{URL}Red_fox", "title": "Red fox", "images": ["fox.png", "cub.png"]},
        {"key": f"{URL}Moose", "title": "Moose"},
    ]
    (tmp_path / "kb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return KnowledgeBase.open(str(tmp_path / "kb.jsonl"))


def taken(array, names, kb, redirects=None):
    return match(array, names, Titles.open(kb, redirects), "files", lambda text: None)


def all_of(imported):
    return np.concatenate(list(imported.vectors.batches(2)))


def write_pickle(path: Path, value, protocol: int = 4) -> str:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return str(path)


def test_names_are_matched_as_everywhere_else(kb):
    """By key, title, url in another spelling, redirect; the rest is counted. Titles keep their case but for the first letter."""
    names = [f"{URL}Barn_owl", "Red Fox", "Moose", "http://en.wikipedia.org/wiki/Barn%20owl", "Elk", "Wapiti", "Wapiti"]
    array = np.arange(1, 15, dtype=np.float16).reshape(7, 2)
    found = taken(array, names, kb, {"Elk": "Moose"})
    assert list(found.keys) == [f"{URL}{page}" for page in ("Barn_owl", "Moose", "Barn_owl", "Moose")]
    assert (found.unmatched, found.examples) == (
        3,
        ["Red Fox", "Wapiti"],
    )
    wanted = array[[0, 2, 3, 4]].astype(np.float64)
    np.testing.assert_allclose(all_of(found), wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(found.vectors.take(np.array([3, 0])), all_of(found)[[3, 0]])


def test_vectors_without_a_direction_are_left_out(kb):
    found = taken(np.array([[0, 0], [1, np.nan], [3, 4]], dtype=np.float32), NAMES, kb)
    assert found.zero == 2 and list(found.keys) == NAMES[2:]
    np.testing.assert_allclose(all_of(found), [[0.6, 0.8]], atol=1e-6)


def test_a_stale_pair_of_index_and_ids_is_refused(kb):
    with pytest.raises(InputError, match="3 vectors, but 2 ids; they are not of the same run"):
        taken(np.ones((3, 2), np.float32), NAMES[:2], kb)
    with pytest.raises(InputError, match="not one id names an article .*'Q1'"):
        taken(np.ones((3, 2), np.float32), ["Q1", "Q2", "Q3"], kb)
    with pytest.raises(InputError, match="all are zero or not finite"):
        taken(np.zeros((3, 2), np.float32), NAMES, kb)


def test_ids_in_every_form(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{name}\r\n" for name in NAMES))
    (tmp_path / "a.json").write_text(json.dumps(NAMES))
    (tmp_path / "a.jsonl").write_text(f'{json.dumps(NAMES[0])}\n{json.dumps({"key": NAMES[1]})}\n"{NAMES[2]}"\n')
    for name in ("a.txt", "a.json", "a.jsonl"):
        assert read_ids(str(tmp_path / name)) == NAMES
    (tmp_path / "n.json").write_text("[1, 22]")
    assert read_ids(str(tmp_path / "n.json")) == ["1", "22"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        NAMES,
        tuple(NAMES),
        np.array(NAMES),
        np.array(NAMES, dtype=object),
        np.array(NAMES).astype(">U64"),
        [np.str_(name) for name in NAMES],
        [np.array([name]) for name in NAMES],
        [NAMES[:1], (NAMES[1], np.array(NAMES[2:], dtype=object))],
    ],
    ids=["list", "tuple", "texts", "objects", "big-endian", "numpy texts", "arrays", "nested"],
)
def test_pickles_of_texts_are_read_as_python_reads_them(tmp_path, value, protocol):
    assert read_ids(write_pickle(tmp_path / "ids.pkl", value, protocol)) == NAMES


def test_pickled_numbers(tmp_path):
    value = [np.int64(7), np.arange(3, dtype=np.int32), 12]
    assert read_ids(write_pickle(tmp_path / "ids.pkl", value)) == ["7", "0", "1", "2", "12"]


class Runs:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_wants_to_run_something_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    attacks = {
        f"{os.system.__module__}.system": Runs(os.system, f"touch {mark}"),
        "eval": Runs(eval, f"open({str(mark)!r}, 'w')"),
        "getattr": Runs(getattr, Runs(__import__, "os"), "system"),
        "open": Runs(open, str(mark), "w"),
        "load": Runs(np.load, str(mark), None, True),
    }
    for name, attack in attacks.items():
        path = write_pickle(tmp_path / "ids.pkl", [*NAMES, attack], protocol)
        with pytest.raises(
            InputError,
            match=rf"asks for [\w.]*{name.rpartition('.')[2]}|asks for builtins.__import__|asks for __builtin__",
        ):
            read_ids(path)
    assert not mark.exists()


def test_numpy_s_own_functions_are_not_run_either(tmp_path):
    """What numpy would do with a made-up type is nothing to find out here."""
    array = pickle.dumps(np.array(NAMES, dtype=object), protocol=2)
    for change in ((b"X\x02\x00\x00\x00O8", b"X\x02\x00\x00\x00V8"), (b"X\x02\x00\x00\x00O8", b"X\x02\x00\x00\x00f8")):
        assert change[0] in array
        (tmp_path / "ids.pkl").write_bytes(array.replace(*change))
        with pytest.raises(InputError, match="items of type"):
            read_ids(str(tmp_path / "ids.pkl"))
    path = write_pickle(tmp_path / "ids.pkl", Runs(np.dtype, [("a", "O")]))
    with pytest.raises(InputError, match="items of type"):
        read_ids(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", b"a\n", r"no known kind of list; give a file that ends with \.txt, \.json, \.jsonl, \.pkl"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.json", b'{"a": 1}', "holds a dict; wanted is a list"),
        ("a.json", b"[]", "holds an empty list"),
        ("a.json", b'["a", null]', "a list with None in it"),
        ("a.json", b"[", "is not JSON"),
        ("a.jsonl", b'{"url": "a"}\n', "a list with None in it"),
        ("a.pkl", b"\x80\x04]\x94", "no pickle that can be read"),
        ("a.pkl", b"", "no pickle that can be read"),
        ("a.pkl", pickle.dumps([1.5]), r"a list with 1\.5 in it"),
        ("a.pkl", pickle.dumps({"a": 1}), "holds a dict"),
    ],
)
def test_other_ids_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_ids(str(tmp_path / name))


def test_features_are_mapped_and_checked(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 2), np.float16))
    assert isinstance(read_features(str(tmp_path / "a.npy")), np.memmap)
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)))
    for value, message in ((np.ones(3), r"float64\(3,\)"), (np.ones((3, 2), int), r"int64\(3, 2\)")):
        np.save(tmp_path / "b.npy", value)
        with pytest.raises(InputError, match=message):
            read_features(str(tmp_path / "b.npy"))
    np.save(tmp_path / "b.npy", np.array([[{}]], dtype=object))
    with pytest.raises(InputError, match=r"no \.npy file of numbers"):
        read_features(str(tmp_path / "b.npy"))
    with pytest.raises(InputError, match="several arrays"):
        read_features(str(tmp_path / "a.npz"))
    with pytest.raises(InputError, match="does not exist"):
        read_features(str(tmp_path / "c.npy"))


def test_echosight_s_index(tmp_path, kb):
    vectors = np.array([[3, 4, 0], [0, 1, 0], [0, 0, 2]], dtype=np.float32)
    index = faiss.IndexFlatIP(3)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "kb_index.faiss"))
    array = read_echosight(str(tmp_path / "kb_index.faiss"))
    found = taken(array, read_ids(write_pickle(tmp_path / "kb_index_ids.pkl", NAMES)), kb)
    np.testing.assert_allclose(all_of(found), [[0.6, 0.8, 0], [0, 1, 0], [0, 0, 1]], atol=1e-6)
    assert list(found.keys) == NAMES


def test_other_indexes_are_refused(tmp_path):
    path = str(tmp_path / "a.faiss")
    Path(path).write_bytes(b"no index")
    with pytest.raises(InputError, match="is no faiss index"):
        read_echosight(path)
    faiss.write_index(faiss.IndexFlatIP(3), path)
    with pytest.raises(InputError, match="holds no vectors"):
        read_echosight(path)
    hashes = faiss.IndexLSH(8, 16)
    hashes.add(np.ones((2, 8), np.float32))
    faiss.write_index(hashes, path)
    with pytest.raises(InputError, match="IndexLSH, which is not known to give its vectors back"):
        read_echosight(path)


def test_whether_an_encoder_made_the_vectors(tmp_path, kb):
    generator = np.random.default_rng(0)
    for name in ("owl.png", "fox.png", "cub.png"):
        pixels = Image.fromarray(generator.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        pixels.resize((70, 50), Image.Resampling.NEAREST).save(tmp_path / name)
    encoder = load_image_encoder("colour")
    folders = [str(tmp_path)]
    made = encoder.encode([str(tmp_path / name) for name in ("owl.png", "cub.png", "owl.png")])
    assert check_encoder(encoder, taken(5 * made, NAMES, kb), kb, folders, "x.npy") == 3
    other = generator.standard_normal(made.shape).astype(np.float32)
    with pytest.raises(InputError, match=r"x\.npy: encoder colour gives other vectors .*median cosine of 3 pictures"):
        check_encoder(encoder, taken(other, NAMES, kb), kb, folders, "x.npy")
    with pytest.raises(InputError, match="vectors of 2 numbers, but encoder colour gives 141"):
        check_encoder(encoder, taken(other[:, :2], NAMES, kb), kb, folders, "x.npy")
    assert check_encoder(encoder, taken(other, NAMES, kb), kb, [str(tmp_path / "elsewhere")], "x.npy") == 0
