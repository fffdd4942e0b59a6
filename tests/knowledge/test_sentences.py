"""Where sentences end, and which of them holds an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.knowledge.sentences import find_evidence, split_sentences


def parts(text):
    return [text[start:end] for start, end in split_sentences(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It is 330 m high.", "Dr. J. R. Smith built it in 3.5 years!", "Why?", "“Nobody knows.”", "The end"],
        ["St. Louis lies e.g. in Missouri.", "It (see No. 5) has 300,000 people."],
        ["He said no.", "Yahoo! is a company.", "The U.S. Army came ca. 1900 to Mt. Everest."],
        ["第一句。", "第二句！", "第三句"],
        ["Так было.", "Потом стало иначе…", "Конец."],
        ["- a list", "- of lines", "ends."],
        [],
    ],
)
def test_sentences_end_where_people_see_it(sentences):
    lines = "\n" if sentences[:1] == ["- a list"] else " "
    assert parts(lines.join(sentences)) == sentences
    assert parts(f" {lines.join(sentences)}\n\n ") == sentences


@given(st.text(alphabet='aB1.!?…。\n "”)é', max_size=60))
def test_nothing_but_white_space_lies_between_sentences(text):
    spans = split_sentences(text)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)


TEXT = (
    "The tower stands in Paris. Gustave Eiffel's firm built it. It has 3 floors and weighs 7,300 tonnes. "
    "Its league is the Serie A in spring. Dr. Who lived in the capital of Peru. Lima is old. It is Élysée's neighbour."
)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("paris",), 0),
        (("London", "The Eiffel"), 1),
        (("EIFFEL FIRM",), 1),
        (("7300",), 2),
        (("7300 t",), 2),  # by its number
        (("Serie A",), 3),
        (("elysee",), 6),
        (("spring&&league&&Peru",), 3),  # two of the three
        (("tow",), None),  # whole words
        (("Rome", "&&"), None),
        ((7000.0, 8000.0), 2),
        ((3.0, 3.0), 2),
        ((8.0, 9.0), None),
        ((), None),
    ],
)
def test_the_sentence_with_the_answer(answers, expected):
    spans = tuple(split_sentences(TEXT))
    assert find_evidence(TEXT, spans, answers) == (None if expected is None else (expected, expected))


def test_an_answer_across_two_sentences():
    spans = tuple(split_sentences(TEXT))
    assert find_evidence(TEXT, spans, ("Peru. Lima",)) == (4, 5)
