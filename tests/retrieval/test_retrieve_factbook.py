"""`kivqa index` and `kivqa retrieve` on the Factbook: neither a kill nor ranks change the result, and the page says what is found."""

import importlib.resources
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import fork_ranks

from open_r1_kivqa.retrieval import index_cli, retrieve_cli

WORKER = Path(__file__).with_name("retrieve_worker.py")
FACTBOOK = importlib.resources.files("open_r1_kivqa.demo") / "data"
PAGE = (
    (Path(__file__).parents[2] / "docs" / "retrieval.md")
    .read_text(encoding="utf-8")
    .partition("\n## kivqa retrieve")[2]
)


@pytest.fixture(scope="module")
def factbook(tmp_path_factory):
    """(flags of a run over three blocks of rows, its output by one process without interruption)."""
    folder = tmp_path_factory.mktemp("factbook")
    index, base = str(folder / "index"), ["--knowledge_base", str(FACTBOOK / "knowledge.jsonl")]
    base += ["--image_folders", str(FACTBOOK / "images")]
    assert index_cli.main([*base, "--encoder", "colour", "--output", index]) == 0
    flags = [*base, "--data_file_paths", str(FACTBOOK / "eval.jsonl"), "--index", index, "--other_weights", "0.5"]
    assert retrieve_cli.main([*flags, "--output", str(folder / "one.jsonl")]) == 0
    return flags, folder / "one.jsonl"


@pytest.fixture(scope="module")
def short(factbook):
    """The same with a few articles a question, whose sections are scored sooner."""
    flags, one = [*factbook[0], "--articles", "3"], factbook[1].with_name("short.jsonl")
    assert retrieve_cli.main([*flags, "--output", str(one)]) == 0
    return flags, one


def same_files(one: Path, other: Path) -> bool:
    return all(Path(f"{one}{end}").read_bytes() == Path(f"{other}{end}").read_bytes() for end in ("", ".report.json"))


def test_a_killed_run_goes_on_and_gives_the_same(short, tmp_path):
    flags, one = short
    out = tmp_path / "killed.jsonl"
    process = subprocess.Popen([sys.executable, WORKER, *flags, "--output", str(out)], stdout=subprocess.DEVNULL)
    parts = Path(f"{out}.parts")
    while not list(parts.glob("*.rows.jsonl")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists() and not (parts / "0000002.rows.jsonl").exists()
    assert retrieve_cli.main([*flags, "--output", str(out)]) == 0
    assert same_files(one, out)


@pytest.mark.distributed
def test_two_ranks_give_what_one_process_gives(short, tmp_path):
    flags, one = short
    out = tmp_path / "two.jsonl"
    finished = fork_ranks(WORKER, *flags, "--output", str(out), ranks=2)
    assert same_files(one, out)
    assert finished.stdout.count("rows have candidates") == 1  # the first rank alone speaks


def test_the_page_says_what_retrieval_finds_on_the_factbook(factbook):
    recall = json.loads(Path(f"{factbook[1]}.report.json").read_text())["recall"]["passage"]
    table = re.findall(r"^\| eval, (\w+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    found = {split: (counts["questions"], *(counts[f"R@{k}"] for k in (1, 5, 20))) for split, counts in recall.items()}
    del found["all"]
    said = {split: (int(questions), *map(float, figures)) for split, questions, *figures in table}
    assert said.keys() == found.keys()
    for split, figures in said.items():
        assert figures == pytest.approx(found[split], abs=0.051)


def test_flags_on_the_page_are_flags():
    commands = re.findall(
        r"^(?:kivqa|torchrun .* -m open_r1_kivqa\.cli) retrieve (.*?[^\\])$", PAGE, re.MULTILINE | re.DOTALL
    )
    assert len(commands) == 4
    for command in commands:
        retrieve_cli.parser().parse_args(shlex.split(command.replace("\\\n", " ")))
