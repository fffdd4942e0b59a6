"""docs/bridging.md: its commands run, and it names every rule, file and field."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from open_r1_kivqa.cold_start.bridge import OUTCOMES
from open_r1_kivqa.cold_start.bridge_cli import MLLM_REQUEST, REASONER_REQUEST, parser
from open_r1_kivqa.cold_start.prompt_files import PLACEHOLDERS, REPLACEMENTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bridging.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "open_r1_kivqa" / "cold_start"


def test_the_commands_run(tmp_path):
    serve, bridge = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    serve, bridge = (command.replace("src/open_r1_kivqa", f"{ROOT}/src/open_r1_kivqa") for command in (serve, bridge))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = serve.replace("tests/", f"{ROOT}/tests/").replace("8123", "0").rstrip("& \n")
    server = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        url = re.fullmatch(r"ready at (\S+)\n", server.stdout.readline())[1]
        script = "set -e\n" + bridge.replace("http://127.0.0.1:8123/v1", url)
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"It prints\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert done.stdout.replace(str(tmp_path) + "/", "") == printed
    report = json.loads((tmp_path / "cold_start.report.json").read_text())
    table = PAGE.partition("## The report")[2]
    named = re.findall(r"`(\w+)`", table)
    assert set(report) | set(report["outcomes"]["kept"]) | set(report["requests"]["mllm"]) - {
        "prompt_tokens_all",
        "completion_tokens_all",
    } <= set(named)


def test_every_rule_is_on_the_page():
    table = PAGE.partition("## What is dropped")[2].partition("Before contradictions")[0]
    named = set(re.findall(r"`([a-z_ 0-9]+)`", table))
    code = "".join((SOURCE / name).read_text() for name in ("rules.py", "bridge.py"))
    rules = set(re.findall(r'(?:Drop|Outcome)\(\s*"\w+", "(\w+)"', code)) | {"blind", "source_text", "provided_text"}
    assert {"other_answer", "form", "judge", "no_image"} <= rules
    failures = set(re.findall(r'Failure\(\s*"([a-z ]+)"', (SOURCE.parent / "endpoint.py").read_text()))
    assert {"timeout", "no connection", "given up"} <= failures
    assert rules | failures <= named
    assert set(OUTCOMES) - {"kept"} <= named
    assert {f"{step}_cut_off" for step in ("pseudo_cot", "description", "reasoning")} <= named
    assert {"pseudo_cot_empty", "description_empty"} <= named


def test_every_prompt_file_is_on_the_page():
    files = {f"{name}.txt" for name in (*PLACEHOLDERS, REPLACEMENTS)}
    assert {path.name for path in (SOURCE / "prompts").iterdir()} == files
    for name, (needed, may) in PLACEHOLDERS.items():
        (line,) = re.findall(rf"^\| `{name}.txt` \|.*$", PAGE, re.MULTILINE)
        assert set(re.findall(r"{(\w+)}", line.strip("| ").rpartition(" | ")[2])) == needed | may


@pytest.mark.parametrize("fields", [MLLM_REQUEST, REASONER_REQUEST])
def test_the_fields_of_requests(fields):
    assert f"`{json.dumps(fields)}`" in PAGE


def test_the_flags_exist():
    known = {word for action in parser()._actions for word in action.option_strings}
    others = {"--tensor-parallel-size", "--port", "--max-model-len", "--reasoning-parser", "--nproc_per_node"}
    others |= {"--config", "--deepspeed", "--model_name_or_path", "--output_dir", "--system_prompt", "--needs_response"}
    assert set(re.findall(r"--[a-z][a-z_-]+", PAGE)) <= known | others | {"--seconds"}
