"""Recall by hand: ranks of a question, shares over questions."""

import pytest

from open_r1_kivqa.retrieval.recall import Recall, judge

DEPTHS = {"pictures": 20, "article": 20, "passage": 20, "passage_all": 20, "weak": 20}


def ranks(**given) -> dict:
    fields = {"split": "val", "entity": "fox", "evidence": ("fox#1",), "weak": False, "articles": ["owl", "fox"]}
    fields |= {"passages": ["owl#0", "fox#0", "fox#1"], **given}
    return judge(**fields)


def test_ranks_of_a_question():
    assert ranks() == {"split": "val", "pictures": 2, "article": 2, "passage": 3}
    assert ranks(articles=["owl"], passages=["owl#0"]) == {"split": "val", "pictures": 0, "article": 0, "passage": 0}
    assert ranks(articles=[], passages=[]) == {"split": "val", "pictures": 0, "article": 0, "passage": 0}


def test_gold_that_is_unknown_is_not_counted():
    assert ranks(entity=None, evidence=()) == {"split": "val"}
    assert ranks(evidence=()) == {"split": "val", "pictures": 2, "article": 2}
    assert ranks(entity=None) == ranks()  # the article of the evidence


def test_a_question_that_needs_several_passages():
    several = {"evidence": ("fox#1", "owl#0"), "entity": "fox"}
    assert ranks(**several) == {"split": "val", "pictures": 2, "article": 2, "passage": 1, "passage_all": 3}
    assert ranks(**several, passages=["owl#0", "fox#0"])["passage"] == 1
    assert ranks(**several, passages=["owl#0", "fox#0"])["passage_all"] == 0


def test_weak_evidence_is_counted_apart():
    assert ranks(weak=True) == {"split": "val", "pictures": 2, "article": 2, "weak": 3}
    assert "passage_all" not in ranks(weak=True, evidence=("fox#1", "owl#0"))


def test_passages_given_without_articles():
    assert ranks(articles=None) == {"split": "val", "article": 2, "passage": 3}


def test_an_article_key_that_holds_a_hash():
    assert ranks(entity="c#", evidence=("c##0",), articles=["c#"], passages=["c##0"]) == {
        "split": "val",
        "pictures": 1,
        "article": 1,
        "passage": 1,
    }


def test_shares_over_questions():
    recall = Recall(DEPTHS)
    for split, rank in (("a", 1), ("a", 5), ("a", 0), ("b", 20)):
        recall.add({"split": split, "passage": rank})
    assert recall.to_json() == {
        "passage": {
            "a": {"questions": 3, "R@1": 33.33, "R@5": 66.67, "R@10": 66.67, "R@20": 66.67},
            "b": {"questions": 1, "R@1": 0, "R@5": 0, "R@10": 0, "R@20": 100},
            "all": {"questions": 4, "R@1": 25, "R@5": 50, "R@10": 50, "R@20": 75},
        }
    }
    assert recall.at("passage", 5) == 50
    assert recall.at("article", 5) is None
    assert recall.lines() == [
        "recall in % questions      @1      @5     @10     @20",
        "passage",
        "  a                 3    33.3    66.7    66.7    66.7",
        "  b                 1     0.0     0.0     0.0   100.0",
        "  all               4    25.0    50.0    50.0    75.0",
    ]


def test_no_figure_beyond_the_depth_that_was_looked_at():
    recall = Recall({**DEPTHS, "passage": 5})
    recall.add({"split": "", "passage": 5})
    assert recall.to_json()["passage"]["all"] == {"questions": 1, "R@1": 0, "R@5": 100}
    assert recall.lines()[-1].split() == ["(no", "split)", "1", "0.0", "100.0", "-", "-"]
    assert recall.at("passage", 10) is None


def test_without_gold_there_is_no_table():
    recall = Recall(DEPTHS)
    recall.add(judge(split="", entity=None, evidence=(), weak=False, articles=["a"], passages=["a#0"]))
    assert recall.to_json() == {}
    assert recall.lines() == ["No row names its article or evidence, so there is no recall to count."]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_rows_plays_no_part(order):
    recall = Recall(DEPTHS)
    for rank, split in [(1, "b"), (0, "a"), (7, "c")][::order]:
        recall.add({"split": split, "pictures": rank})
    assert list(recall.to_json()["pictures"]) == ["a", "b", "c", "all"]
    assert recall.at("pictures", 10) == pytest.approx(200 / 3)
