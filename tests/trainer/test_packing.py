"""Packed rows: what stands where, checked by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.trainer.packing import IGNORED, Prompt, pack, packs
from open_r1_kivqa.trainer.prefix_attention import PackedLayout, PromptLayout
from open_r1_kivqa.trainer.shared_prefix import equal_rows, shuffle_groups


def prompt(ids, rows=(), completions=(), images=None, first=0) -> Prompt:
    ids = torch.tensor(ids)
    positions = (first + torch.arange(len(ids)))[None]
    return Prompt(ids, positions, tuple(rows), tuple(map(torch.tensor, completions)), images or {})


def test_a_prompt_stands_once_and_each_branch_begins_with_its_last_token():
    """Two completions of [1, 2, 3]; then a prompt of one token whose completion is empty."""
    done = pack(
        [prompt([1, 2, 3], [4, 0], [[10, 11, 12], [20]]), prompt([7], [2], [torch.zeros(0, dtype=torch.long).tolist()])]
    )
    n = IGNORED
    assert done.inputs["input_ids"].tolist() == [[1, 2, 3, 10, 11, 3, 7]]
    assert done.inputs["shift_labels"].tolist() == [[n, n, 10, 11, 12, 20, n]]
    assert done.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 0]]
    assert done.inputs["shared_prefix"].prompts == (PromptLayout(0, 2, (3, 1)), PromptLayout(6, 0, (1,)))
    assert (done.rows.tolist(), done.columns.tolist()) == ([4, 4, 4, 0], [0, 1, 2, 0])
    assert done.places.tolist() == [2, 3, 4, 5]


def test_images_stand_in_the_order_of_their_prompts_and_a_prompt_may_be_run_alone():
    one, two = ({"pixel_values": torch.full((2, 3), value)} for value in (1.0, 2.0))
    done = pack([prompt([1, 2], [0], [[5]], one), prompt([3], [1], [[6]]), prompt([8, 9], images=two)])
    assert done.inputs["input_ids"].tolist() == [[1, 2, 3, 8, 9]]
    assert done.inputs["pixel_values"][:, 0].tolist() == [1, 1, 2, 2]
    assert done.inputs["shared_prefix"].prompts[-1] == PromptLayout(3, 2, ())
    assert done.places.tolist() == [1, 2]


def test_several_axes_of_positions_are_kept():
    ids, axes = torch.tensor([1, 2, 3]), torch.tensor([[0, 5, 6], [0, 1, 6]])
    done = pack([Prompt(ids, axes, (0, 1), (torch.tensor([4, 5]), torch.tensor([6])), {})])
    assert done.inputs["position_ids"].tolist() == [[[0, 5, 6, 7, 6]], [[0, 1, 6, 7, 6]]]


def test_packs_hold_as_many_tokens_as_the_budget_and_cut_long_groups():
    group = prompt([1, 2, 3, 4], [0, 1, 2], [[5, 5], [6, 6], [7, 7]])  # 3 shared and 2 for each completion: 9
    small = prompt([1, 2], [3], [[5]])  # 1 shared and 1: 2
    assert group.length == 9 and small.length == 2
    assert [[one.rows for one in part] for part in packs([group, small], None)] == [[(0, 1, 2), (3,)]]
    assert [[one.rows for one in part] for part in packs([small, group], 9)] == [[(3,)], [(0, 1, 2)]]
    assert [[one.rows for one in part] for part in packs([group, small], 7)] == [[(0, 1)], [(2,), (3,)]]
    assert [[one.rows for one in part] for part in packs([group], 1)] == [[(0,)], [(1,)], [(2,)]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 6), min_size=1, max_size=5)), min_size=1),
    st.integers(1, 40),
)
def test_every_row_is_in_one_pack_and_packs_keep_the_budget(shapes, budget):
    prompts, row = [], 0
    for length, completions in shapes:
        rows = range(row, row := row + len(completions))
        prompts.append(prompt(list(range(length)), rows, [[1] * one for one in completions]))
    parts = packs(prompts, budget)
    assert [i for part in parts for one in part for i in one.rows] == list(range(row))
    for part in parts:
        assert sum(one.length for one in part) <= budget or (len(part) == 1 and len(part[0].rows) == 1)
        assert sum(one.length for one in part) == pack(part).inputs["input_ids"].size(1)


def test_segments_give_each_branch_its_prompt_and_itself():
    """As flash attention takes them: queries in the row's order, keys with the shared ones once more for each branch."""
    segments = PackedLayout((PromptLayout(0, 2, (2, 1)), PromptLayout(5, 0, (2,))), torch.device("cpu")).segments
    assert segments["cu_seq_lens_q"].tolist() == [0, 2, 4, 5, 7]
    assert segments["cu_seq_lens_k"].tolist() == [0, 2, 6, 9, 11]
    assert segments["key_places"].tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 4, 5, 6]
    assert (segments["max_length_q"], segments["max_length_k"]) == (2, 4)


def test_rows_are_equal_by_tokens_and_by_pixels():
    ids = [torch.tensor(one) for one in ([1, 2], [1, 2], [1, 2], [1], [1, 2])]
    pictures = [{"pixel_values": torch.full((1, 2), value)} for value in (0.0, 1.0, 0.0)] + [{}, {}]
    assert equal_rows(ids, pictures) == [[0, 2], [1], [3], [4]]


@pytest.mark.parametrize(("first", "units"), [(0, [[0, 1, 2], [3, 4, 5]]), (2, [[0], [1, 2, 3], [4, 5]])])
def test_groups_are_shuffled_whole(first, units):
    """On a rank whose rows begin at the third of the batch, a group of 3 has begun on the rank before."""
    torch.manual_seed(0)
    seen = set()
    for _ in range(50):
        batch = {"prompt_ids": torch.arange(6), "names": list("abcdef"), "number": torch.tensor(3), "none": None}
        done = shuffle_groups(batch, 3, first)
        order = done["prompt_ids"].tolist()
        assert done["names"] == ["abcdef"[i] for i in order] and done["number"] == 3 and done["none"] is None
        seen.add(tuple(order))
        left = list(order)
        while left:
            unit = next(unit for unit in units if left[0] == unit[0])
            assert left[: len(unit)] == unit
            left = left[len(unit) :]
    assert len(seen) == {2: 2, 3: 6}[len(units)]
