import json

import numpy as np
import pytest
from published_factbook import DATA, countries, lines_of

from open_r1_kivqa.benchmarks import evidence as module
from open_r1_kivqa.benchmarks.evidence import EvidenceFinder
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.sections import load_section_scorer

TOWER = [
    ("", "The tower is a landmark of France's capital, Paris, and looks over the Seine."),
    ("Height", "The tower is 330 metres (1,083 ft) high. It was higher than any building in the U.S. until 1930."),
    ("History", "Gustave Eiffel's company built it from 1887 to 1889 for a World's Fair. It cost 7.8 million francs."),
    ("Blank", "  "),
    ("Age", "It stands still."),
    ("Twin", "One like it, on the Côte d’Azur, weighs 9\u202f700 t – or 10–11 m³ of iron."),
]


class Lengths:
    """A scorer that likes long texts."""

    name = fingerprint = "lengths"

    def scores(self, question, texts):
        return np.array([len(text) for text in texts]) / 1000


def finder(tmp_path, sections=TOWER, scorer=None) -> EvidenceFinder:
    parts = [{"id": str(place), "title": title, "text": text} for place, (title, text) in enumerate(sections)]
    (tmp_path / "kb.jsonl").write_text(json.dumps({"key": "tower", "title": "Tower", "sections": parts}) + "\n")
    return EvidenceFinder(KnowledgeBase.open(str(tmp_path / "kb.jsonl")), scorer or load_section_scorer("bm25"))


@pytest.mark.parametrize(
    "answers, expected",
    [
        (["Paris"], ("tower#0", "alias")),
        (["Lyon", "the World's Fair"], ("tower#2", "alias")),  # alias in one of the later sections only
        (["worlds fair"], ("tower#2", "alias")),
        (["France"], ("tower#0", "alias")),  # France's
        (["Gustave Eiffel"], ("tower#2", "alias")),
        (["US"], ("tower#1", "alias")),  # U.S.
        (["1,083 ft"], ("tower#1", "alias")),
        (["1083"], ("tower#1", "alias")),
        (["high"], ("tower#1", "alias")),  # not that of "higher"
        (["Age"], ("tower#4", "alias")),  # the title belongs to the section
        (["cote d'azur"], ("tower#5", "alias")),
        (["Cote d azur"], ("tower#5", "alias")),
        (["9700"], "weak"),  # a space doesn't join words
        ({"range": [9700, 9700]}, ("tower#5", "number")),
        ({"range": [10.5, 11]}, ("tower#5", "number")),
        ({"range": [2, 6]}, "weak"),  # no 3 of m³
        (["Pari"], "weak"),
        (["Eiffel Gustave"], "weak"),
        (["...", ""], "weak"),
        ([], "weak"),
        ({"range": [320, 340]}, ("tower#1", "number")),
        ({"range": [330, 330]}, ("tower#1", "number")),
        ({"range": [1888, 1890]}, ("tower#2", "number")),
        ({"range": [7e6, 8e6]}, ("tower#2", "number")),
        ({"range": [7, 8]}, "weak"),  # 7.8 million is no 7.8
        ({"range": [2000, 3000]}, "weak"),
    ],
)
def test_hand_checked_cases(tmp_path, answers, expected):
    found = finder(tmp_path).find("tower", "How high is the tower?", answers)
    # weak: section 1 has "high" and "tower"
    assert found == (("tower#1", "weak") if expected == "weak" else expected)


def test_of_several_that_hold_an_answer_the_best_fitting_counts(tmp_path):
    sections = [("", "Paris."), ("", "The river flows through Paris."), ("", "A mountain."), ("", "River, river!")]
    assert finder(tmp_path, sections).find("tower", "Which river?", ["Paris"]) == ("tower#1", "alias")
    assert finder(tmp_path, sections).find("tower", "Which river?", ["London"]) == ("tower#3", "weak")
    assert finder(tmp_path, sections).find("tower", "What else?", ["Paris"]) == ("tower#0", "alias")  # first of equals
    assert finder(tmp_path, sections, Lengths()).find("tower", "", ["mountain", "Paris"]) == ("tower#1", "alias")


def test_sections_for_a_question(tmp_path):
    found = finder(tmp_path)
    assert found.best_section("tower", "How high is the tower?") == "tower#1"
    assert found.best_section("tower", "What did it cost?") == "tower#2"
    assert found.first_section("tower") == "tower#0"
    empty = finder(tmp_path, [("a", " "), ("b", "")])
    assert (
        empty.find("tower", "Why?", ["x"])
        is empty.best_section("tower", "Why?")
        is empty.first_section("tower")
        is None
    )
    with pytest.raises(InputError, match="has no article"):
        empty.find("no", "Why?", ["x"])


def test_few_articles_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KEPT_ARTICLES", 2)
    kb = KnowledgeBase.open(str(DATA / "knowledge.jsonl"))
    found = EvidenceFinder(kb, load_section_scorer("bm25"))
    keys = [article["key"] for article in countries()[:4]]
    first = [found.first_section(key) for key in keys]
    assert len(found._articles) == 2 and [found.first_section(key) for key in keys] == first


def test_on_the_factbook_it_finds_the_sections_that_hold_the_answers():
    """The rows' own evidence is known: it is found for all of them."""
    kb = KnowledgeBase.open(str(DATA / "knowledge.jsonl"))
    found = EvidenceFinder(kb, load_section_scorer("bm25"))
    rows = [row for row in lines_of(DATA / "eval.jsonl") if row["split"] != "maps"]
    own = 0
    for row in rows:
        question = row["conversations"][0]["value"].replace("<image>\n", "")
        key, source = found.find(row["entity"], question, row["answers"])
        assert source == "alias"
        own += key == row["evidence"]
    assert len(rows) == 504 and own == 504
