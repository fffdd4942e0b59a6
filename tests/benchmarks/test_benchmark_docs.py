"""The commands of docs/benchmarks_rec_ovd.md and docs/benchmarks_kivqa.md run on small files of the same names, and the rows of docs/boxes.md are rows."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from evqa_fixture import FLAGS, QUESTIONS, SPECIES, WIKI, question, write_csv, write_images, write_knowledge_base
from PIL import Image
from published_factbook import DATA, lines_of, write_downloads

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


@pytest.fixture
def kivqa_downloads(tmp_path, monkeypatch):
    """The files that the commands of the page on knowledge-based benchmarks name."""
    monkeypatch.chdir(tmp_path)
    data = write_images(tmp_path / "pictures")
    # Species and landmarks where the page has them: inat/val/<category>/…, landmarks/train/a/b/c/…; the training set is the validation set again.
    shutil.copytree(data / "inat", tmp_path / "data" / "inat")
    shutil.copytree(data / "inat" / "val", tmp_path / "data" / "inat" / "train")
    shutil.copytree(data / "landmarks", tmp_path / "data" / "landmarks" / "train")
    for split in ("train", "val"):
        images = [{"id": id, "file_name": name.replace("val/", f"{split}/")} for id, name in SPECIES.items()]
        (tmp_path / "data" / "inat" / f"{split}.json").write_text(json.dumps({"images": images}))
    write_csv(tmp_path / "train.csv", QUESTIONS)
    odd = [question(dataset_image_ids="deadbeefdeadbeef"), question(wikipedia_url=f"{WIKI}Tour_Eiffel")]
    write_csv(tmp_path / "test.csv", [*QUESTIONS, *odd])
    write_knowledge_base(tmp_path / "evqa_kb.jsonl")
    flags = sorted(FLAGS.glob("*.jpg"))
    for folder in ("viquae/images", "vlm_r1/images", "vlm_r1/other_images"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(flags[0], tmp_path / folder / "a.jpg")
    output = {"answer": ["Levi's", "Levis"], "original_answer": "Levi's"}
    viquae = {"id": "1", "input": "What brand?", "output": output, "image": "a.jpg", "wikidata_id": "Q1"}
    (tmp_path / "viquae" / "test.jsonl").write_text(json.dumps(viquae))
    turns = [{"from": "human", "value": "Defect?"}, {"from": "gpt", "value": "no"}]
    (tmp_path / "vlm_r1" / "gui.jsonl").write_text(json.dumps({"image": "a.jpg", "conversations": turns}))
    box = {"image": "a.jpg", "problem": "Where?", "solution": [1, 2, 30, 40]}
    for name in ("refcoco_train", "refcocog_train"):
        (tmp_path / "vlm_r1" / f"{name}.json").write_text(json.dumps([box] * 10))
    text = (DOCS / "benchmarks_kivqa.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "vlm_r1" / "rec.yaml").write_text(listed)
    write_downloads(tmp_path, [row for row in lines_of(DATA / "eval.jsonl") if row["split"] != "maps"][::50][:10])
    questions = lines_of(tmp_path / "infoseek_val.jsonl")
    asked = [{name: one[name] for name in ("data_id", "image_id", "question")} for one in questions]
    (tmp_path / "infoseek_test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    write_echosight(tmp_path / "echosight_test.csv", questions)
    return tmp_path


def write_echosight(path: Path, questions: list[dict]) -> None:
    """InfoSeek's questions in the columns that EchoSight gives them; all are about one article."""
    columns = "data_id question answer dataset_image_ids dataset_name question_type wikipedia_url".split()
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for one in questions:
            url = f"{WIKI}Kuwait"
            writer.writerow([one["data_id"], one["question"], "x", one["image_id"], "infoseek", "infoseek", url])


def test_commands_of_the_knowledge_based_benchmarks_run(kivqa_downloads, capsys):
    page = (DOCS / "benchmarks_kivqa.md").read_text(encoding="utf-8")
    told = {}
    for line in commands("benchmarks_kivqa.md"):
        if line[0] == "python":
            data, _, arguments = parse((DataArguments, VLMModelConfig, EvaluationArguments), line[2:])
            assert Path(data.data_file_paths).is_file() and arguments.output_dir == "outputs/test"
            continue
        assert line[0] == "kivqa" and line[1] in ("convert", "check")
        assert main(line[1:]) == 0, capsys.readouterr()
        told[line[-1]] = capsys.readouterr().out
    for output in ("evqa_test.jsonl", "infoseek.jsonl"):
        assert told[output].replace(str(kivqa_downloads), "/home/me") in page
    cut = Path("encyclopedic_kb_wiki.json")
    cut.write_bytes(cut.read_bytes()[:100_000])
    assert main(["convert", "kb", "--input", cut.name, "--output", "cut.jsonl"]) == 2
    assert capsys.readouterr().err in page
    made = ("evqa_train", "evqa_test", "viquae_test", "vlm_r1_train", "test", "echosight_test")
    # 3 questions, one of them with two images; 4 of 5; 1; 1 + 20 % of 10 + all 10 of the first 1000; of one of ten the image is missing
    assert [len(lines_of(Path(f"{name}.jsonl"))) for name in made] == [4, 4, 1, 13, 9, 9]


def test_rows_of_the_page_on_boxes():
    blocks = re.findall(
        r"^```json\n(.*?)^```", (DOCS / "boxes.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    rows = [parse_row(json.loads(block), image_folder="x", reward_method="", source="boxes.md:1") for block in blocks]
    assert [row.reward_method for row in rows] == ["iou", "od_ap"]
    for row in rows:
        assert box_problem(row, [(640, 480)]) is None and score(row.answers[0], row) == 1.0
