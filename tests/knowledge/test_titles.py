"""Articles found by the names that other files give them."""

import json
import os
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from open_r1_kivqa.data import cache
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge import titles as module
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.titles import Titles, read_redirects, title_of


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Eiffel Tower", "Eiffel Tower"),
        ("eiffel_Tower", "Eiffel Tower"),
        ("  iPod\u00a0 nano ", "IPod nano"),
        ("Cafe\u0301", "Café"),
        ("éclair", "Éclair"),
        ("ß", "ß"),  # no single capital
        ("Paris#History", "Paris"),
        ("#1", "#1"),
        ("100 % (film)", "100 % (film)"),
        ("Caf%C3%A9", "Caf%C3%A9"),  # only urls are encoded
        ("https://en.wikipedia.org/wiki/Eiffel_Tower", "Eiffel Tower"),
        ("http://en.m.wikipedia.org/wiki/Caf%C3%A9_de_Flore#Menu", "Café de Flore"),
        ("https://en.wikipedia.org/wiki/AC/DC", "AC/DC"),
        ("https://en.wikipedia.org/wiki/Who%3F", "Who?"),
        ("https://en.wikipedia.org/wiki/Are_you_there?", "Are you there?"),
        ("https://en.wikipedia.org/wiki/Paris?oldid=3&x=1#a", "Paris"),
        ("https://en.wikipedia.org/w/index.php?title=Eiffel_Tower&oldid=12", "Eiffel Tower"),
        ("https://example.org/articles/tower.html", "Articles/tower.html"),
        ("https://example.org", ""),
        ("", ""),
    ],
)
def test_the_form_of_a_title(name, form):
    assert title_of(name) == form


@given(st.text(max_size=12) | st.text("aé_# %/?=ß\u0301ǆ", max_size=8).map("https://x.org/wiki/".__add__))
@example("ŉ \u0301")
def test_a_form_is_its_own_form(name):
    assert title_of(title_of(name)) == title_of(name)


def article(key, title="", url="", **fields):
    return {"key": key, "title": title, "url": url, "sections": [], **fields}


WIKI = "https://en.wikipedia.org/wiki/"
ARTICLES = [
    article(WIKI + "Eiffel_Tower", "Eiffel Tower", WIKI + "Eiffel_Tower", aliases=["La Tour", "paris"]),
    article("Q90", "Paris", WIKI + "Paris_(city)", aliases=["City of Light"]),
    article("ipod", "iPod"),
    article("IPOD", "IPod"),
    article(7, "seven", aliases=None),
    article("double-1", "Double", aliases=["Twin"]),
    article("double-2", "Double", aliases=["Twin"]),
    article("city-of-light", "City of light"),
    article("seven", "Eight"),
]


@pytest.fixture
def titles(tmp_path):
    def make(articles=ARTICLES, **options):
        path = tmp_path / "kb.jsonl"
        path.write_text("\n".join(map(json.dumps, articles)))
        os.utime(path, (1e9, 1e9))
        return Titles.open(KnowledgeBase.open(str(path)), **options)

    return make


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (WIKI + "Eiffel_Tower", [WIKI + "Eiffel_Tower"]),
        ("http://en.wikipedia.org/wiki/eiffel%20Tower#x", [WIKI + "Eiffel_Tower"]),
        ("Eiffel Tower", [WIKI + "Eiffel_Tower"]),
        ("la Tour", [WIKI + "Eiffel_Tower"]),
        ("Q90", ["Q90"]),
        ("q90", ["Q90"]),
        ("paris", ["Q90"]),  # a title goes before an alias
        ("Paris (city)", ["Q90"]),
        ("City of Light", ["Q90"]),
        ("City of light", ["city-of-light"]),
        ("iPod", ["ipod"]),  # as written
        ("IPod", ["IPOD"]),
        (WIKI + "IPod", ["ipod", "IPOD"]),  # one title for a wiki
        ("7", ["7"]),
        ("seven", ["seven"]),  # a key goes before a title
        ("Seven", ["7", "seven"]),
        ("Double", ["double-1", "double-2"]),
        ("twin", ["double-1", "double-2"]),
        ("Rome", []),
        ("", []),
        ("Tower", []),
    ],
)
def test_names_and_what_they_mean(titles, name, keys):
    found = titles()
    assert found.matches(name) == keys
    assert found.find(name) == (keys[0] if keys else None)


def test_redirects_are_followed_and_cycles_end(titles, tmp_path):
    path = tmp_path / "redirects.tsv"
    lines = ["Iron_Lady\teiffel tower", "old\tOlder", "Older\tIron Lady", "a\tb", "b\tc", "c\ta", "self\tSelf", ""]
    lines += ["lost\tNowhere", "old\tParis", "lights\tCity of Light", "Paris\tDouble"]
    path.write_text("\r\n".join(lines))
    redirects = read_redirects(str(path))
    assert redirects["Old"] == "Older" and "Self" not in redirects and redirects["Iron Lady"] == "Eiffel tower"
    found = titles(redirects={**redirects, "Iron Lady": "Eiffel Tower"})
    assert found.find("iron Lady") == found.find("Old") == found.find(WIKI + "Older") == WIKI + "Eiffel_Tower"
    assert found.find("a") is found.find("self") is found.find("lost") is None
    assert found.find("Lights") == "Q90" and found.find("Paris") == "Q90"  # an article goes before a redirect
    assert titles(redirects={}).find("Iron Lady") is None
    (tmp_path / "redirects.json").write_text(json.dumps({"x": WIKI + "Paris", "y": "y"}))
    assert read_redirects(str(tmp_path / "redirects.json")) == {"X": "Paris"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.tsv", b"a\tb\nc\n", "r.tsv:2: 1 column.*write title, tab, where it leads"),
        ("r.tsv", b"a\tb\tc\n", "r.tsv:1: 3 column"),
        ("r.tsv", b"\xff\tb\n", "cannot be read"),
        ("r.json", b"[1]", "are no json object of texts"),
        ("r.json", b'{"a": 1}', "are no json object of texts"),
        ("r.json", b'{"a"', "cannot be read"),
        ("none.tsv", None, "cannot be read"),
    ],
)
def test_redirects_of_another_shape_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_redirects(str(tmp_path / name))


def test_names_whose_hashes_meet_are_told_apart(titles, monkeypatch):
    monkeypatch.setattr(module, "text_hash", lambda text: 3)
    monkeypatch.setattr("open_r1_kivqa.data.packed.text_hash", lambda text: 3)
    found = titles()
    assert found.find("Eiffel Tower") == WIKI + "Eiffel_Tower" and found.find("City of Light") == "Q90"
    assert found.find("Rome") is None and found.matches("Double") == ["double-1", "double-2"]


@pytest.mark.parametrize("fields", [{"title": 3}, {"url": ["x"]}, {"aliases": "one"}, {"aliases": [None]}])
def test_faulty_names_are_told(titles, fields):
    with pytest.raises(InputError, match="kb.jsonl:2: `title` and `url` must be texts and `aliases` a list of texts"):
        titles([ARTICLES[0], {**article("x"), **fields}])


def test_names_are_kept_and_can_be_pickled(titles, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    titles()
    monkeypatch.setattr(module, "_index", None)
    again = titles()
    assert pickle.loads(pickle.dumps(again)).matches("Double") == again.matches("Double") == ["double-1", "double-2"]
