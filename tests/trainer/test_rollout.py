import pytest
from training_rows import write_data

from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.trainer.rollout import Rollout, row_dataset


@pytest.fixture
def rollout(tmp_path):
    flags = write_data(tmp_path / "data")

    def make(**options):
        rows = Rows.open([flags["data_file_paths"]], [flags["image_folders"]], None)
        knowledge = KnowledgeBase.open(flags["knowledge_base"])
        return Rollout(rows, Prompting(load_template("kivqa"), seed=1, kb=knowledge, **options))

    return make


def entries(*numbers):
    return [{"row": number} for number in numbers]


def test_dataset_holds_row_numbers_only(rollout):
    dataset = row_dataset(rollout().rows)
    assert dataset.column_names == ["row"] and dataset["row"][:] == list(range(8))


def test_all_rows_of_a_batch_have_the_same_keys_and_a_group_the_same_prompt(rollout):
    built = rollout().build(entries(0, 0, 2, 2), [0, 0, 2, 2])
    assert len({tuple(row) for row in built}) == 1
    assert built[0]["prompt"] == built[1]["prompt"]
    assert [row["sample_id"] for row in built] == ["france", "france", "italy", "italy"]
    assert built[0]["image_path"][0].endswith("France-0.png") and built[2]["image_path"] == []


def test_a_row_counts_as_drawn_once_a_batch_on_every_rank(rollout):
    """Rank 0 holds rows 0 and 1, rank 1 rows 2 and 3: both must count all four."""
    ranks = [rollout(), rollout()]
    everything = [0, 0, 1, 1, 2, 2, 3, 3]
    ranks[0].build(entries(0, 0, 1, 1), everything)
    ranks[1].build(entries(2, 2, 3, 3), everything)
    for rank in ranks:
        assert rank.draws.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_redrawn_row_shows_its_passages_in_another_order_and_a_restored_rollout_goes_on(rollout):
    first = rollout(level="5")
    orders = [first.build(entries(7), [7])[0]["passages"] for _ in range(6)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    resumed = rollout(level="5")
    resumed.load_state_dict(first.state_dict())
    assert resumed.build(entries(7), [7])[0]["passages"] == first.build(entries(7), [7])[0]["passages"]


def test_draws_of_rows_that_are_gone_are_dropped(rollout):
    made = rollout()
    made.build(entries(0, 3), [0, 3])
    fewer = rollout()
    fewer = Rollout(fewer.rows.subset([3, 4]), fewer.prompting)
    fewer.load_state_dict(made.state_dict())
    assert fewer.draws.tolist() == [1, 0]


def test_the_level_in_hand_decides_the_passages(rollout):
    made = rollout(level="gold")
    assert made.build(entries(7), [7])[0]["passages"] == ["canada#capital"]
    made.level = "none"
    row = made.build(entries(7), [7])[0]
    assert row["passages"] == [] and row["level"] == "none"
