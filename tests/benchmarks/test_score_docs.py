"""The commands of docs/scores.md run on small files of the names they give, and print what the page shows."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from scoring import evqa_file, evqa_predictions, infoseek_files, infoseek_predictions, lines, make_bem, predictions

from open_r1_kivqa.cli import main
from open_r1_kivqa.demo import EVAL

PAGE = (Path(__file__).parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    infoseek_files(tmp_path)
    infoseek_predictions(tmp_path / "infoseek_predictions.jsonl")
    evqa_file(tmp_path / "test.csv")
    evqa_predictions(tmp_path / "evqa_predictions.jsonl")
    make_bem(tmp_path / "answer-equivalence-bem")
    (tmp_path / "viquae").mkdir()
    lines(tmp_path / "viquae" / "test.jsonl", [{"id": "a", "input": "Who?", "output": {"answer": ["Jackie Wilson"]}}])
    predictions(tmp_path / "viquae_predictions.jsonl", [("a", "Wilson")])
    demo = tmp_path / "src/open_r1_kivqa/demo/data"
    demo.mkdir(parents=True)
    shutil.copy(EVAL, demo / "eval.jsonl")
    rows = [json.loads(line) for line in Path(EVAL).read_text(encoding="utf-8").splitlines()]
    predictions(tmp_path / "factbook_predictions.jsonl", [(row["id"], "1") for row in rows])


def test_commands_run_and_print_the_page(files, capsys):
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert [words[:3] for words in commands] == [
        ["kivqa", "score", target] for target in ("infoseek", "evqa", "evqa", "viquae", "rows")
    ]
    for words in commands:
        assert main(words[1:]) == 0
        out = capsys.readouterr().out
        if words[2] == "infoseek":
            (shown,) = re.findall(r"^```\n(InfoSeek\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
            assert [line.rstrip() for line in out.splitlines()] == shown.splitlines()
