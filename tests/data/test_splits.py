"""Held-out rows share no entity and no image with training rows."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.data.splits import _closest_sum, train_validation_split
from open_r1_kivqa.errors import InputError


@pytest.fixture
def rows(tmp_path):
    def rows(pairs):
        """Rows from (entity, images) pairs."""
        path = tmp_path / "rows.jsonl"
        turns = [{"from": "human", "value": "?"}]
        records = [
            {"id": i, "entity": entity, "image": images, "conversations": turns}
            for i, (entity, images) in enumerate(pairs)
        ]
        path.write_text("\n".join(json.dumps(record) for record in records))
        return Rows.open([str(path)], [str(tmp_path)], None)

    return rows


def test_rows_that_share_an_entity_or_an_image_stay_together(rows):
    # a - b by image 2, b - c by entity: one group of four; rows without either stand alone
    data = rows([("a", ["1"]), ("a", ["2"]), ("b", ["2"]), ("b", ["3"]), ("c", ["4"]), (None, []), (None, ["5"])])
    for seed in range(20):
        train, validation = train_validation_split(data, 3 / 7, seed)
        assert sorted(train + validation) == list(range(7))
        assert validation == [4, 5, 6]
        assert train_validation_split(data, 4 / 7, seed)[1] == [0, 1, 2, 3]


def test_the_seed_decides_and_the_ratio_is_met(rows):
    data = rows([(f"e{i // 2}", [f"{i}"]) for i in range(200)])
    splits = [train_validation_split(data, 0.1, seed) for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    for train, validation in splits:
        assert len(validation) == 20
        assert not {i // 2 for i in train} & {i // 2 for i in validation}


def test_a_small_ratio_still_gives_a_row_and_zero_gives_none(rows):
    data = rows([(None, [])] * 5)
    assert len(train_validation_split(data, 0.01, 0)[1]) == 1
    assert train_validation_split(data, 0, 0) == ([0, 1, 2, 3, 4], [])
    assert len(train_validation_split(data, 0.99, 0)[0]) == 1


def test_what_cannot_be_split_is_refused(rows):
    data = rows([("a", ["1"]), ("a", ["2"])])
    with pytest.raises(InputError, match="All 2 rows hang together"):
        train_validation_split(data, 0.5, 0)
    for ratio in (-0.1, 1):
        with pytest.raises(InputError, match="give a number from 0"):
            train_validation_split(data, ratio, 0)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(1, 60))
def test_no_other_choice_of_groups_comes_closer(sizes, target):
    chosen = _closest_sum(np.array(sizes), target)
    assert len(set(chosen)) == len(chosen) and 0 < len(chosen) < len(sizes)
    parts = [part for number in range(1, len(sizes)) for part in combinations(sizes, number)]
    assert abs(sum(sizes[i] for i in chosen) - target) == min(abs(sum(part) - target) for part in parts)
