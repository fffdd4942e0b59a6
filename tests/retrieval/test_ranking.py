"""From articles to passages, by hand-computed cases."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.ranking import Pool, gather, merge_images, rank


def pool(articles: list[str], visual: list[float], sections: list[int]) -> Pool:
    """Articles with so many sections each: "a#0", "a#1", ..."""
    owners = np.repeat(np.arange(len(articles)), sections)
    keys = [f"{article}#{i}" for article, number in zip(articles, sections, strict=True) for i in range(number)]
    return Pool(articles, np.array(visual, dtype=float), keys, keys, owners)


TWO = pool(["b", "a"], [0.9, 0.8], [2, 2])  # b#0, b#1, a#0, a#1
TEXT = np.array([0.0, 0.5, 1.0, 0.2])


@pytest.mark.parametrize(
    ("weight", "per_article", "top_k", "keys", "scores"),
    [
        # s of b#0, b#1, a#0, a#1 at λ = 0.5: .45, .7, .9, .5
        (0.5, 2, 9, ["a#0", "b#1", "a#1", "b#0"], [0.9, 0.7, 0.5, 0.45]),
        (0.5, 1, 9, ["a#0", "b#1"], [0.9, 0.7]),
        (0.5, 2, 3, ["a#0", "b#1", "a#1"], [0.9, 0.7, 0.5]),
        # at λ = 0.95: .855, .88, .81, .77
        (0.95, 1, 9, ["b#1", "a#0"], [0.88, 0.81]),
        # pictures alone: first sections, in the pictures' order
        (1.0, 1, 9, ["b#0", "a#0"], [0.9, 0.8]),
        (1.0, 2, 9, ["b#0", "b#1", "a#0", "a#1"], [0.9, 0.9, 0.8, 0.8]),
        # texts alone
        (0.0, 2, 9, ["a#0", "b#1", "a#1", "b#0"], [1.0, 0.5, 0.2, 0.0]),
    ],
)
def test_passages_by_hand(weight, per_article, top_k, keys, scores):
    found, values = rank(TWO, TEXT, weight=weight, sections_per_article=per_article, top_k=top_k)
    assert found == keys
    assert values == pytest.approx(scores)


def test_extremes_are_exact():
    visual = np.random.default_rng(0).random(4)
    text = np.random.default_rng(1).random(8)
    some = pool(list("dcba"), visual.tolist(), [2] * 4)
    limits = {"sections_per_article": 2, "top_k": 8}
    assert set(rank(some, text, weight=1, **limits)[1]) == set(visual.tolist())
    assert set(rank(some, text, weight=0, **limits)[1]) == set(text.tolist())


def test_ties_go_by_the_articles_key_then_by_the_sections_place():
    tied = pool(["c", "a", "b"], [0.5, 0.5, 0.5], [1, 12, 1])
    keys, _ = rank(tied, np.zeros(14), weight=0.5, sections_per_article=12, top_k=14)
    assert keys == [*(f"a#{i}" for i in range(12)), "b#0", "c#0"]  # "a#10" after "a#9"


def test_articles_without_sections():
    assert rank(pool([], [], []), np.zeros(0), weight=0.5, sections_per_article=1, top_k=5) == ([], [])
    some = pool(["a", "b"], [0.9, 0.1], [0, 1])
    assert rank(some, np.array([1.0]), weight=0.5, sections_per_article=1, top_k=5)[0] == ["b#0"]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_ranking_against_a_plain_sort(data):
    numbers = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    articles = data.draw(st.permutations([f"k{i}" for i in range(len(numbers))]))
    some = pool(
        articles,
        data.draw(st.lists(st.sampled_from([0, 0.25, 1]), min_size=len(numbers), max_size=len(numbers))),
        numbers,
    )
    total = sum(numbers)
    text = np.array(data.draw(st.lists(st.sampled_from([0, 0.5, 1]), min_size=total, max_size=total)))
    weight, per_article, top_k = (
        data.draw(st.sampled_from([0, 0.5, 1])),
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 9)),
    )

    def order(i: int):
        owner = some.owners[i]
        return -(weight * some.visual[owner] + (1 - weight) * text[i]), some.articles[owner], i

    plain, taken = [], {}
    for i in sorted(range(total), key=order):
        owner = int(some.owners[i])
        taken[owner] = taken.get(owner, 0) + 1
        if taken[owner] <= per_article:
            plain.append(some.keys[i])
    assert rank(some, text, weight=weight, sections_per_article=per_article, top_k=top_k)[0] == plain[:top_k]


def test_an_article_counts_with_the_image_that_it_fits_best():
    found = [(["a", "b"], [0.9, 0.2]), (["b", "c"], [0.95, 0.9])]
    assert merge_images(found, 3) == (["b", "a", "c"], [0.95, 0.9, 0.9])  # a before c: equal, by key
    assert merge_images(found, 2) == (["b", "a"], [0.95, 0.9])
    assert merge_images(found[:1], 5) == found[0]


def test_sections_of_articles(tmp_path):
    articles = [
        {
            "key": "fox",
            "title": "Fox",
            "sections": [{"id": 0, "title": "", "text": "A fox."}, {"id": 1, "title": "Diet", "text": "Mice."}],
        },
        {"key": "owl", "title": "Owl", "sections": [{"id": "x", "title": "Empty", "text": "  "}]},
        {"key": "bare", "title": "Bare"},
    ]
    path = tmp_path / "kb.jsonl"
    path.write_text("".join(json.dumps(article) + "\n" for article in articles))
    kb = KnowledgeBase.open(str(path))
    some = gather(kb, ["owl", "fox", "bare"], [0.9, 0.8, 0.7])
    assert some.keys == ["fox#0", "fox#1"]
    assert some.texts == ["A fox.", "Diet\nMice."]
    assert some.owners.tolist() == [1, 1]
    with pytest.raises(InputError, match="no article 'wolf'"):
        gather(kb, ["wolf"], [1.0])
