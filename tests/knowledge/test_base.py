"""The knowledge base: articles and passages by key."""

import hashlib
import json
import os
import pickle

import pytest

from open_r1_kivqa.data import cache
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge import base
from open_r1_kivqa.knowledge.base import KnowledgeBase, Passage, article_sections


def article(key, *sections, title="T"):
    parts = [{"id": id, "title": heading, "text": text} for id, heading, text in sections]
    return {"key": key, "title": title, "url": "", "sections": parts, "images": []}


ARTICLES = [
    article("France", ("0", "", "A country."), ("capital", "Capital", "Paris."), title="France (republic)"),
    article("https://x.org/a#b", ("0", "Top", "Text")),
    article(7, (3, "Three", "t")),
]


@pytest.fixture
def write(tmp_path):
    def write(articles):
        path = tmp_path / "kb.jsonl"
        path.write_text("\n".join(json.dumps(entry) for entry in articles))
        return str(path)

    return write


def test_articles_and_passages_by_key(write):
    path = write(ARTICLES)
    kb = KnowledgeBase.open(path)
    assert len(kb) == 3 and list(kb) == ARTICLES
    assert kb.article("France") == ARTICLES[0]
    assert kb.passage("France#capital") == Passage("France#capital", "France (republic)", "Capital", "Paris.")
    assert kb.passage("https://x.org/a#b#0").text == "Text"
    assert kb.passage("7#3").section == "Three"
    assert "France" in kb and "France#0" in kb and "https://x.org/a#b" in kb
    assert "Spain" not in kb and "France#x" not in kb and "Spain#0" not in kb and "https://x.org/a" not in kb
    assert kb.fingerprint == hashlib.sha256(open(path, "rb").read()).hexdigest()
    copy = pickle.loads(pickle.dumps(kb))
    assert copy.passage("France#0").text == "A country." and copy.path == path


def test_keys_that_are_not_there_are_named(write):
    kb = KnowledgeBase.open(write(ARTICLES))
    with pytest.raises(InputError, match="kb.jsonl has no article 'Spain'"):
        kb.article("Spain")
    for key in ("Spain#0", "France#x", "France"):
        with pytest.raises(InputError, match=f"kb.jsonl has no passage '{key}'"):
            kb.passage(key)


def test_faulty_articles_are_named(write):
    with pytest.raises(InputError, match="kb.jsonl:2: `key` is missing"):
        KnowledgeBase.open(write([ARTICLES[0], {"title": "x"}]))
    with pytest.raises(InputError, match="Article 'France' is given twice, at .*:1 and .*:3"):
        KnowledgeBase.open(write([ARTICLES[0], ARTICLES[1], ARTICLES[0]]))
    kb = KnowledgeBase.open(write([{"key": "a"}, article("b", ("0", "x", None)), {"key": "c", "sections": ["0"]}]))
    with pytest.raises(InputError, match="kb.jsonl:2: titles and `text` of passage 'b#0' must be texts"):
        kb.passage("b#0")
    assert "a#0" not in kb and "c#0" not in kb


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "kb.jsonl is empty; it needs one JSON object per line"),
        (b" \n\n", "kb.jsonl is empty"),
        (b'{"key": "a"}\n["b"]\n', "kb.jsonl:2: a line must be a JSON object"),
        (b'{"key": "a"}\n\n"b"\n', "kb.jsonl:3: a line must be a JSON object"),
        (b'{"key": "a"}\nnull\n', "kb.jsonl:2: a line must be a JSON object"),
        (b'[{"key": "a"}]', "holds one JSON list"),
    ],
)
def test_files_that_hold_no_articles_are_refused(tmp_path, content, message):
    (tmp_path / "kb.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message):
        KnowledgeBase.open(str(tmp_path / "kb.jsonl"))


def test_all_passages_of_an_article(write):
    kb = KnowledgeBase.open(write([*ARTICLES, {"key": "bare"}]))
    assert kb.passages("France") == [kb.passage("France#0"), kb.passage("France#capital")]
    assert kb.passages("7") == [kb.passage("7#3")] and kb.passages("bare") == []
    assert kb.article_at(2) == ARTICLES[2] and kb.source(2).endswith("kb.jsonl:3")
    assert kb.has_article("7") and not kb.has_article("7#3")
    with pytest.raises(InputError, match="has no article 'Spain'"):
        kb.passages("Spain")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sections": "text"}, "a:1: `sections` of article 'k' must be a list like"),
        ({"sections": ["text"]}, "must be a list like"),
        ({"sections": [{"id": "0"}]}, "must be a list like"),
        ({"sections": [{"text": "t"}]}, "must be a list like"),
        ({"sections": [{"id": True, "text": "t"}]}, "must be a list like"),
        ({"sections": [{"id": "0", "text": "t", "title": None}]}, "must be a list like"),
        ({"sections": [{"id": "0", "text": "t"}, {"id": 0, "text": "u"}]}, "'k' has two sections '0'"),
        ({"sections": [], "title": 3}, "`title` of article 'k' is no text"),
    ],
)
def test_faulty_sections_are_named(fields, message):
    with pytest.raises(InputError, match=message):
        article_sections({"key": "k", **fields}, "a:1")


def test_a_file_cut_short_in_use_is_refused(write):
    """Cut after it was opened, when nothing tells of its change: the line ends in the middle."""
    path = write(ARTICLES)
    kb = KnowledgeBase.open(path)
    kb.article("France")
    os.truncate(path, os.path.getsize(path) - 5)
    with pytest.raises(InputError, match="kb.jsonl:3: not JSON"):
        kb.article("7")


def test_keys_whose_hashes_meet_are_told_apart(write, monkeypatch):
    monkeypatch.setattr(base, "text_hash", len)
    monkeypatch.setattr("open_r1_kivqa.data.packed.text_hash", len)
    kb = KnowledgeBase.open(
        write([article("aa", ("0", "", "1")), article("b", ("0", "", "2")), article("cc", ("0", "", "3"))])
    )
    assert [kb.passage(key).text for key in ("aa#0", "b#0", "cc#0")] == ["1", "2", "3"]
    assert "dd" not in kb
    with pytest.raises(InputError, match="'cc' is given twice, at .*:2 and .*:3"):
        KnowledgeBase.open(write([article("aa"), article("cc"), article("cc")]))


def test_the_index_is_kept(write, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    path = write(ARTICLES)
    os.utime(path, (1e9, 1e9))
    KnowledgeBase.open(path)
    monkeypatch.setattr(base, "_index", None)
    assert KnowledgeBase.open(path).passage("7#3").text == "t"


def test_an_index_that_takes_long_says_so_once(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    clock = iter([0.0, 31.7, 100.0, 100.1])
    monkeypatch.setattr(cache.time, "monotonic", lambda: next(clock))
    path = write(ARTICLES)
    os.utime(path, (1e9, 1e9))
    KnowledgeBase.open(path)
    assert capsys.readouterr().err == (
        f"Indexing the articles of {path} took 32 s; what was found is kept in {tmp_path / 'cache'}, so the next time takes none.\n"
    )
    KnowledgeBase.open(path)
    assert capsys.readouterr().err == ""
