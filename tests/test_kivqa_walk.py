"""docs/kivqa_walkthrough.md in small: its own commands run, on fewer rows, with two steps and two settings; those for the published files run on small files of the same names and shape."""

import json
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.published_factbook import DATA, countries, encyclopedic_kb, infoseek, lines_of, url_of, write_lines
from evqa_fixture import question, write_csv

from open_r1_kivqa import evaluate_jsonl, grpo_jsonl
from open_r1_kivqa.arguments import DataArguments
from open_r1_kivqa.cli import main
from open_r1_kivqa.demo import CHECKPOINT
from open_r1_kivqa.entry import parse, parse_some

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "kivqa_walkthrough.md").read_text(encoding="utf-8")
WALK, _, PUBLISHED = PAGE.partition("## The same with the published files")
SMALL = ["--max_steps", "2", "--per_device_train_batch_size", "16", "--num_generations", "4", "--report_to", "none"]
TWO = ["--settings", "normal,gold_only"]
# Bash functions of the commands' names write down what they are given; python runs scripts that the page spells out.
RECORD = """
source() { :; }
record() { printf '%s\\n' "$@" "" >>calls; }
for tool in kivqa torchrun; do eval "$tool() { record $tool \\"\\$@\\"; }"; done
python() { case $1 in -*) command python "$@" ;; *) record python "$@" ;; esac; }
set -e
"""


def blocks(text: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def calls(prelude: str, block: str) -> list[list[str]]:
    """The commands of a block of the page, as words; here and now, since what the page spells out in Python reads what earlier blocks wrote."""
    Path("calls").unlink(missing_ok=True)
    done = subprocess.run(["bash", "-c", RECORD + prelude + block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [call.split("\n") for call in Path("calls").read_text().strip("\n").split("\n\n")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run the page's commands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    for name in ("configs", "local_scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def small(place):
    """The embedded questions where the page has them: 48 for training, 12 of each split."""
    data = place / "src" / "open_r1_kivqa" / "demo" / "data"
    data.mkdir(parents=True)
    (data.parent / "tiny_qwen2_5_vl").symlink_to(CHECKPOINT)
    for name in ("images", "knowledge.jsonl"):
        (data / name).symlink_to(DATA / name)
    write_lines(data / "train.jsonl", lines_of(DATA / "train.jsonl")[:48])
    rows = lines_of(DATA / "eval.jsonl")
    splits = [[row for row in rows if row["split"] == name] for name in ("unseen_question", "unseen_entity", "maps")]
    write_lines(data / "eval.jsonl", [row for split in splits for row in split[:: len(split) // 12][:12]])
    return place


def run(words: list[str], capsys) -> str:
    """A command of the page in this process; gives what it prints."""
    tool, *rest = words
    capsys.readouterr()
    if tool == "kivqa":
        assert main(rest) == 0, capsys.readouterr()
    elif rest[0].endswith("grpo_jsonl.py"):
        grpo_jsonl.main([*rest[1:], *SMALL])
    else:
        evaluate_jsonl.main([*rest[1:], *TWO])
    return capsys.readouterr().out


def test_from_pictures_to_official_scores(small, capsys):
    first, *others = blocks(WALK)
    printed = {}
    for block in others:
        for words in calls(first, block):
            if "--section_scorer" in words:  # run in tests/retrieval: half a minute to embed all passages
                assert (Path(words[words.index("--section_scorer") + 1]) / "config.json").exists()
                continue
            printed.setdefault(" ".join(words[:3] if words[1] == "score" else words[:2]), []).append(run(words, capsys))
    assert sorted(printed) == [
        "kivqa check",
        "kivqa graph",
        "kivqa index",
        "kivqa retrieve",
        "kivqa score infoseek",
        "kivqa score rows",
        "python src/open_r1_kivqa/evaluate_jsonl.py",
        "python src/open_r1_kivqa/grpo_jsonl.py",
    ]
    assert "221 vectors of 221 articles" in printed["kivqa index"][0]
    out = small / "outputs" / "kivqa"
    for name, told in zip(("train", "eval"), printed["kivqa retrieve"], strict=True):
        check_recall(out / f"{name}.jsonl", told)
    every = {f"{article['key']}#{part['id']}" for article in countries() for part in article["sections"]}
    # BM25 finds the section that a question names, in every article that has it.
    for row in lines_of(out / "eval.jsonl"):
        found = {key.partition("#")[0]: key for key in row["candidates"]}
        assert len(found) == len(row["candidates"]) == 20
        assert {f"{key}#{row['question_type']}" for key in found} & every <= set(found.values())
    assert len(list((out / "grpo").glob("checkpoint-2"))) == 1
    for told in printed["python src/open_r1_kivqa/evaluate_jsonl.py"]:
        assert "…" not in told and "harmonic_mean" in told
    for model, told in zip(("tiny_qwen2_5_vl", "grpo"), printed["kivqa score infoseek"], strict=True):
        check_scores(out, out / f"eval_{model}", told)
    by_split = by_hand(out, out / "eval_grpo")[0]
    for split, score in by_split.items():
        assert re.search(rf"^{split} +12 +{score:.2f} ", printed["kivqa score rows"][0], re.MULTILINE)

    # Once more: the same bytes.
    (retrieve,) = (words for words in calls(first, others[1]) if words[-1].endswith("/train.jsonl"))
    run([*retrieve[:-1], str(out / "again.jsonl")], capsys)
    assert (out / "again.jsonl").read_bytes() == (out / "train.jsonl").read_bytes()
    for block in others:
        for words in calls(first, block):
            if words[0] == "python" and "tiny" not in words[-1]:
                run([*words[:-1], f"{words[-1]}_again"], capsys)
    assert Path(out / "grpo_again/model.safetensors").read_bytes() == Path(out / "grpo/model.safetensors").read_bytes()
    for name in ("predictions.jsonl", "summary.json"):
        assert (out / "eval_grpo_again" / name).read_bytes() == (out / "eval_grpo" / name).read_bytes()


def test_recall_is_that_of_the_page_on_retrieval():
    other = (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^passage\n((?: .*\n)+)", WALK, re.MULTILINE)
    assert len(table.splitlines()) == 4 and table in other


def check_recall(path: Path, told: str) -> None:
    """Report and table of `kivqa retrieve` against a count in the rows that it wrote."""
    rows = lines_of(path)
    report = json.loads(Path(f"{path}.report.json").read_text())["recall"]
    for split in {row["split"] for row in rows}:
        its = [row for row in rows if row["split"] == split]
        shares = []
        for k in (1, 5, 10, 20):
            passages = [row["evidence"] in row["candidates"][:k] for row in its]
            articles = [f"{row['entity']}#" in " ".join(row["candidates"][:k]) for row in its]
            assert report["passage"][split][f"R@{k}"] == round(100 * sum(passages) / len(its), 2)
            assert report["article"][split][f"R@{k}"] == round(100 * sum(articles) / len(its), 2)
            shares.append(100 * sum(passages) / len(its))
        line = rf"  {split} +{len(its)}" + "".join(f"{share:8.1f}" for share in shares)
        assert re.search(f"^{line}$", told.partition("\npassage\n")[2], re.MULTILINE)


def by_hand(out: Path, folder: Path, setting: str = "normal") -> tuple[dict, float, float]:
    """(share right of each split, mean, harmonic mean) in per cent of what was predicted under a setting, with InfoSeek's comparison written out."""
    rows = {row["id"]: row for row in lines_of(out / "eval.jsonl")}
    right: dict[str, list[bool]] = {}
    for line in lines_of(folder / f"official_predictions.{setting}.jsonl"):
        row = rows[line["data_id"]]
        right.setdefault(row["split"], []).append(bare(line["prediction"]) in map(bare, row["answers"]))
    scores = {split: round(100 * sum(values) / len(values), 2) for split, values in right.items()}
    one, two = scores["unseen_question"], scores["unseen_entity"]
    every = [value for values in right.values() for value in values]
    return scores, 100 * sum(every) / len(every), 2 * one * two / (one + two) if one and two else 0.0


def bare(text: str) -> str:
    """Small letters, without punctuation, articles and further spaces."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))


def check_scores(out: Path, folder: Path, told: str) -> None:
    """`kivqa score infoseek` and the evaluation's summary against a count in the predictions; accuracy by the gold passage's rank against one in the candidates."""
    scores, mean, harmonic = by_hand(out, folder)
    for split, score in scores.items():
        assert re.search(rf"^{split} +12 .* {score:.2f}$", told, re.MULTILINE)
    assert re.search(rf"^all questions \(mean\) +24 .* {mean:.2f}$", told, re.MULTILINE)
    assert re.search(rf"^Score .* {harmonic:.2f}$", told, re.MULTILINE)
    summary = json.loads((folder / "summary.json").read_text())
    for setting in ("normal", "gold_only"):
        scores, mean, harmonic = by_hand(out, folder, setting)
        figures = summary["official"][setting]["infoseek"]["lenient"]
        assert {split: part["score"] for split, part in figures["splits"].items()} == scores
        assert (figures["mean"], figures["score"]) == pytest.approx((mean, harmonic), abs=0.005)
    assert harmonic > 0  # the model reads some of the passages that it is given
    rows = {row["id"]: row for row in lines_of(out / "eval.jsonl")}
    for split in scores:
        ranks: dict[str, list[float]] = {}
        for record in lines_of(folder / "predictions.jsonl"):
            if record["setting"] == "normal" and record["split"] == split:
                row = rows[record["id"]]
                found = (
                    row["candidates"].index(row["evidence"]) + 1 if row["evidence"] in row["candidates"] else "absent"
                )
                ranks.setdefault(str(found), []).append(record["correct_lenient"])
                assert record["passages"] == row["candidates"][:5]
        counted = {rank: {"n": len(values), "accuracy": sum(values) / len(values)} for rank, values in ranks.items()}
        assert summary["splits"][split]["settings"]["normal"]["gold_rank"] == counted


@pytest.fixture
def downloads(place):
    """The files that the page's last section names, made of the Factbook: 12 questions of each file."""
    training, later = lines_of(DATA / "train.jsonl")[:12], lines_of(DATA / "eval.jsonl")[295:307]  # of two splits
    encyclopedic_kb(place / "encyclopedic_kb_wiki.json")
    pictures = place / "data" / "wiki_images"
    pictures.mkdir(parents=True)
    for article in countries():
        shutil.copy(DATA / "images" / article["images"][0], pictures / f"{article['key']}.png")
    infoseek(place, [*training, *later])
    shutil.move(place / "oven", place / "data" / "oven")
    for name in ("infoseek_val", "infoseek_val_withkb", "infoseek_val_qtype"):
        lines = lines_of(place / f"{name}.jsonl")
        write_lines(place / f"{name}.jsonl", lines[12:])
        write_lines(place / f"{name.replace('val', 'train')}.jsonl", lines[:12])
    for name, split, rows in (("train", "train", training), ("test", "val", later)):
        (place / "data" / "landmarks" / "train").mkdir(parents=True, exist_ok=True)
        write_csv(
            place / f"{name}.csv", [encyclopedic_question(place / "data", split, *pair) for pair in enumerate(rows)]
        )
        images = [{"id": n, "file_name": f"{split}/one/{n}.jpg"} for n in range(0, len(rows), 2)]
        (place / "data" / "inat" / f"{split}.json").write_text(json.dumps({"images": images}))
    return place


def encyclopedic_question(data: Path, split: str, number: int, row: dict) -> dict:
    """A row of the Factbook as one of a csv, its picture laid out as iNaturalist's (every second) or Google Landmarks'."""
    species = number % 2 == 0
    id = str(number) if species else f"{split.encode().hex()[:6]}{number:010x}"
    picture = data / (f"inat/{split}/one/{id}.jpg" if species else f"landmarks/train/{'/'.join(id[:3])}/{id}.jpg")
    picture.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / "images" / row["image"], picture)
    (article,) = (article for article in countries() if article["key"] == row["entity"])
    sections = [part["id"] for part in article["sections"]]
    return question(
        question=row["conversations"][0]["value"].replace("<image>\n", ""),
        answer="|".join(row["answers"]),
        dataset_image_ids=id,
        dataset_name="inaturalist" if species else "landmarks",
        question_type="templated",
        wikipedia_url=url_of(article),
        wikipedia_title=article["title"],
        evidence_section_id=str(sections.index(row["question_type"])),
        encyclopedic_vqa_split=split,
    )


def test_commands_for_published_files(downloads, capsys):
    first, *benchmarks = blocks(PUBLISHED)
    names = first.replace("openai/clip-vit-large-patch14-336", "colour")
    names = names.replace("sentence-transformers/all-MiniLM-L6-v2", "bm25")
    variables = "".join(line for line in names.splitlines(keepends=True) if "=" in line.split()[0])
    scored = {}
    for block in (names, *benchmarks):
        for tool, *words in calls(variables, block):
            if tool == "torchrun":
                assert words[:2] == ["--nproc_per_node", "8"]
                take_note(words[2], words[3:])
                continue
            assert main(words) == 0, capsys.readouterr()
            if words[0] == "retrieve":
                check_found(Path(words[words.index("--output") + 1]))
            if words[0] == "score":
                capsys.readouterr()
                assert main([*words, "--json"]) == 0
                scored[words[1]] = json.loads(capsys.readouterr().out)
    # take_note answered every second question right
    assert scored["infoseek"]["coverage"]["questions"] == scored["evqa"]["coverage"]["questions"] == 12
    assert scored["infoseek"]["scores"]["mean"] == 50.0
    assert scored["evqa"]["scores"]["single_hop"]["score"] == 50.0


def take_note(script: str, words: list[str]) -> None:
    """A command of torchrun: its flags exist and its files are there; of an evaluation the answers, every second one right, in place of a model's."""
    if script.endswith("grpo_jsonl.py"):
        data, _ = parse_some(grpo_jsonl.FLAGS, (DataArguments,), words)
        assert all(Path(path).exists() for path in (data.data_file_paths, data.knowledge_base, data.image_folders))
        return
    data, *_, evaluation = parse(evaluate_jsonl.FLAGS, words)
    folder = Path(evaluation.output_dir)
    folder.mkdir(parents=True)
    rows = lines_of(data.data_file_paths)
    lines = []
    for number, row in enumerate(rows):
        answers = row["answers"]
        right = str(sum(answers["range"]) / 2) if isinstance(answers, dict) else answers[-1]
        lines.append({"data_id": row["data_id"], "prediction": right if number % 2 else "Atlantis"})
    write_lines(folder / "official_predictions.normal.jsonl", lines)


def check_found(path: Path) -> None:
    """All 12 questions have 20 candidates of 20 articles, and recall is what the rows show."""
    rows = lines_of(path)
    assert len(rows) == 12 and {len({key.rpartition("#")[0] for key in row["candidates"]}) for row in rows} == {20}
    recall = json.loads(Path(f"{path}.report.json").read_text())["recall"]
    kinds = {"passage": [row for row in rows if row.get("evidence_source") != "weak"]}
    for kind, its in kinds.items():
        found = [set(listed(row["evidence"])) & set(row["candidates"][:5]) for row in its]
        assert recall[kind]["all"]["R@5"] == round(100 * sum(map(bool, found)) / len(its), 2) > 0


def listed(keys: str | list[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else keys
