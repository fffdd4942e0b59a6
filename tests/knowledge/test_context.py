"""Passages at a level: which, how many, in which order, and that only (seed, id, draw) decides."""

import json
import subprocess
import sys

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.context import check_level, choose_passages


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("kb") / "kb.jsonl"
    articles = [{"key": key, "title": key, "sections": [{"id": "0", "title": "", "text": key}]} for key in "abcdefgh"]
    path.write_text("\n".join(json.dumps(article) for article in articles))
    return KnowledgeBase.open(str(path))


def keys(letters):
    return [f"{letter}#0" for letter in letters]


def sample(candidates=None, evidence="", id="q"):
    row = {"id": id, "conversations": [{"from": "human", "value": "?"}]}
    if candidates is not None:
        row["candidates"] = keys(candidates) if isinstance(candidates, str) else [keys(one) for one in candidates]
    if evidence:
        row["evidence"] = keys(evidence)
    return parse_row(row, image_folder="", reward_method="", source="rows.jsonl:4")


def shown(kb, sample, level, num_passages=5, seed=0, draw=None):
    passages = choose_passages(sample, kb, level=level, num_passages=num_passages, seed=seed, draw=draw)
    return "".join(passage.title for passage in passages)


@pytest.mark.parametrize(
    ("level", "num_passages", "expected"),
    [
        ("retrieved", 3, "abc"),
        ("retrieved", 9, "abcdef"),
        ("gold", 1, "ch"),
        ("gold_removed", 3, "ab"),
        ("gold_removed", 9, "abdef"),
        ("none", 3, ""),
    ],
)
def test_named_levels_keep_the_order(kb, level, num_passages, expected):
    for draw in (None, 0, 1):
        assert shown(kb, sample("abcdef", "ch"), level, num_passages, draw=draw) == expected


@pytest.mark.parametrize(
    ("level", "expected"), [("1", "ch"), ("2", "ch"), ("3", "ach"), ("5", "abcdh"), ("9", "abcdefh")]
)
def test_numbered_levels_take_every_gold_passage_and_the_best_others(kb, level, expected):
    for draw in (None, 0, 1, 2):
        assert "".join(sorted(shown(kb, sample("abcdef", "ch"), level, num_passages=1, draw=draw))) == expected


def test_without_candidates_or_evidence(kb):
    assert shown(kb, sample(), "3") == shown(kb, sample(), "retrieved") == shown(kb, sample(), "gold") == ""
    assert shown(kb, sample(evidence="a"), "3") == shown(kb, sample(evidence="a"), "gold") == "a"
    assert shown(kb, sample(evidence="a"), "retrieved") == ""
    assert sorted(shown(kb, sample("abc"), "2")) == ["a", "b"]
    assert shown(None, sample("abc", "a"), "retrieved") == ""


def test_a_redraw_shows_another_order_and_set(kb):
    one_set = sample("abcdefgh", "c")
    orders = [shown(kb, one_set, "8", draw=draw) for draw in range(50)]
    assert len(set(orders)) == 50
    assert {order.index("c") for order in orders} == set(range(8))  # the gold passage stands everywhere
    several = sample(["abc", "bcd", "cde"], "c")
    assert {shown(kb, several, "retrieved", draw=draw) for draw in range(30)} == {"abc", "bcd", "cde"}
    assert shown(kb, several, "retrieved") == "abc"  # evaluation takes the first
    assert {shown(kb, one_set, "8", seed=seed) for seed in range(3)} != {shown(kb, one_set, "8")}
    assert shown(kb, one_set, "8") != shown(kb, sample("abcdefgh", "c", id="other"), "8")


def test_the_same_draw_is_the_same_in_another_process(kb):
    here = [shown(kb, sample(["abcdefgh", "hgfedcba"], "c"), "6", seed=3, draw=draw) for draw in range(5)]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_context as t;"
        "kb = t.KnowledgeBase.open(sys.argv[2]);"
        "print([t.shown(kb, t.sample(['abcdefgh', 'hgfedcba'], 'c'), '6', seed=3, draw=draw) for draw in range(5)])"
    )
    folder = __file__.rpartition("/")[0]
    there = subprocess.run([sys.executable, "-c", code, folder, kb.path], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)


def test_the_order_of_a_draw_never_changes(kb):
    """Golden: a change here changes every run's prompts."""
    assert [shown(kb, sample("abcdefgh", "c"), "5", draw=draw) for draw in (None, 0, 1)] == ["cebda", "edcab", "cebad"]


@pytest.mark.parametrize("level", ["0", "-1", "1.5", "²", "", "all", "Gold"])
def test_unknown_levels_are_refused(kb, level):
    with pytest.raises(InputError, match="Passage level .* is not known; use retrieved, gold"):
        shown(kb, sample("abc"), level)
    with pytest.raises(InputError, match="not known"):
        check_level(level)


def test_other_faults_name_their_place(kb):
    with pytest.raises(InputError, match="rows.jsonl:4: .*kb.jsonl has no passage 'z#0'"):
        shown(kb, sample("az"), "retrieved")
    with pytest.raises(InputError, match="number of passages is 0"):
        shown(kb, sample("a"), "retrieved", num_passages=0)
