"""The index: distinct articles by their best picture, ties by key, every kind against a search by hand, fingerprints."""

import json
import os

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.retrieval import building, index, kinds
from open_r1_kivqa.retrieval.building import build_index
from open_r1_kivqa.retrieval.index import ImageIndex
from open_r1_kivqa.retrieval.vectors import ArrayVectors

KINDS = [(kind, precision) for kind in kinds.KINDS for precision in kinds.PRECISIONS]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def clustered(number, dim=16, centres=40, seed=0):
    """Vectors in clusters, as pictures' are; random ones have no neighbours worth the name."""
    generator = np.random.default_rng(seed)
    middle = generator.standard_normal((centres, dim))
    return unit(middle[generator.integers(centres, size=number)] + 0.4 * generator.standard_normal((number, dim)))


def make(folder, vectors, keys, **options):
    build_index(str(folder), ArrayVectors(np.asarray(vectors, dtype=np.float32)), keys, **options)
    return ImageIndex.open(str(folder))


def by_hand(vectors, keys, queries, k):
    """Best picture of each article, best article first, ties by key."""
    found = []
    for query in unit(np.asarray(queries, dtype=np.float64)):
        best = {}
        for key, score in zip(keys, unit(np.asarray(vectors, dtype=np.float64)) @ query, strict=True):
            best[key] = max(score, best.get(key, -2))
        found.append(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:k])
    return found


def test_the_best_picture_of_an_article_counts(tmp_path):
    vectors = [[1, 0], [0.6, 0.8], [0.8, 0.6], [-1, 0], [0, 2]]
    found = make(tmp_path / "i", vectors, ["owl", "owl", "fox", "fox", "elk"])
    keys, scores = found.search(np.array([[5.0, 0], [0, 1]]), 3)
    assert keys == [["owl", "fox", "elk"], ["elk", "owl", "fox"]]
    np.testing.assert_allclose(scores, [[1, 0.8, 0], [1, 0.8, 0.6]], atol=1e-6)
    assert len(found) == 5 and list(found.ids) == ["owl", "owl", "fox", "fox", "elk"]
    assert found.search(np.array([[1.0, 0]]), 10)[0] == [["owl", "fox", "elk"]]  # no more articles


def test_ties_go_by_key_even_where_many_tie_at_the_end(tmp_path):
    """600 articles with the same picture, a placeholder: whichever faiss finds first, the smallest keys come out."""
    keys = [f"a{i:03}" for i in range(600)]
    order = np.random.default_rng(0).permutation(600)
    vectors = np.tile([[0.6, 0.8]], (600, 1))
    found = make(tmp_path / "i", np.vstack([vectors, [[1, 0]]]), [*(keys[i] for i in order), "z"])
    assert found.search(np.array([[1.0, 0], [0, 1]]), 3)[0] == [["z", "a000", "a001"], ["a000", "a001", "a002"]]


def test_an_article_with_very_many_pictures_hides_no_other(tmp_path):
    vectors = np.vstack([clustered(500, 8, 1), -clustered(4, 8, 1)])
    found = make(tmp_path / "i", vectors, ["crowd"] * 500 + list("abcd"))
    keys, _ = found.search(vectors[:20], 3)
    assert all(its[0] == "crowd" and len(set(its)) == 3 for its in keys)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_flat_is_the_search_by_hand(tmp_path_factory, data):
    """Small whole numbers make many ties."""
    number = st.integers(-2, 2)
    vector = st.lists(number, min_size=3, max_size=3).filter(any)
    vectors = data.draw(st.lists(vector, min_size=1, max_size=30))
    keys = data.draw(
        st.lists(st.sampled_from(["é", "a", "b", "zz", "日"]), min_size=len(vectors), max_size=len(vectors))
    )
    queries = data.draw(st.lists(vector, min_size=1, max_size=4))
    k = data.draw(st.integers(1, 6))
    found, scores = make(tmp_path_factory.mktemp("i") / "i", vectors, keys).search(np.array(queries, dtype=float), k)
    # Scores that are equal by hand may differ in the last bit of float32, so keys are compared through their scores.
    for its, values, wanted in zip(found, scores, by_hand(vectors, keys, queries, len(keys)), strict=True):
        assert len(set(its)) == len(its) == min(k, len(set(keys)))
        np.testing.assert_allclose(values, [score for _, score in wanted[: len(its)]], atol=1e-6)
        np.testing.assert_allclose(values, [dict(wanted)[key] for key in its], atol=1e-6)


@pytest.mark.parametrize("kind, precision", KINDS)
def test_every_kind_finds_nearly_what_a_search_by_hand_finds(tmp_path, kind, precision):
    vectors = clustered(4000)
    keys = [f"article {i // 2}" for i in range(4000)]
    found = make(tmp_path / "i", vectors, keys, kind=kind, precision=precision)
    queries = clustered(60, seed=1)
    names, scores = found.search(queries, 10)
    wanted = by_hand(vectors, keys, queries, 10)
    share = np.mean([len(set(its) & {key for key, _ in best}) / 10 for its, best in zip(names, wanted, strict=True)])
    exact = kind == "flat" and precision == "fp32"
    assert share == 1 if exact else share >= (0.85 if precision == "sq8" else 0.97)
    assert all(len(set(its)) == 10 for its in names) and all(its == sorted(its, reverse=True) for its in scores)
    np.testing.assert_allclose(
        [its[0] for its in scores], [best[0][1] for best in wanted], atol=1e-6 if exact else 0.02
    )


@pytest.mark.parametrize("kind, precision", [("flat", "fp32"), ("flat", "sq8"), ("ivf", "fp32"), ("hnsw", "fp32")])
def test_a_query_s_result_does_not_depend_on_the_others(tmp_path, kind, precision):
    vectors = clustered(3000)
    found = make(tmp_path / "i", vectors, [str(i // 3) for i in range(3000)], kind=kind, precision=precision)
    queries = clustered(70, seed=2)
    keys, scores = found.search(queries, 20)
    alone = [found.search(query[None], 20) for query in queries]
    assert keys == [its[0][0] for its in alone]
    assert scores == [its[1][0] for its in alone]  # to the last bit


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_kinds_go_on_until_there_are_enough_articles(tmp_path, kind):
    """The query's own list or corner of the graph holds one article alone."""
    near, far = clustered(2000, 8, 1, seed=3), clustered(400, 8, 20, seed=4)
    keys = ["crowd"] * 2000 + [f"a{i}" for i in range(400)]
    found = make(tmp_path / "i", np.vstack([near, far]), keys, kind=kind, nprobe=1 if kind == "ivf" else None)
    names, _ = found.search(near[:5], 50)
    assert all(len(set(its)) == 50 for its in names)
    assert [len(set(its)) for its in found.search(near[:2], 1000)[0]] == [401, 401]  # every article there is


@pytest.mark.parametrize("kind, precision", KINDS)
def test_the_size_is_known_beforehand(tmp_path, kind, precision):
    make(tmp_path / "i", clustered(5000, 64), [str(i) for i in range(5000)], kind=kind, precision=precision)
    size = os.path.getsize(tmp_path / "i" / "index.faiss")
    assert kinds.index_bytes(kind, precision, 5000, 64) == pytest.approx(size, rel=0.03)


def test_the_same_seed_makes_the_same_index(tmp_path):
    def files(name, seed):
        vectors = clustered(9000)
        make(tmp_path / name, vectors, [str(i) for i in range(9000)], kind="ivf", precision="sq8", seed=seed)
        return {entry.name: open(entry.path, "rb").read() for entry in os.scandir(tmp_path / name)}

    first, again, other = files("a", 1), files("b", 1), files("c", 2)
    assert first == again
    assert first["index.faiss"] != other["index.faiss"]


def test_faiss_leaves_torch_s_threads_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # where the building rank takes all cores
    before = torch.get_num_threads()
    inside = []
    monkeypatch.setattr(
        building, "_trained", lambda *a, real=building._trained: inside.append(faiss.omp_get_max_threads()) or real(*a)
    )
    make(tmp_path / "i", clustered(100), [str(i) for i in range(100)]).search(clustered(3), 2)
    assert inside == [len(os.sched_getaffinity(0))]
    assert torch.get_num_threads() == before


def test_other_encoders_and_knowledge_bases_are_refused(tmp_path):
    about = {"encoder": "clip", "encoder_fingerprint": "e1", "knowledge_base": "/kb.jsonl"}
    about["knowledge_base_fingerprint"] = "k1"
    found = make(tmp_path / "i", clustered(3), list("abc"), about=about)
    assert (found.encoder, found.encoder_fingerprint, found.knowledge_base_fingerprint) == ("clip", "e1", "k1")
    found.refuse_other(encoder_fingerprint="e1", knowledge_base="k1")
    found.refuse_other()
    with pytest.raises(InputError, match=r"built with the encoder clip \(fingerprint e1\).*another \(e2\)"):
        found.refuse_other(encoder_fingerprint="e2", knowledge_base="k1")
    with pytest.raises(InputError, match=r"for the knowledge base /kb\.jsonl \(fingerprint k1\).*\(k2\)"):
        found.refuse_other(encoder_fingerprint="e1", knowledge_base="k2")
    imported = make(tmp_path / "j", clustered(3), list("abc"))
    with pytest.raises(InputError, match="imported vectors, and of which encoder is not known"):
        imported.refuse_other(encoder_fingerprint="e1")


def test_queries_that_cannot_be_compared_are_refused(tmp_path):
    found = make(tmp_path / "i", clustered(3, 4), list("abc"))
    for query in ([[1, 0, 0]], [1, 0, 0, 0]):
        with pytest.raises(InputError, match="have 4 numbers"):
            found.search(np.array(query, dtype=float), 1)
    for query in ([[0, 0, 0, 0]], [[np.nan, 0, 0, 1]]):
        with pytest.raises(InputError, match="zero or not finite"):
            found.search(np.array(query, dtype=float), 1)
    with pytest.raises(InputError, match="0 articles"):
        found.search(clustered(1, 4), 0)
    assert found.search(np.empty((0, 4)), 2) == ([], [])


def test_vectors_that_cannot_be_indexed_are_refused(tmp_path):
    with pytest.raises(InputError, match="Vector 2 .counted from 0. is zero"):
        make(tmp_path / "i", [[1, 0], [0, 1], [0, 0]], list("abc"))
    with pytest.raises(InputError, match="2 vectors and 3 keys"):
        make(tmp_path / "i", [[1, 0], [0, 1]], list("abc"))
    assert not os.listdir(tmp_path)


def test_too_little_room_is_said_before_anything_is_built(tmp_path, monkeypatch):
    usage = building.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda path: usage._replace(free=2**30))
    with pytest.raises(InputError, match=r"9\.31 GiB are needed on disk.*has 1\.00 GiB free; make room, or .*sq8"):
        building.check_room(str(tmp_path / "i"), "flat", "fp32", 5_000_000, 500)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda path: usage._replace(free=2**40))
    monkeypatch.setattr(building, "_available_memory", lambda: 2**30)
    with pytest.raises(InputError, match=r"9\.31 GiB of memory while it is built, but 1\.00 GiB are available"):
        building.check_room(str(tmp_path / "i"), "flat", "fp32", 5_000_000, 500)
    monkeypatch.setattr(building, "_available_memory", lambda: None)
    assert "will take 2.33 GiB" in building.check_room(str(tmp_path / "i"), "flat", "sq8", 5_000_000, 500)


def test_an_index_is_replaced_whole(tmp_path):
    make(tmp_path / "i", clustered(5), list("abcde"))
    with pytest.raises(InputError):
        make(tmp_path / "i", [[0, 0]], ["a"])
    assert len(ImageIndex.open(str(tmp_path / "i"))) == 5
    make(tmp_path / "i", clustered(3), list("abc"))
    assert len(ImageIndex.open(str(tmp_path / "i"))) == 3
    assert os.listdir(tmp_path) == ["i"]


def test_damaged_and_stale_folders_are_refused(tmp_path):
    folder = tmp_path / "i"
    with pytest.raises(InputError, match=r"no index .*manifest\.json"):
        ImageIndex.open(str(folder))
    make(folder, clustered(5), list("abcde"))
    manifest = json.loads((folder / "manifest.json").read_text())
    np.save(folder / "articles.npy", np.zeros(4, np.int32))
    with pytest.raises(InputError, match="5 vectors, 4 numbers and 5 articles"):
        ImageIndex.open(str(folder))
    (folder / "index.faiss").write_bytes(b"IxFI short")
    with pytest.raises(InputError, match="cannot be read"):
        ImageIndex.open(str(folder))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": index.FORMAT + 1}))
    with pytest.raises(InputError, match="not of the form"):
        ImageIndex.open(str(folder))
    for gone in index.NEEDED:
        (folder / "manifest.json").write_text(json.dumps({name: manifest[name] for name in manifest if name != gone}))
        with pytest.raises(InputError, match="not of the form"):
            ImageIndex.open(str(folder))
    for kind in ("ivf", "hnsw", "tree", None, []):  # each needs what a flat index's manifest lacks, or is none
        (folder / "manifest.json").write_text(json.dumps(manifest | {"kind": kind}))
        with pytest.raises(InputError, match="not of the form"):
            ImageIndex.open(str(folder))
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        ImageIndex.open(str(folder))


@pytest.mark.parametrize("kind, precision", KINDS)
def test_an_index_is_mapped_not_read(tmp_path, kind, precision):
    found = make(tmp_path / "i", clustered(4000, 64), [str(i) for i in range(4000)], kind=kind, precision=precision)
    with open("/proc/self/maps") as maps:
        assert any(str(tmp_path / "i" / "index.faiss") in line for line in maps)
    assert found.search(clustered(2, 64), 1)[0]
