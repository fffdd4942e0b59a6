"""What docs/migrating_from_vlm_r1.md promises, where no other test shows it, and that the tests and flags it names exist."""

import re
from pathlib import Path

import pytest
import yaml
from grpo_run import config, letters_reward, make_trainer, record_completions, vowels
from test_arguments import VLM_R1
from training_rows import write_data

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "migrating_from_vlm_r1.md").read_text()
COMPLAINTS = re.findall(r"^\| ([\d, ]+) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)


def test_every_complaint_names_a_test_that_exists():
    numbers = [int(number) for listed, _ in COMPLAINTS for number in listed.split(", ")]
    assert len(numbers) == len(set(numbers)) == 58
    for _, cell in COMPLAINTS:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", cell)
        assert named
        for file, test in named:
            assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


@pytest.mark.parametrize("name", [name for name in VLM_R1 if name not in ("bf16", "run_name")])
def test_the_page_has_every_flag_of_their_scripts_that_is_not_trls(name):
    stock = {"gradient_checkpointing", "save_steps", "save_only_model", "report_to", "logging_steps", "learning_rate"}
    stock |= {"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"}
    assert name in stock or f"`{name}`" in PAGE


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_the_loss_of_every_recipe_is_a_mean_over_tokens(path):
    assert yaml.safe_load(path.read_text()).get("loss_type", "dapo") == "dapo"


def test_reward_weights_act(tiny_model, tmp_path):
    def train(name, rewards, **options):
        args = config(tmp_path / name, max_steps=1, num_generations=2, **options)
        trainer = make_trainer(
            tiny_model("qwen2_5_vl"), write_data(tmp_path / name / "data"), args, reward_funcs=rewards
        )
        record_completions(trainer)
        trainer.train()
        return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]

    alone = train("alone", [letters_reward])
    assert train("weighed", [letters_reward, vowels], reward_weights=[1.0, 0.0]) == pytest.approx(alone, rel=1e-4)
    assert train("both", [letters_reward, vowels], reward_weights=[1.0, 5.0]) != pytest.approx(alone, rel=1e-2)
