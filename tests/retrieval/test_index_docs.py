"""The commands of docs/retrieval.md about the index run as they stand."""

import re
import shlex
from pathlib import Path

from open_r1_kivqa.cli import main
from open_r1_kivqa.retrieval.index import ImageIndex

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8")
HALF = re.search(r"^## kivqa index$.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE).group()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", HALF, re.DOTALL)


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    script = "".join(blocks("bash")).replace("\\\n", " ")
    variables = dict(re.findall(r"^(\w+)=(\S+)$", script, re.MULTILINE))
    for name, value in variables.items():
        script = script.replace(f"${name}", value)
    commands = [shlex.split(line) for line in script.splitlines() if line.startswith("kivqa ")]
    assert len(commands) == 3
    for command in commands:
        assert main(command[1:]) == 0
    kinds = {name: ImageIndex.open(name).manifest["kind"] for name in ("flags", "small", "graph")}
    assert kinds == {"flags": "flat", "small": "ivf", "graph": "hnsw"}
    capsys.readouterr()
    (example,) = blocks("python")
    exec(example, {})
    assert capsys.readouterr().out.strip() == re.search(r"# (\[\[.*)", example).group(1)
