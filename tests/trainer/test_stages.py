"""PTST: stages of longer completions and smaller groups in one run."""

import pandas
import pytest
import torch
from grpo_run import config, letters_reward, losses, make_trainer, weights
from training_rows import write_data

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.schedule import Stage, longest_completion, parse_stages, stage_at, total_steps

VISION_R1 = "100:4096:16,100:8192:8,100:16384:4"
SHORT = "2:4:4,2:7:2"


def test_the_published_schedule():
    stages = parse_stages(VISION_R1)
    assert stages == (Stage(100, 4096, 16), Stage(100, 8192, 8), Stage(100, 16384, 4))
    assert (total_steps(stages), longest_completion(stages)) == (300, 16384)
    assert len({stage.max_completion_length * stage.num_generations for stage in stages}) == 1  # tokens a prompt
    assert [stage_at(stages, step) for step in (0, 99, 100, 199, 200, 299, 300)] == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no stage"),
        ("100:4096", "'100:4096' is no stage: write steps:tokens:generations"),
        ("100:4k:8", "'100:4k:8' is no stage"),
        ("100:4096:8,", "'' is no stage"),
        ("-1:4096:8", "is no stage"),
        ("0:4096:8", "at least 1 step"),
        ("5:0:8", "at least 1 step, 1 token"),
        ("5:10:1", "2 completions"),
        ("5:10:4,5:20:8", "stage 2 has 8 completions a prompt, more than the stage before"),
        ("5:10:8,5:20:3", "does not divide the first stage's 8"),
    ],
)
def test_schedules_that_cannot_be(text, words):
    with pytest.raises(InputError, match=words):
        parse_stages(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"per_device_train_batch_size": 6, "ptst": "2:4:4,2:7:2", "gradient_accumulation_steps": 2}, None),
        (
            {"per_device_train_batch_size": 3, "ptst": "2:4:4,2:7:2", "gradient_accumulation_steps": 4},
            "no multiple of 2",
        ),
        ({"ptst": "3:4:4,1:7:2", "num_iterations": 2}, "stage 1 has 3 steps, and one generation batch feeds 2"),
        ({"ptst": SHORT, "max_steps": 5}, "--max_steps 5 and --ptst .* which makes it 4"),
        ({"ptst": SHORT, "num_generations": 2}, "--num_generations 2 and --ptst"),
        ({"ptst": SHORT, "max_completion_length": 9}, "--max_completion_length 9 and --ptst"),
    ],
)
def test_flags_that_do_not_go_with_a_schedule(flags, words, tmp_path):
    decided = {"max_steps": 4, "num_generations": 4, "max_completion_length": 7}
    if words is None:
        assert config(tmp_path, **(decided | flags)).max_steps == 4
        return
    with pytest.raises(InputError, match=words):
        config(tmp_path, **(decided | flags))


def stages_run(model, data, folder, resume=None, **options):
    """Two stages of two steps on two prompts a step, every completion's length and group kept."""
    args = config(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=7,
        max_steps=4,
        temperature=1.0,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        ptst=SHORT,
    )
    seen = []

    def watching(prompts, completions, sample_id, completion_ids, **kwargs):
        seen.append(([len(ids) for ids in completion_ids], sample_id))
        return letters_reward(prompts, completions)

    trainer = make_trainer(model, data, args, reward_funcs=[watching], **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


CURRICULUM = {"curriculum_levels": "1,2", "curriculum_window": 2}


@pytest.mark.parametrize("curriculum", [None, CURRICULUM, CURRICULUM | {"dynamic_sampling_rounds": 2}])
def test_stages_and_resume(curriculum, tiny_model, tmp_path, capsys):
    given = tiny_model("qwen2_5_vl"), write_data(tmp_path / "data"), tmp_path
    trainer, seen = stages_run(*given, curriculum=curriculum)
    told = capsys.readouterr().out
    assert "Stage 1 of 2, from step 0 on: 2 steps with completions of up to 4 tokens, 4 a prompt" in told
    assert "Stage 2 of 2, from step 2 on: 2 steps with completions of up to 7 tokens, 2 a prompt" in told
    for lengths, ids in seen:
        group, most = (4, 4) if len(ids) == 8 else (2, 7)
        assert len(ids) == 2 * group and len(set(ids)) == 2 and ids[0] == ids[group - 1]  # two prompts in each stage
        assert max(lengths) <= most
    assert max(max(lengths) for lengths, ids in seen if len(ids) == 4) > 4
    logs = [entry for entry in trainer.state.log_history if "stage" in entry]
    assert [entry["stage"] for entry in logs] == [1, 1, 2, 2]
    assert [entry["stage/num_generations"] for entry in logs] == [4, 4, 2, 2]
    assert [entry["stage/max_completion_length"] for entry in logs] == [4, 4, 7, 7]
    if curriculum is not None:
        assert trainer.curriculum.estimator.group_size == 2

    for step in (1, 2, 3) if curriculum is None else (2,):
        again, _ = stages_run(*given, str(tmp_path / f"checkpoint-{step}"), curriculum=curriculum)
        assert losses(again) == losses(trainer)
        assert all(torch.equal(value, weights(again)[name]) for name, value in weights(trainer).items())


def test_the_table_of_completions_holds_those_of_its_step(tiny_model, tmp_path):
    flags = {"log_completions": True, "num_completions_to_print": 0}
    args = config(
        tmp_path, per_device_train_batch_size=4, num_generations=4, max_completion_length=7, max_steps=4, logging_steps=1, ptst=SHORT, **flags
    )  # fmt: skip
    trainer = make_trainer(tiny_model("qwen2_5_vl"), write_data(tmp_path / "data"), args)
    trainer.train()
    tables = [pandas.read_parquet(path) for path in sorted((tmp_path / "completions").iterdir())]
    assert [len(table) for table in tables] == [4, 4, 2, 2]
    drawn = [table["sample_id"].unique().tolist() for table in tables]
    assert all(len(ids) == 1 for ids in drawn) and len({ids[0] for ids in drawn}) == 4  # one prompt a step


def test_a_single_stage_changes_nothing(tiny_model, tmp_path):
    def run(name, **options):
        args = config(tmp_path / name, max_steps=2, num_generations=2, max_completion_length=6, **options)
        trainer = make_trainer(tiny_model("qwen2_5_vl"), write_data(tmp_path / name / "data"), args)
        trainer.train()
        return losses(trainer), weights(trainer)

    (plain, plain_weights), (staged, staged_weights) = run("plain"), run("staged", ptst="2:6:2")
    assert plain == staged
    assert all(torch.equal(value, staged_weights[name]) for name, value in plain_weights.items())
