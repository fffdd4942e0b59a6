"""docs/evaluate.md says what the program does: its commands, settings, files, requests and conditions."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from open_r1_kivqa.benchmarks.score_cli import parser
from open_r1_kivqa.entry import parse
from open_r1_kivqa.evaluate_jsonl import FLAGS
from open_r1_kivqa.evaluation.arguments import EvaluationArguments
from open_r1_kivqa.evaluation.published import read_conditions
from open_r1_kivqa.evaluation.records import MEASURED
from open_r1_kivqa.evaluation.rollouts import LEAST_ROLLOUTS, LEAST_SHARE
from open_r1_kivqa.evaluation.server import PLAIN
from open_r1_kivqa.evaluation.settings import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[1].endswith("evaluate_jsonl.py")])
def test_commands_have_flags_that_there_are(words):
    data, *_ = parse(FLAGS, words[2:])
    assert Path(data.data_file_paths).is_file() and Path(data.image_folders).is_dir()


def test_the_command_that_scores_has_flags_that_there_are():
    (words,) = [words for words in COMMANDS if words[:2] == ["kivqa", "score"]]
    assert parser().parse_args(words[2:]).target == "rows"


def test_every_setting_is_in_the_table_and_in_the_help():
    table = PAGE.partition("## Settings")[2].partition("## Scores")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(SETTINGS)
    (settings,) = [one for one in fields(EvaluationArguments) if one.name == "settings"]
    assert re.findall(r"\w+", settings.metadata["help"].partition(": ")[2]) == list(SETTINGS)


def test_what_requests_and_records_hold():
    assert f"`{json.dumps({'temperature': 0.0, **PLAIN})}`" in PAGE
    files = PAGE.partition("## Files")[2]
    assert all(f"`{name}`" in files for name in MEASURED)
    assert f"From {LEAST_ROLLOUTS} rollouts on" in PAGE and f"{100 * LEAST_SHARE:.0f} % or more" in PAGE


def test_the_example_of_conditions_is_read(tmp_path):
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "conditions.yaml").write_text(example)
    ours, published = read_conditions(str(tmp_path / "conditions.yaml"))
    assert ours.split == "val" and published["Wiki-R1 7B", "infoseek"].recall == 0.68
