"""What levels show of a row, counted without a knowledge base: the same as what prompts get with one."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.curriculum.shown import look
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.context import choose_passages

LETTERS = "abcdef"
LEVELS = ("1", "2", "3", "7", "gold", "gold_removed", "none", "retrieved")


def keys(letters):
    return [f"{letter}#0" for letter in letters]


def open_rows(folder, *files):
    """`files`: lists of rows, (evidence, candidate sets, question type) each."""
    paths = []
    for number, rows in enumerate(files):
        path = Path(folder) / f"{number}.jsonl"
        lines = []
        for i, (evidence, sets, question_type) in enumerate(rows):
            row = {"id": f"{number}-{i}", "conversations": [{"from": "human", "value": "?"}]}
            row |= {"evidence": keys(evidence), "candidates": [keys(one) for one in sets]}
            lines.append(json.dumps(row | ({"question_type": question_type} if question_type else {})))
        path.write_text("\n".join(lines))
        paths.append(str(path))
    return Rows.open(paths, [], None)


def test_by_hand(tmp_path):
    rows = open_rows(
        tmp_path,
        [("a", ["abc"], "templated"), ("c", ["abc", "cab", "ade"], ""), ("ab", ["ba"], "2_hop")],
        [("", ["a"], "templated"), ("a", [], "")],
    )
    shown = look(rows, LEVELS, num_passages=2)
    assert shown.hit_share.dtype == np.float32
    share = dict(zip(LEVELS, shown.hit_share.round(4).tolist(), strict=True))
    always = [1, 1, 1, 1, 1]
    assert share["1"] == share["2"] == share["3"] == share["7"] == share["gold"] == always
    assert share["gold_removed"] == share["none"] == [0, 0, 0, 1, 0]
    assert share["retrieved"] == [1, pytest.approx(1 / 3, abs=1e-4), 1, 1, 0]
    few = dict(zip(LEVELS, shown.too_few.tolist(), strict=True))
    assert few == {"1": 0, "2": 2, "3": 3, "7": 5, "gold": 0, "gold_removed": 0, "none": 0, "retrieved": 2}
    assert shown.no_evidence == 1
    assert shown.files.tolist() == [0, 0, 0, 1, 1]
    assert shown.file_names == (str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl"))
    assert shown.question_types.tolist() == [0, 1, 2, 0, 1]
    assert shown.question_type_names == ("templated", "", "2_hop")


def test_codes_follow_the_first_appearance(tmp_path):
    rows = open_rows(tmp_path, [("a", ["a"], "x")], [("a", ["a"], "y"), ("a", ["a"], "")]).subset([2, 0, 1])
    shown = look(rows, ["1"], num_passages=1)
    assert shown.files.tolist() == [0, 1, 0]
    assert [Path(name).name for name in shown.file_names] == ["1.jsonl", "0.jsonl"]
    assert shown.question_type_names == ("", "x", "y")


def test_without_a_knowledge_base_nothing_can_lack(tmp_path):
    shown = look(open_rows(tmp_path, [("a", ["b"], "x"), ("", [], "")]), LEVELS, 5, knowledge_base=False)
    assert shown.hit_share.shape == (len(LEVELS), 2) and (shown.hit_share == 1).all()
    assert shown.too_few.tolist() == [0] * len(LEVELS)
    assert (shown.no_evidence, shown.question_types.tolist()) == (1, [0, 1])


def test_a_row_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "conversations": []}')
    with pytest.raises(InputError, match="rows.jsonl:1"):
        look(Rows.open([str(path)], [], None), ["1"], 5)


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("kb") / "kb.jsonl"
    articles = [{"key": key, "title": key, "sections": [{"id": "0", "title": "", "text": key}]} for key in LETTERS]
    path.write_text("\n".join(json.dumps(article) for article in articles))
    return KnowledgeBase.open(str(path))


def some(least, most):
    return st.lists(st.sampled_from(LETTERS), min_size=least, max_size=most, unique=True)


ROWS = st.tuples(some(0, 3), st.lists(some(1, 6), max_size=3), st.just(""))


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(1, 4))
def test_agrees_with_the_passages_of_prompts(kb, entries, num_passages):
    with tempfile.TemporaryDirectory() as folder:
        rows = open_rows(folder, entries)
        shown = look(rows, LEVELS, num_passages)
        samples = list(rows)
    for number, level in enumerate(LEVELS):
        asked = int(level) if level.isdecimal() else {"retrieved": num_passages}.get(level, 0)
        few = 0
        for i, sample in enumerate(samples):
            hits, sizes = [], []
            for one in sample.candidates or ((),):  # a draw takes one of the sets, each as likely
                alone = replace(sample, candidates=(one,) if one else ())
                passages = choose_passages(alone, kb, level=level, num_passages=num_passages, seed=0, draw=3)
                hits.append(set(sample.evidence) <= {passage.key for passage in passages})
                sizes.append(len(passages))
            assert shown.hit_share[number, i] == pytest.approx(np.mean(hits))
            few += min(sizes) < asked
        assert shown.too_few[number] == few


def test_every_candidate_set_is_shown_by_some_draw(tmp_path, kb):
    """So the share of sets is the share of draws in the long run."""
    rows = open_rows(tmp_path, [("c", ["abc", "cab", "ade", "def"], "")])
    share = look(rows, ["retrieved"], num_passages=1).hit_share[0, 0]
    hits = [
        choose_passages(rows[0], kb, level="retrieved", num_passages=1, seed=0, draw=draw)[0].key == "c#0"
        for draw in range(4000)
    ]
    assert share == 0.25
    assert np.mean(hits) == pytest.approx(0.25, abs=0.03)
