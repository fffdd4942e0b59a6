"""Steps that the entries share: which method scores held-out rows, and how many rows a batch takes."""

import json
from types import SimpleNamespace

import pytest

from open_r1_kivqa.arguments import DataArguments
from open_r1_kivqa.data.checks import ensure_checked
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.recipe import load_rows, refuse_too_few_rows, refuse_unsafe_training


def write(path, ids, **more):
    turns = [{"from": "human", "value": "How many?"}, {"from": "gpt", "value": "about 12"}]
    path.write_text("".join(json.dumps({"id": id, "conversations": turns, **more}) + "\n" for id in ids))
    return str(path)


@pytest.mark.parametrize(
    ("files", "method", "held_out"),
    [
        (1, None, "default"),
        (1, "numeric", "numeric"),
        (2, "exact:numeric", "default"),
        (2, "numeric:numeric", "numeric"),
    ],
)
def test_a_single_reward_method_scores_held_out_rows_too(files, method, held_out, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    paths = [write(tmp_path / f"{i}.jsonl", [f"train {i}"]) for i in range(files)]
    test = write(tmp_path / "test.jsonl", ["test", "test 2"])
    args = DataArguments(data_file_paths=":".join(paths), eval_data_file_paths=test, reward_method=method)
    _, rows = load_rows(args, frozenset(), seed=0)
    assert [row.reward_method for row in rows] == [held_out] * 2

    # What scores them is what checks them: a text without a number has no numeric score.
    turns = [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": "Paris"}]
    write(tmp_path / "test.jsonl", ["test"], conversations=turns)
    model = SimpleNamespace(model_name_or_path=None)
    if held_out == "numeric":
        with pytest.raises(InputError, match="reward method 'numeric' gives the row's own answer 'Paris' no score"):
            ensure_checked(args, model)
    else:
        assert ensure_checked(args, model) == frozenset()


def test_held_out_rows_of_a_task_whose_files_differ_are_scored_as_the_task_says(tmp_path):
    paths = [write(tmp_path / f"{name}.jsonl", [name]) for name in ("one", "two", "held")]
    args = DataArguments(
        data_file_paths=":".join(paths[:2]), eval_data_file_paths=paths[2], task_type="rec", reward_method="iou:od_ap"
    )
    training, held_out = load_rows(args, frozenset(), seed=0)
    assert [row.reward_method for row in training] == ["iou", "od_ap"]
    assert [row.reward_method for row in held_out] == ["iou"]


def test_rows_must_fill_one_batch():
    grpo = SimpleNamespace(generation_batch_size=32, num_generations=8)
    refuse_too_few_rows(range(4), grpo)
    with pytest.raises(InputError, match="There are 3 rows to train on, and one batch takes 4 different ones"):
        refuse_too_few_rows(range(3), grpo)
    sft = SimpleNamespace(per_device_train_batch_size=4, world_size=2, dataloader_drop_last=False)
    refuse_too_few_rows(range(1), sft)
    sft.dataloader_drop_last = True
    with pytest.raises(InputError, match="takes 8 different ones, .*--dataloader_drop_last"):
        refuse_too_few_rows(range(7), sft)


def test_a_moving_reference_under_lora_is_refused():
    model, training = SimpleNamespace(use_peft=True, dtype="float32"), SimpleNamespace(sync_ref_model=True)
    with pytest.raises(InputError, match="--sync_ref_model has no reference model to move under LoRA"):
        refuse_unsafe_training(model, training)


@pytest.mark.parametrize("frozen", [(), ("vision_modules",), ("vision_modules", "projector")])
def test_features_of_a_tower_that_trains_are_refused_before_the_model(frozen):
    flags = {f"freeze_{part}": part in frozen for part in ("vision_modules", "projector", "language_model")}
    model = SimpleNamespace(use_peft=False, dtype="float32", **flags)
    training = SimpleNamespace(sync_ref_model=False, reuse_image_features=True, deepspeed=None)
    if len(frozen) == 2:
        refuse_unsafe_training(model, training)
    else:
        with pytest.raises(InputError, match="add --freeze_vision_modules true and --freeze_projector true"):
            refuse_unsafe_training(model, training)
    training.reuse_image_features = None
    refuse_unsafe_training(model, training)
