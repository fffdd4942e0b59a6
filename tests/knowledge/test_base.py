"""The knowledge base: articles and passages by key."""

import hashlib
import json
import os
import pickle

import pytest

from open_r1_kivqa.data import cache
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge import base
from open_r1_kivqa.knowledge.base import KnowledgeBase, Passage


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


def test_keys_whose_hashes_meet_are_told_apart(write, monkeypatch):
    monkeypatch.setattr(base, "text_hash", len)
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
