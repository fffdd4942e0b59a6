"""The GRPO entry as a user runs it, on a tiny random model."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from training_rows import write_data
from transformers import AutoModelForImageTextToText

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.grpo_jsonl import main

ENTRY = Path(__file__).parents[1] / "src" / "open_r1_kivqa" / "grpo_jsonl.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def flags(tiny_model, tmp_path):
    def make(**more) -> list[str]:
        given = {
            "model_name_or_path": tiny_model("qwen2_5_vl"),
            **write_data_once(tmp_path / "data"),
            "output_dir": tmp_path / "run",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "max_completion_length": 6,
            "report_to": "none",
            "save_strategy": "no",
            "max_steps": 2,
            **more,
        }
        return [
            part
            for name, value in given.items()
            if value is not None
            for part in (f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)]))
        ]

    return make


def write_data_once(folder: Path) -> dict[str, str]:
    if not folder.exists():
        write_data(folder)
    return {
        "data_file_paths": folder / "rows.jsonl",
        "image_folders": folder / "images",
        "knowledge_base": folder / "wiki.jsonl",
    }


def test_train_evaluate_save_and_go_on(flags, tmp_path, capsys):
    run = tmp_path / "run"
    first = main(
        flags(
            val_split_ratio=0.25,
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            log_completions=True,
            num_completions_to_print=0,
        )
    )
    printed = capsys.readouterr().out
    assert "trainable" in printed and "4 completions a step = 2 prompts x 2" in printed

    # Greedy evaluation on two held-out rows, none of which was trained on.
    held_out = {json.loads(line)["id"] for line in (run / "evaluation" / "step-2.jsonl").read_text().splitlines()}
    trained = set(pd.concat(map(pd.read_parquet, (run / "completions").glob("*.parquet")))["sample_id"])
    assert len(held_out) == 2 and trained and not held_out & trained
    assert [entry["eval_accuracy"] for entry in first.state.log_history if "eval_accuracy" in entry] == [0, 0]

    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["entry"] == "grpo_jsonl" and manifest["flags"]["num_generations"] == 2
    assert json.loads((run / "checkpoint-2" / "complete.json").read_text()) == {"global_step": 2, "resumable": True}
    saved = AutoModelForImageTextToText.from_pretrained(run, dtype=torch.float32)
    for name, parameter in first.model.named_parameters():
        assert torch.equal(saved.get_parameter(name), parameter), name

    with pytest.raises(InputError, match="--resume_from_checkpoint true"):
        main(flags())
    with pytest.raises(InputError, match="is of step 2, so with --max_steps 2 nothing is left"):
        main(flags(resume_from_checkpoint=True))
    capsys.readouterr()
    resumed = main(
        flags(
            val_split_ratio=0.25, eval_steps=1, save_strategy="steps", save_steps=1, max_steps=3,
            resume_from_checkpoint=True,
        )
    )  # fmt: skip
    assert resumed.state.global_step == 3
    told = capsys.readouterr().out
    assert (
        "not as it began" in told
        and "flags.max_steps: 2 -> 3" in told
        and "flags.log_completions: True -> False" in told
    )
    assert "data" not in told.partition("not as it began")[2].partition("part ")[0]
    assert [entry["step"] for entry in resumed.state.log_history if "loss" in entry] == [1, 2, 3]


def test_lora_a_frozen_tower_and_a_reward_of_ones_own(flags, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "def short(prompts, completions, **kwargs):\n    return [1.0 / len(c[0]['content'] + '.') for c in completions]\n"
    )
    trainer = main(
        flags(use_peft=True, lora_r=2, freeze_vision_modules=True, beta=0.04, reward_funcs=["accuracy", f"{own}:short"])
    )
    assert trainer.reward_func_names == ["accuracy", "short"]
    tuned = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert tuned and all("lora_" in name for name in tuned)
    assert not any(".visual." in name and ".merger." not in name for name in tuned)
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()


def test_bad_rows_are_refused_or_left_out(flags, tmp_path, capsys):
    rows = write_data_once(tmp_path / "data")["data_file_paths"]
    with open(rows, "a") as file:
        file.write('{"id": "broken", "image": "nowhere.png", "conversations": [{"from": "human", "value": "What?"}]}\n')
        file.write("{not json\n")
    with pytest.raises(InputError, match="2 "):
        main(flags())
    trainer = main(flags(skip_bad_rows=True, max_steps=1))
    assert len(trainer.rollout.rows) == 8
    assert "2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data_file_paths": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"image_folders": "nowhere"}, "nowhere"),
        ({"knowledge_base": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"model_name_or_path": "/nowhere"}, "/nowhere"),
        ({"task_type": "nosuch"}, "nosuch"),
        ({"reward_method": "nosuch"}, "nosuch"),
        ({"reward_funcs": "nosuch"}, "nosuch"),
        ({"eval_steps": 1}, "held-out rows"),
        ({"dtype": "bfloat16"}, "fp32 master"),
        ({"resume_from_checkpoint": True}, "no complete checkpoint"),
        ({"max_anyres_num": 4}, "max_anyres_num"),
        ({"report_to": "nosuch"}, "--report_to nosuch"),
        ({"gradient_accumulation_steps": 8}, "8 rows to train on, and one batch takes 16"),
        ({"val_split_ratio": 0.9}, "1 rows to train on, and one batch takes 2"),
        ({"output_dir": __file__}, "is a file; give the path of a folder"),
        ({"output_dir": f"{__file__}/run"}, "is a file; give the path of a folder"),
    ],
)
def test_bad_input_ends_before_the_model_is_loaded(more, message, flags, tmp_path, monkeypatch):
    def loaded(*args, **kwargs):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", loaded)
    with pytest.raises(InputError, match=message):
        main(flags(**more))
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_bad_input_is_one_message_and_exit_code_2(flags):
    done = subprocess.run(
        [sys.executable, str(ENTRY), *flags(data_file_paths="nowhere.jsonl")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "error:" in done.stderr and "nowhere.jsonl" in done.stderr and "Traceback" not in done.stderr


CURRICULUM = {"curriculum": True, "curriculum_levels": "1,2,retrieved", "curriculum_window": 4}


def test_the_curriculum_from_graph_to_resumed_run(flags, tmp_path, capsys):
    """`kivqa graph` on the rows, two steps with held-out rows and evaluation at the last level, and one step more."""
    from open_r1_kivqa.cli import main as kivqa

    data = write_data_once(tmp_path / "data")
    graph = tmp_path / "graph.npz"
    assert kivqa(["graph", "--data_file_paths", str(data["data_file_paths"]), "--knowledge_base", str(data["knowledge_base"]), "--output", str(graph)]) == 0  # fmt: skip
    given = {**CURRICULUM, "curriculum_graph": graph, "save_strategy": "steps", "save_steps": 1}
    given |= {"val_split_ratio": 0.25, "eval_steps": 1, "num_passages": 2, "log_completions": True}
    trainer = main(flags(**given))
    printed = capsys.readouterr().out
    assert "Curriculum: levels 1 -> 2 -> retrieved, now at 1" in printed and "rows with fewer passages" in printed
    assert len(trainer.curriculum.ids) == len(trainer.rollout.rows) == 6  # the graph has all eight
    table = pd.concat(map(pd.read_parquet, (tmp_path / "run" / "completions").glob("*.parquet")))
    assert set(table["level"]) == {"1"}
    shown = [json.loads(line) for line in (tmp_path / "run" / "evaluation" / "step-1.jsonl").read_text().splitlines()]
    assert any(len(record["passages"]) == 2 for record in shown)  # evaluated as retrieved
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["flags"]["curriculum_window"] == 4

    resumed = main(flags(**given, max_steps=3, resume_from_checkpoint=True))
    assert resumed.curriculum.drawer.number == 3
    with pytest.raises(InputError, match="of a run without a curriculum"):
        (tmp_path / "run" / "checkpoint-3" / "curriculum.npz").unlink()
        main(flags(**given, max_steps=4, resume_from_checkpoint=True))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"curriculum_window": 9}, "--curriculum_window 9 is larger than the data, 8 rows"),
        ({"curriculum_graph": "wiki.jsonl"}, "wiki.jsonl"),
        ({"knowledge_base": None}, "there is no --knowledge_base"),
        ({"curriculum_signal": "form"}, "--curriculum_signal form is none of the rewards; give some of accuracy, format"),
        ({"curriculum_levels": "2,2"}, "equal"),
        ({"curriculum": None}, "acts only with the curriculum"),
        ({"curriculum_exploration": 0.01}, "--curriculum_exploration 0.01"),
        ({"curriculum_estimate": "paper", "curriculum_weighting": "teaching"}, "gives every row the weight 0"),
        ({"shuffle_dataset": False}, "--shuffle_dataset false"),
    ],
)  # fmt: skip
def test_what_the_curriculum_refuses_comes_before_the_model(more, message, flags, monkeypatch):
    def loaded(*args, **kwargs):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", loaded)
    with pytest.raises(InputError, match=message):
        main(flags(**{**CURRICULUM, **more}))
