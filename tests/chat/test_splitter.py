import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.chat.splitter import TAGS, Splitter, split

# Whole tags, parts of tags and white space, so that most texts have something to go wrong.
WORDS = st.sampled_from([*TAGS, "<", "</", "<thin", "k>", "answer>", "<answers>", "Paris", "a < b", " ", "\n", "é"])
TEXTS = st.lists(WORDS, max_size=12).map("".join)


def in_chunks(text: str, cuts: list[int], thinking: bool) -> list:
    """The sections, as they come out of chunks that end at these places."""
    splitter = Splitter(thinking=thinking)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    pieces, start = [], 0
    for end in ends:
        pieces += splitter.feed(text[start:end])
        start = end
    pieces += splitter.end()
    sections = {}
    for section, kind, piece in pieces:
        assert piece
        sections[section] = (kind, sections.get(section, (kind, ""))[1] + piece)
    return [(section, kind, text) for section, (kind, text) in sections.items()]


@given(TEXTS, st.lists(st.integers(0, 60)), st.booleans())
def test_any_chunks_give_the_same_sections(text, cuts, thinking):
    assert in_chunks(text, cuts, thinking) == split(text, thinking=thinking)
    assert in_chunks(text, list(range(len(text))), thinking) == split(text, thinking=thinking)


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("<think>\nA flag.\n</think>\n<answer>\nParis\n</answer>\n", [("thinking", "A flag."), ("answer", "Paris")]),
        ("Just Paris.", [("text", "Just Paris.")]),
        ("<think>never closed", [("thinking", "never closed")]),
        ("<think>a</think><answer>never closed", [("thinking", "a"), ("answer", "never closed")]),
        ("opened by the prompt</think><answer>b</answer>", [("text", "opened by the prompt"), ("answer", "b")]),
        (
            "<think>a <answer>b</answer> c</think>d",
            [("thinking", "a"), ("answer", "b"), ("thinking", "c"), ("text", "d")],
        ),
        ("<think>a <answer>b</think>c", [("thinking", "a"), ("answer", "b"), ("text", "c")]),
        ("<answer>a</answer><answer>b</answer>", [("answer", "a"), ("answer", "b")]),
        ("<think></think><answer> </answer>", []),
        ("1 < 2 <b>x</b> <thinking> </answer", [("text", "1 < 2 <b>x</b> <thinking> </answer")]),
    ],
)
def test_sections(text, sections):
    assert [(piece.kind, piece.text) for piece in split(text)] == sections


def test_a_reply_may_begin_inside_thinking():
    assert [piece.kind for piece in split("a</think>b", thinking=True)] == ["thinking", "text"]


def test_text_is_given_as_soon_as_it_is_certain():
    splitter = Splitter()
    given = [
        [piece.text for piece in splitter.feed(chunk)] for chunk in ("<th", "ink>a fl", "ag \n", "<", " b </thi", "nk>")
    ]
    assert given == [[], ["a fl"], ["ag"], [], [" \n< b"], []]
