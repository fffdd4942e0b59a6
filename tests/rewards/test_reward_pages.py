"""docs/rewards.md and docs/llm_judge.md name what there is, and their examples run."""

import re
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from open_r1_kivqa.arguments import DataArguments, VLMGRPOConfig
from open_r1_kivqa.rewards.arguments import JudgeArguments, RewardArguments
from open_r1_kivqa.rewards.judge import REQUEST
from open_r1_kivqa.rewards.loading import REWARDS
from open_r1_kivqa.rewards.methods import KNOWN, TASK_METHODS

DOCS = Path(__file__).parents[2] / "docs"
REWARDS_PAGE = (DOCS / "rewards.md").read_text(encoding="utf-8")
JUDGE_PAGE = (DOCS / "llm_judge.md").read_text(encoding="utf-8")


def names(section: str) -> list[str]:
    """First cells of the table below a heading of docs/rewards.md."""
    text = REWARDS_PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_every_reward_and_method_is_there():
    assert names("Rewards") == [*REWARDS, "path.py:function"]
    assert sorted(names("Methods")) == sorted(KNOWN)
    for task, method in TASK_METHODS.items():
        assert re.search(rf"`(--task_type )?{task}` takes `{method}`", REWARDS_PAGE)


@pytest.mark.parametrize("page", [REWARDS_PAGE, JUDGE_PAGE])
def test_flags_exist(page):
    kinds = (DataArguments, VLMGRPOConfig, RewardArguments)
    known = {field.name for kind in kinds for field in fields(kind)} | {"model_name_or_path", "config"}
    assert set(re.findall(r"--(\w+)", page)) - {"port"} <= known


def test_the_judges_flags_and_defaults():
    rows = [line.split("|") for line in JUDGE_PAGE.splitlines() if line.startswith("| `--")]
    told = {cells[1].strip(" `-"): cells[2].strip() for cells in rows}
    assert list(told) == [field.name for field in fields(JudgeArguments)]
    numbers = {field.name: f"{field.default:g}" for field in fields(JudgeArguments) if field.type in (int, float)}
    assert len(numbers) == 4 and numbers.items() <= told.items()
    assert REQUEST == {"temperature": 0, "max_tokens": 16}
    for request in re.findall(r"--judge_request '([^']*)'", JUDGE_PAGE):
        JudgeArguments(judge_url="http://localhost:8000/v1", judge_model="m", judge_request=request)


def test_the_stand_in_and_the_example_run(tmp_path, capsys):
    stand_in, example = re.findall(r"```python\n(.*?)```", JUDGE_PAGE, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    (tmp_path / "stand_in.py").write_text(stand_in.replace("8000", port))
    server = subprocess.Popen([sys.executable, tmp_path / "stand_in.py"], stderr=subprocess.DEVNULL)
    try:
        exec(example.replace("8000", port), {})  # its retries wait for the server
    finally:
        server.kill()
        server.wait()
    assert f"prints `{capsys.readouterr().out.strip()}`" in JUDGE_PAGE
