import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.data.packed import Texts, places, sort_hashes, text_hash

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(st.lists(TEXT))
def test_texts_are_kept_in_order(texts):
    packed = Texts.of(texts)
    assert list(packed) == texts and len(packed) == len(texts)
    assert list(Texts(*packed.arrays)) == texts


def test_places_count_from_the_end_too():
    packed = Texts.of(["a", "", "é😀"])
    assert packed[-1] == "é😀" and packed[1] == ""
    with pytest.raises(IndexError):
        packed[3]
    with pytest.raises(UnicodeEncodeError):
        Texts.of(["\ud800"])


@given(st.lists(TEXT), TEXT)
def test_a_text_is_found_by_its_hash(texts, other):
    hashes, order = sort_hashes(text_hash(text) for text in texts)
    for text in {*texts, other}:
        assert [int(order[place]) for place in places(hashes, text)] == [
            i for i, one in enumerate(texts) if one == text
        ]


def test_a_hash_is_the_same_in_every_run():
    assert text_hash("a").to_bytes(8, "little").hex() == "40f89e395b66422f"  # printf a | b2sum -l 64
