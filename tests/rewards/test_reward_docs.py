"""The example of docs/add_a_reward.md runs as it stands."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_reward.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    reward, trial = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(reward)
    exec(trial, {})
    assert f"prints `{capsys.readouterr().out.strip()}`" in PAGE


def test_the_keywords_are_those_of_the_rollout():
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    rollout = (Path(__file__).parents[2] / "src/open_r1_kivqa/trainer/rollout.py").read_text(encoding="utf-8")
    built = set(re.findall(r'^            "(\w+)":', rollout, re.MULTILINE))
    assert named == built - {"prompt"} | {"completion_ids"}  # TRL adds the last one
