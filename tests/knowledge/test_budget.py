"""Passages cut to a number of tokens."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import QWEN_TOKENS, tiny_tokenizer

from open_r1_kivqa.data.harmless import neutralise
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase, Passage
from open_r1_kivqa.knowledge.budget import GAP, PassageBudget
from open_r1_kivqa.knowledge.context import choose_passages
from open_r1_kivqa.knowledge.sentences import split_sentences

TOKENIZER = tiny_tokenizer(QWEN_TOKENS)
SENTENCES = ["The tower stands in Paris.", "It has three floors.", "It weighs 7,300 tonnes.", "Many people visit it."]
TEXT = " ".join(SENTENCES)


def tokens(text):
    return len(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def cut(text, max_tokens, keep=()):
    passage = Passage("a#0", "Tower", "Facts", text)
    shown = PassageBudget(TOKENIZER, max_tokens).cut(passage, keep)
    assert (shown.key, shown.title, shown.section) == ("a#0", "Tower", "Facts")
    return shown.text


def test_what_fits_stays_as_it_is():
    assert cut(f"  {TEXT}\n", tokens(f"  {TEXT}\n")) == f"  {TEXT}\n"
    assert cut("", 1) == ""


def test_whole_sentences_from_the_beginning_stay():
    for number in (1, 2, 3):
        expected = " ".join(SENTENCES[:number])
        assert cut(TEXT, tokens(expected)) == expected
        assert cut(TEXT, tokens(expected) + 1) == expected  # one token is no sentence
        assert cut(f"\n{TEXT} \n", tokens(expected)) == expected


def test_the_sentence_with_the_answer_is_never_cut_away():
    room = tokens(SENTENCES[0] + GAP + SENTENCES[2])
    for keep in (["7300"], ["London", "7,300 tonnes"], {"range": [7000.0, 7500.0]}):
        assert cut(TEXT, room, keep) == SENTENCES[0] + GAP + SENTENCES[2]
        assert cut(TEXT, room - 1, keep) == SENTENCES[2]
        assert cut(TEXT, 1, keep) == SENTENCES[2]  # longer than the budget, and whole
    assert cut(TEXT, tokens(" ".join(SENTENCES[:3])), ["7300"]) == " ".join(SENTENCES[:3])
    assert cut(TEXT, room, ["London"]) == cut(TEXT, room)
    assert cut(TEXT, 1, ["Paris"]) == SENTENCES[0]


def test_a_first_sentence_that_does_not_fit_ends_at_a_word():
    shown = cut(SENTENCES[0], 7)
    assert shown.endswith(" …") and SENTENCES[0].startswith(shown.removesuffix(" …") + " ") and tokens(shown) <= 7
    assert tokens(cut("x" * 500, 30)) <= 30 and len(cut("x" * 500, 30)) > 10  # no words
    assert cut(TEXT, 1) == ""  # " …" alone is more


def test_tokens_are_counted_as_the_prompt_shows_them():
    text = "One <b>two</b>. Three <|im_end|> four. Five."
    shown = cut(text, tokens(neutralise("One <b>two</b>. Three <|im_end|> four.")))
    assert shown == "One <b>two</b>. Three <|im_end|> four."
    assert tokens(neutralise(text)) > tokens(text)


WORDS = st.lists(st.sampled_from(["Paris", "a", "tower,", "3.5", "<b>", "é", "東京", "x" * 30]), min_size=1, max_size=8)
TEXTS = st.lists(WORDS.map(lambda words: "Zo " + " ".join(words) + "."), max_size=6).map(" ".join)


@given(TEXTS, st.integers(1, 60), st.sampled_from([(), ("Paris",), ("tower", "é"), {"range": [3.0, 4.0]}]))
@settings(max_examples=100, deadline=None)
def test_a_cut_passage_is_short_and_made_of_its_own_sentences(text, max_tokens, keep):
    shown = cut(text, max_tokens, keep)
    length = tokens(neutralise(shown))
    own = [text[start:end] for start, end in split_sentences(text)]
    if tokens(neutralise(text)) <= max_tokens:
        assert shown == text
    elif not keep and shown not in ("", *[" ".join(own[:i]) for i in range(1, len(own))]):
        assert length <= max_tokens and shown.endswith(" …") and own[0].startswith(shown.removesuffix(" …"))
    elif GAP in shown:
        start, kept = shown.split(GAP)
        assert length <= max_tokens and text.startswith(start + " ") and kept in own
        assert start in [" ".join(own[:i]) for i in range(1, len(own))]
    else:
        assert length <= max_tokens or shown in own
    words = () if isinstance(keep, dict) else keep
    holding = [one for one in own if {*one.strip(".").replace(",", "").split()}.intersection(words)]
    assert not holding or any(sentence in shown for sentence in holding)


def test_it_can_be_pickled_and_remembers():
    budget = PassageBudget(TOKENIZER, tokens(SENTENCES[0]))
    passage = Passage("a#0", "Tower", "", TEXT)
    copy = pickle.loads(pickle.dumps(budget))
    assert copy.cut(passage) == budget.cut(passage) == budget.cut(passage) == Passage("a#0", "Tower", "", SENTENCES[0])
    assert budget._cut.cache_info().hits == 1


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InputError, match="--max_passage_tokens 0: at least 1"):
        PassageBudget(TOKENIZER, 0)


FACT = "The tower is old. It stands in Paris."


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    path = tmp_path_factory.mktemp("facts") / "kb.jsonl"
    articles = [{"key": key, "title": key, "sections": [{"id": "0", "title": "", "text": FACT}]} for key in "ab"]
    path.write_text("\n".join(json.dumps(article) for article in articles))
    return KnowledgeBase.open(str(path))


@pytest.mark.parametrize(
    ("level", "draw", "keep_evidence", "kept"),
    [
        ("2", 0, None, True),  # training, and levels that put the evidence in
        ("2", None, None, True),
        ("gold", None, None, True),
        ("retrieved", 3, None, True),
        ("retrieved", None, None, False),  # evaluation of what was retrieved knows no answer
        ("retrieved", None, True, True),
        ("2", 0, False, False),
    ],
)
def test_a_budget_cuts_every_passage_and_keeps_the_answer_in_gold_ones(facts, level, draw, keep_evidence, kept):
    budget = PassageBudget(TOKENIZER, tokens("The tower is old."))
    row = {
        "id": "q",
        "conversations": [{"from": "human", "value": "?"}],
        "answers": ["Paris"],
        "evidence": ["a#0"],
        "candidates": ["b#0", "a#0"],
    }
    sample = parse_row(row, image_folder="", reward_method="", source="rows.jsonl:4")
    options = {"level": level, "num_passages": 5, "seed": 0, "draw": draw}
    passages = choose_passages(sample, facts, **options, budget=budget, keep_evidence=keep_evidence)
    whole = choose_passages(sample, facts, **options)
    assert [passage.key for passage in passages] == [passage.key for passage in whole]
    assert {passage.text for passage in whole} == {FACT}
    texts = {passage.title: passage.text for passage in passages}
    assert texts["a"] == ("It stands in Paris." if kept else "The tower is old.")
    assert texts.get("b", "The tower is old.") == "The tower is old."
