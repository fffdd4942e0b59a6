"""The shell scripts, DeepSpeed files, yaml recipes and README: that they name what exists, and that the recipes run."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from launch import fork_ranks
from tiny import make_tiny

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([ROOT / "setup.sh", ROOT / ".ci" / "run", *(ROOT / "run_scripts").glob("*.sh")])
RECIPES = sorted((ROOT / "run_scripts").glob("run_grpo_*.sh")) + [ROOT / "run_scripts" / "run_sft_cold_start.sh"]
RUN_WHOLE = ["run_grpo_kivqa", "run_sft_cold_start"]
TASK_METHODS = {"rec": "iou", "ovd": "odLength", "math": "math", "gui": "all_match"}
PATHS = re.compile(r"(?:src|configs|local_scripts|run_scripts|tests|docs|bench)/[\w./]*\w")


def bash(script: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", script, *words], capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_names_files_that_exist(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert "set -euo pipefail" in text or script.name == "start.sh"  # which is sourced
    missing = [path for path in PATHS.findall(text) if not (ROOT / path).exists()]
    assert not missing


def test_readme_names_files_that_exist():
    text = (ROOT / "README.md").read_text()
    assert [path for path in PATHS.findall(text) if not (ROOT / path).exists()] == []


def test_readme_maps_every_folder_and_recipe():
    text = (ROOT / "README.md").read_text()
    folders = [
        path for path in (ROOT / "src" / "open_r1_kivqa").iterdir() if path.is_dir() and path.name[0] not in "_."
    ]
    for path in [*folders, *RECIPES]:
        assert str(path.relative_to(ROOT)) in text


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_recipe_yaml_has_only_known_flags(config, tmp_path):
    from trl import TrlParser

    from open_r1_kivqa import grpo_jsonl, sft_jsonl

    entry = sft_jsonl if config.stem == "sft" else grpo_jsonl
    flags = f"--config {config} --output_dir {tmp_path} --data_file_paths a.jsonl --model_name_or_path m --bf16 false"
    flags += " --per_device_train_batch_size 8"  # a group is whole on one process too
    data, *_ = TrlParser(entry.FLAGS).parse_args_and_config(flags.split())  # raises on an unknown name
    assert data.context_level == "retrieved"


@pytest.mark.parametrize("name", ["zero2", "zero3", "zero3_offload"])
def test_deepspeed_file_leaves_the_batch_to_the_flags(name):
    config = json.loads((ROOT / "local_scripts" / f"{name}.json").read_text())
    assert config["zero_optimization"]["stage"] == int(name[4])
    assert config["train_micro_batch_size_per_gpu"] == config["gradient_accumulation_steps"] == "auto"
    assert config["bf16"]["enabled"] == config["fp16"]["enabled"] == "auto"
    if "zero3" in name:  # else a save writes no weights that from_pretrained can read
        assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_tells_what_fits_on_which_card(recipe):
    """And every flag that it names, in the command or in a comment, exists."""
    import dataclasses

    from open_r1_kivqa import grpo_jsonl, sft_jsonl

    text = recipe.read_text()
    assert "not measured" in text
    assert [re.search(rf"^#   {memory} GB  \S", text, re.MULTILINE) is None for memory in (80, 48, 24)] == [False] * 3
    entry = sft_jsonl if "sft_jsonl.py" in text else grpo_jsonl
    known = {one.name for group in entry.FLAGS for one in dataclasses.fields(group)}
    known |= {"config", "standalone", "nproc_per_node", "gpu", "help", "knowledge_base", "output"}
    assert set(re.findall(r"(?<!\w)--(\w+)", text)) <= known


@pytest.mark.parametrize("config", ["rec", "rec_more_params", "rec_lora", "rec_internvl", "ovd", "math", "gui"])
def test_task_yaml_names_template_method_and_rewards(config):
    import yaml

    from open_r1_kivqa.prompts import load_template
    from open_r1_kivqa.rewards import REWARDS
    from open_r1_kivqa.rewards.methods import METHODS

    values = yaml.safe_load((ROOT / "configs" / f"{config}.yaml").read_text())
    assert values["task_type"] == config.split("_")[0]
    system = load_template(values["task_type"]).system
    assert all(tag in system for tag in ("<think> </think>", "<answer> </answer>"))
    assert values["reward_method"] in METHODS and set(values["reward_funcs"]) <= set(REWARDS)
    assert (values["num_generations"], values["beta"], values["max_completion_length"]) == (8, 0.04, 2048)


@pytest.mark.distributed
@pytest.mark.parametrize("name", RUN_WHOLE)
def test_recipe_runs(name, tmp_path):
    """The script from its first line to its last, with torchrun."""
    done = bash(ROOT / "run_scripts" / f"{name}.sh", SMOKE="1", SMOKE_OUTPUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 2/2" in done.stdout
    assert_ran(name, tmp_path)


def test_smoke_is_0_or_1():
    """Else SMOKE=yes would start the whole run."""
    done = bash(ROOT / "run_scripts" / "run_grpo_kivqa.sh", SMOKE="yes")
    assert done.returncode == 2 and "SMOKE=yes: give 1 to try the recipe, or 0 to run it" in done.stderr


def recorded_calls(script: Path, folder: Path) -> list[list[str]]:
    """What a recipe says to `python` and `torchrun` with SMOKE=1: bash functions of these names write it down instead."""
    log = folder / "calls"
    functions = "".join(
        f"""{tool}() {{ printf '%s\\n' {tool} "$@" "" >>"$CALLS"; }}; export -f {tool}; """
        for tool in ("python", "torchrun")
    )
    environment = {**os.environ, "SMOKE": "1", "SMOKE_OUTPUT": str(folder), "CALLS": str(log)}
    done = subprocess.run(
        ["bash", "-c", functions + 'bash "$0"', script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [call.split("\n") for call in log.read_text().strip("\n").split("\n\n")]


@pytest.mark.distributed
@pytest.mark.parametrize("name", [path.stem for path in RECIPES if path.stem not in RUN_WHOLE])
def test_recipe_runs_up_to_torchrun_and_its_command_on_two_ranks(name, tmp_path):
    """The other recipes: each script up to the command that it gives to torchrun, and then this command on two forked ranks."""
    recorded = {tool: words for tool, *words in recorded_calls(ROOT / "run_scripts" / f"{name}.sh", tmp_path)}
    script, family, model = recorded["python"]
    assert script == "tests/tiny.py"
    make_tiny(family, model)
    assert recorded["torchrun"][:3] == ["--standalone", "--nproc_per_node", "2"]
    entry, *argv = recorded["torchrun"][3:]
    done = fork_ranks(ROOT / entry, *argv, "--use_cpu", "true")
    assert "step 2/2" in done.stdout
    assert_ran(name, tmp_path)


def assert_ran(name: str, folder: Path) -> None:
    run = folder / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["world_size"] == 2
    assert (run / "checkpoint-2" / "complete.json").exists()
    assert (run / ("adapter_model.safetensors" if "lora" in name else "model.safetensors")).exists()
    for task, method in TASK_METHODS.items():
        if name.startswith(f"run_grpo_{task}"):
            assert (manifest["flags"]["task_type"], manifest["flags"]["reward_method"]) == (task, method)


def test_run_tests_fails_when_no_test_ran():
    done = bash(ROOT / "run_scripts" / "run_tests.sh", "tests/test_cli.py", "-k", "no_such_test")
    assert done.returncode == 5


def test_ci_stops_at_the_first_failure(tmp_path):
    """With a `ruff` that fails, nothing after it runs."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "setup.sh").write_text("exit 0")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    ruff = tmp_path / ".venv" / "bin" / "ruff"
    ruff.write_text("#!/bin/sh\nexit 7\n")
    ruff.chmod(0o755)
    assert bash(tmp_path / ".ci" / "run").returncode == 7


class TestSetup:
    """setup.sh in an empty project, with a stand-in for Python that writes its calls down: a real call installs several GB."""

    @pytest.fixture
    def project(self, tmp_path):
        shutil.copy(ROOT / "setup.sh", tmp_path)
        (tmp_path / "pyproject.toml").write_text("[project]\n")
        (tmp_path / "bin").mkdir()
        for tool in ("bash", "dirname", "sha256sum", "cut", "cat", "head", "cp", "mkdir"):
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
        return tmp_path

    def add_python(self, project: Path, name: str, minor: int) -> None:
        """A `python3.x` that knows its version, makes a venv by copying itself there, and takes note of every pip call."""
        python = project / "bin" / name
        python.write_text(
            f"""#!/usr/bin/env bash
            case "$*" in
                --version) echo "Python 3.{minor}.0" ;;
                "-c import sys; sys.exit(sys.version_info < (3, 11))") exit $(({minor} < 11)) ;;
                "-m venv "*) mkdir -p $3/bin && cp "$0" $3/bin/python ;;
                "-m pip "*) echo "3.{minor} $*" >> {project}/pip.log ;;
            esac
            """.replace("#!/usr/bin/env bash", f"#!{project}/bin/bash")
        )
        python.chmod(0o755)

    def setup(self, project: Path, *words: str) -> subprocess.CompletedProcess:
        return bash(project / "setup.sh", *words, PATH=str(project / "bin"))

    def test_takes_the_newest_python_once(self, project):
        for name, minor in (("python3.11", 11), ("python3.13", 13), ("python3", 10)):
            self.add_python(project, name, minor)
        assert self.setup(project).returncode == 0
        calls = (project / "pip.log").read_text().splitlines()
        assert calls == ["3.13 -m pip --quiet --disable-pip-version-check install --editable .[dev]"]
        started = time.monotonic()
        again = self.setup(project)
        assert (again.returncode, again.stdout) == (0, "") and time.monotonic() - started < 1
        assert (project / "pip.log").read_text().splitlines() == calls
        (project / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
        assert self.setup(project).returncode == 0
        assert (project / "pip.log").read_text().splitlines() == calls * 2  # in the venv that is there

    def test_gpu_has_its_own_environment(self, project):
        self.add_python(project, "python3", 12)
        assert self.setup(project, "--gpu").returncode == 0
        assert not (project / ".venv").exists() and (project / ".venv-vllm" / "setup-stamp").exists()
        assert (project / "pip.log").read_text().splitlines()[-1].endswith("--editable .[dev,vllm,flash-attn]")

    def test_too_old_a_python_is_named(self, project):
        self.add_python(project, "python3", 10)
        done = self.setup(project)
        assert done.returncode == 2 and not (project / ".venv").exists()
        assert "version 3.11 or newer" in done.stderr and "Python 3.10.0" in done.stderr

    def test_unknown_flag_is_refused(self, project):
        done = self.setup(project, "--cpu")
        assert done.returncode == 2 and "--cpu" in done.stderr
