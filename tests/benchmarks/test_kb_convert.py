import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_factbook import (
    WIKI,
    countries,
    encyclopedic,
    encyclopedic_kb,
    lines_of,
    url_of,
    wiki6m_line,
    write_lines,
)

from open_r1_kivqa.benchmarks.kb_forms import cut_text
from open_r1_kivqa.cli import main
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.titles import Titles

OBELISK = {
    "title": "Obélisque",
    "section_titles": ["", "Height"],
    "section_texts": ["A needle in Paris.", "It is 23 m high."],
    "image_urls": ["https://upload.wikimedia.org/x/Obélisque.jpg"],
    "image_reference_descriptions": ["the needle"],
    "image_section_indices": [0],
    "url": f"{WIKI}Ob%C3%A9lisque",
}


def written(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def converted(tmp_path, content, *flags, name="published.json"):
    source = written(tmp_path / name, content)
    assert main(["convert", "kb", "--input", source, "--output", str(tmp_path / "kb.jsonl"), *flags]) == 0
    return lines_of(tmp_path / "kb.jsonl")


def refused(tmp_path, capsys, content, *flags, name="published.json") -> str:
    source = written(tmp_path / name, content)
    assert main(["convert", "kb", "--input", source, "--output", str(tmp_path / "kb.jsonl"), *flags]) == 2
    assert not list(tmp_path.glob("kb.jsonl*"))
    return capsys.readouterr().err


def test_an_article_of_encyclopedic_vqa(tmp_path, capsys):
    (article,) = converted(tmp_path, {f"{WIKI}Ob%C3%A9lisque": OBELISK})
    assert article == {
        "key": f"{WIKI}Ob%C3%A9lisque",
        "title": "Obélisque",
        "url": f"{WIKI}Ob%C3%A9lisque",
        "sections": [
            {"id": "0", "title": "", "text": "A needle in Paris."},
            {"id": "1", "title": "Height", "text": "It is 23 m high."},
        ],
        "images": [],
        "image_urls": ["https://upload.wikimedia.org/x/Obélisque.jpg"],
    }
    assert capsys.readouterr().out.startswith(f"{tmp_path}/kb.jsonl: 1 rows of 1 items")
    report = json.loads((tmp_path / "kb.jsonl.report.json").read_text())
    assert report["read"] == report["written"] == 1 and not report["dropped"]


def test_section_ids_are_the_places_in_the_file(tmp_path, capsys):
    article = {"title": "T", "section_titles": ["a", "b", "c", "d"], "section_texts": ["one", " ", None, "four"]}
    (made,) = converted(tmp_path, {"T": article})
    assert [(part["id"], part["title"], part["text"]) for part in made["sections"]] == [
        ("0", "a", "one"),
        ("3", "d", "four"),
    ]
    kb = KnowledgeBase.open(str(tmp_path / "kb.jsonl"))
    assert kb.passage("T#3").text == "four"
    assert "section whose text is none, left out" in capsys.readouterr().out


def test_lists_of_different_lengths(tmp_path, capsys):
    few, many = (
        {"title": "T", "section_titles": titles, "section_texts": ["x", "y"]} for titles in (["a"], ["a", "b", "c"])
    )
    made = converted(tmp_path, {"few": few, "many": many})
    assert [[part["title"] for part in article["sections"]] for article in made] == [["a", ""], ["a", "b"]]
    out = capsys.readouterr().out
    assert "other numbers of section titles and texts" in out and "['few']: 1 titles, 2 texts" in out


def test_what_is_dropped_is_counted_with_examples(tmp_path, capsys):
    content = '{"a": {"section_texts": ["x"]}, "b": {"section_texts": [""]}, "c": {"section_texts": []}, "d": {"other": 1}, "e": 5, "a": {"section_texts": ["y"]}, " ": {"section_texts": ["z"]}}'
    made = converted(tmp_path, content)
    assert [(article["key"], article["sections"][0]["text"]) for article in made] == [("a", "x")]
    report = json.loads((tmp_path / "kb.jsonl.report.json").read_text())
    assert {reason: tally["number"] for reason, tally in report["dropped"].items()} == {
        "without text": 2,
        "without any of the expected texts": 2,
        "key given before": 1,
        "without key, url and title": 1,
    }
    assert any(
        "['d']: an object with other: number 1" in text
        for text in report["dropped"]["without any of the expected texts"]["examples"]
    )
    assert "title taken from the key: 1" in capsys.readouterr().out


def test_wiki6m(tmp_path):
    line = {
        "wikidata_id": "Q1",
        "wikipedia_title": "Tower",
        "wikipedia_summary": "A tower.",
        "wikipedia_content": "A tower.\n\nIt stands.\n== Height ==\nIt is 30 m high.\n=== In feet ===\n98 feet.",
        "wikipedia_image_url": "https://upload.wikimedia.org/t.jpg",
    }
    (article,) = converted(tmp_path, json.dumps(line) + "\n", name="wiki.jsonl")
    assert (article["key"], article["title"], article["url"]) == ("Q1", "Tower", "")
    assert [(part["title"], part["text"]) for part in article["sections"]] == [
        ("", "A tower.\nIt stands."),
        ("Height", "It is 30 m high."),
        ("In feet", "98 feet."),
    ]
    assert article["image_urls"] == ["https://upload.wikimedia.org/t.jpg"]
    other = {**line, "wikidata_id": "Q2", "wikipedia_summary": "Short.", "wikipedia_image_url": None}
    (article,) = converted(tmp_path, {f"{WIKI}Tower": other})  # by url, as ReflectiVA's code reads it
    assert (article["key"], article["url"], article["aliases"]) == (f"{WIKI}Tower", f"{WIKI}Tower", ["Q2"])
    assert article["sections"][0]["text"] == "Short." and "image_urls" not in article
    assert Titles.open(KnowledgeBase.open(str(tmp_path / "kb.jsonl"))).find("Q2") == f"{WIKI}Tower"


@pytest.mark.parametrize(
    "value, sections",
    [
        ("A tower.\nIt stands.", [("", "A tower.\nIt stands.")]),
        (["one", {"title": "h", "text": "two"}], [("", "one"), ("h", "two")]),
        ({"sections": {"Height": "30 m", "Age": "old"}}, [("Height", "30 m"), ("Age", "old")]),
        ({"title": "T", "text": "# Height\n30 m"}, [("Height", "30 m")]),
        ({"sections": [], "text": "all"}, [("", "all")]),
    ],
)
def test_shapes_of_an_article_with_unknown_keys(tmp_path, value, sections):
    (article,) = converted(tmp_path, {f"{WIKI}My_tower": value})
    assert [(part["title"], part["text"]) for part in article["sections"]] == sections
    assert article["title"] in ("T", "My tower")


def test_forms_may_be_mixed(tmp_path):
    made = converted(tmp_path, {"a": OBELISK, "b": {"wikipedia_content": "text"}, "c": {"text": "other"}})
    assert [len(article["sections"]) for article in made] == [2, 1, 1]
    made = converted(tmp_path, {"a": OBELISK, "b": {"wikipedia_content": "text"}}, "--form", "evqa")
    assert [article["key"] for article in made] == ["a"]


def test_other_keys_are_mapped(tmp_path, capsys):
    item = {"name": "Tower", "body": {"plain": "It stands."}, "links": ["pictures/t.jpg", "https://x.org/t.jpg"]}
    message = refused(tmp_path, capsys, {"u": item})
    assert "is of no known form" in message and "name: text 'Tower', body: object" in message
    assert "evqa: section_texts" in message and "--map text=their_key" in message
    assert "--map titel=name: wanted is field=key" in refused(tmp_path, capsys, {"u": item}, "--map", "titel=name")
    (article,) = converted(tmp_path, {"u": item}, "--map", "title=name", "text=body.plain", "image_urls=links")
    assert (article["title"], article["sections"][0]["text"]) == ("Tower", "It stands.")
    assert article["images"] == ["pictures/t.jpg"] and article["image_urls"] == ["https://x.org/t.jpg"]


def test_what_is_no_knowledge_base_is_refused(tmp_path, capsys):
    assert "holds no article" in refused(tmp_path, capsys, {})
    assert "there is no row to write" in refused(tmp_path, capsys, {"a": {"section_texts": [""]}})
    ours = json.dumps({"key": "a", "sections": [{"id": "x", "title": "", "text": "t"}]}) + "\n"
    assert "is a knowledge base as it should be already" in refused(tmp_path, capsys, ours, name="ours.jsonl")
    assert "give 1 or more" in refused(tmp_path, capsys, {"a": OBELISK}, "--section_length", "0")
    assert "doesn't end in .jsonl" in (
        main(["convert", "kb", "--input", "x", "--output", str(tmp_path / "kb.json")]) and capsys.readouterr().err
    )
    path = write_lines(tmp_path / "same.jsonl", [wiki6m_line(countries()[0])])
    before = (tmp_path / "same.jsonl").read_bytes()
    assert main(["convert", "kb", "--input", path, "--output", path]) == 2
    assert "is the --input" in capsys.readouterr().err and (tmp_path / "same.jsonl").read_bytes() == before


def test_a_file_that_ends_in_the_middle_leaves_nothing(tmp_path, capsys):
    whole = json.dumps({url_of(article): encyclopedic(article) for article in countries()})
    assert "ends in the middle, at byte 100,000, after" in refused(tmp_path, capsys, whole[:100_000])


def test_titles_redirects_and_encoded_urls(tmp_path):
    encyclopedic_kb(tmp_path / "published.json")
    redirects = "Cote d'Ivoire\tIvory_Coast\nRepublic of Cote d'Ivoire\tCote d'Ivoire\nLoop\tPool\nPool\tLoop\n"
    flags = ["--redirects", written(tmp_path / "redirects.tsv", redirects)]
    made = converted(tmp_path, (tmp_path / "published.json").read_text(), *flags)
    ivory = next(article for article in made if article["title"] == "Ivory Coast")
    assert ivory["aliases"] == ["Cote d'Ivoire", "Republic of Cote d'Ivoire"]
    assert sum("aliases" in article for article in made) == 1
    kb = KnowledgeBase.open(str(tmp_path / "kb.jsonl"))
    titles = Titles.open(kb)
    for name in ("Ivory Coast", "ivory_Coast", f"{WIKI}Ivory%20Coast#History", "Republic of Cote d'Ivoire"):
        assert titles.find(name) == f"{WIKI}Ivory_Coast"
    # all of the Factbook is there, section for section
    for article in countries():
        for place, part in enumerate(article["sections"]):
            assert kb.passage(f"{url_of(article)}#{place}").text == part["text"]


def test_pictures_on_disk(tmp_path):
    for name in ("b/Obélisque.PNG", "Q42.jpg", "Flag.png", "map.svg.png", "Caf%C3%A9.jpg", "Th%C3%A9.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(b"")
    flags = ["--image_roots", str(tmp_path / "pictures")]
    obelisk = {**OBELISK, "image_urls": ["https://x.org/Ob%C3%A9lisque.jpg?width=3", "https://x.org/none.jpg"]}
    content = {"a": obelisk, "b": {"wikidata_id": "Q42", "wikipedia_content": "x"}, "c": {"wikipedia_content": "y"}}
    flag = {**OBELISK, "image_urls": ["https://x.org/Flag.svg", "https://x.org/thumb/Map.svg/320px-map.svg.png"]}
    # Downloaded under the names that the urls spell.
    cafe = {**OBELISK, "image_urls": ["https://x.org/Caf%C3%A9.jpg", "https://x.org/320px-Th%C3%A9.svg"]}
    made = converted(tmp_path, {**content, "d": flag, "e": cafe}, *flags)
    assert [article["images"] for article in made] == [
        ["b/Obélisque.PNG"],
        ["Q42.jpg"],
        [],
        ["Flag.png", "map.svg.png"],
        ["Caf%C3%A9.jpg", "Th%C3%A9.png"],
    ]


@pytest.mark.parametrize(
    "text, length, pieces",
    [
        ("one\ntwo\n\nthree", 9, ["one\ntwo", "three"]),
        ("A cat sat. A dog ran. It rained.", 21, ["A cat sat. A dog ran.", "It rained."]),
        ("aaaa bbbb cccc", 9, ["aaaa bbbb", "cccc"]),
        ("aaaaaaaaaa", 4, ["aaaa", "aaaa", "aa"]),
        ("=  =", 1, ["=", "="]),
        ("aaa   bbb\t c", 3, ["aaa", "bbb", "c"]),
        (" \n ", 5, []),
    ],
)
def test_long_texts_are_cut(text, length, pieces):
    assert [piece for _, piece in cut_text(text, length)] == pieces
    assert [piece for _, piece in cut_text(f"== H ==\n{text}", length)] == pieces


@settings(max_examples=100, deadline=None)
@given(st.text("ab .=#\n", max_size=80), st.integers(1, 20))
def test_cut_texts_lose_nothing(text, length):
    """Every character but white space is in a piece or a heading, in order, and no piece is too long."""
    pieces = cut_text(text, length)
    assert all(0 < len(piece) <= length and piece == piece.strip() for _, piece in pieces)
    if "=" not in text and "#" not in text:
        assert "".join("".join(piece.split()) for _, piece in pieces) == "".join(text.split())


def test_headings():
    text = "lead\n==A==\na\n=== B b ===\nb1 = 2\n# C\n#nothashed\n== =="
    assert cut_text(text, 100) == [("", "lead"), ("A", "a"), ("B b", "b1 = 2"), ("C", "#nothashed\n== ==")]


def test_a_killed_conversion_goes_on_to_the_same_file(tmp_path, capfd):
    """Killed for good (SIGKILL) after its first record, whatever it had written by then."""
    values = {
        f"{WIKI}Article_{number}": {**OBELISK, "section_texts": ["x" * 30_000, str(number)]} for number in range(2_500)
    }
    values = (
        json.dumps(values)[:-1] + f', "{WIKI}Article_1": {json.dumps(OBELISK)}}}'
    )  # a key that comes again at the end
    source = written(tmp_path / "published.json", values)
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    slow = "import time; from open_r1_kivqa.benchmarks import converted as c; c.EVERY = 0.05; from open_r1_kivqa.cli import main; import sys; main(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", slow, "convert", "kb", "--input", source, "--output", str(twice)])
    while process.poll() is None and not os.path.exists(f"{twice}.part.json"):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not twice.exists() and os.path.getsize(f"{twice}.part") > 0
    done = json.loads((tmp_path / "twice.jsonl.part.json").read_text())["done"]
    assert 0 < done < 2_501
    for path in (once, twice):
        assert main(["convert", "kb", "--input", source, "--output", str(path)]) == 0
    assert f"going on after {done:,} items" in capfd.readouterr().err
    assert once.read_bytes() == twice.read_bytes()
    counts = [json.loads((tmp_path / f"{name}.jsonl.report.json").read_text()) for name in ("once", "twice")]
    assert [{**report, "output": ""} for report in counts][0] == {**counts[1], "output": ""}
    assert counts[1]["dropped"]["key given before"]["number"] == 1 and len(lines_of(twice)) == 2_500
