"""The commands of docs/benchmarks_rec_ovd.md run on small files of the same names, and the rows of docs/boxes.md are rows."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig
from open_r1_kivqa.cli import main
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.entry import parse
from open_r1_kivqa.evaluation.arguments import EvaluationArguments
from open_r1_kivqa.rewards.boxes import box_problem
from open_r1_kivqa.rewards.methods import score

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The files that the page's commands name, with an item or two in each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    for folder in ("coco", "images/color", "images/logo", "annotations"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("RGB", (100, 80)).save(tmp_path / folder / "a.png")
    item = {"image": "a.png", "problem": "Where?", "solution": [1, 2, 30, 40], "width": 100, "height": 80}
    (tmp_path / "refcoco_val.json").write_text(json.dumps([item]))
    for name in ("color", "logo"):
        image = {"id": 0, "file_name": "a.png", "width": 100, "height": 80, "text": ["cat"], "neg_text": ["dog"]}
        annotation = {"id": 0, "image_id": 0, "category_id": 0, "bbox": [1, 2, 3, 4], "iscrowd": 0}
        content = {"images": [image], "annotations": [annotation], "categories": [{"id": 0, "name": "cat"}]}
        (tmp_path / "annotations" / f"{name}.json").write_text(json.dumps(content))


def test_commands_run(downloads, capsys):
    ran = [line for line in commands("benchmarks_rec_ovd.md") if line[0] == "kivqa"]
    assert [line[1] for line in ran] == ["convert", "check", "convert", "convert", "check"]
    for line in ran:
        assert main(line[1:]) == 0, capsys.readouterr()
    assert Path("refcoco_val.jsonl").exists() and "no problem" in capsys.readouterr().out


def test_flags_of_the_evaluations_are_flags(tmp_path):
    evaluations = [line for line in commands("benchmarks_rec_ovd.md") if line[0] == "torchrun"]
    assert len(evaluations) == 2
    for line in evaluations:
        data, _, arguments = parse((DataArguments, VLMModelConfig, EvaluationArguments), line[4:])
        assert data.task_type in ("rec", "ovd") and arguments.output_dir.startswith("outputs/")


def test_rows_of_the_page_on_boxes():
    blocks = re.findall(
        r"^```json\n(.*?)^```", (DOCS / "boxes.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    rows = [parse_row(json.loads(block), image_folder="x", reward_method="", source="boxes.md:1") for block in blocks]
    assert [row.reward_method for row in rows] == ["iou", "od_ap"]
    for row in rows:
        assert box_problem(row, [(640, 480)]) is None and score(row.answers[0], row) == 1.0
