"""A small Encyclopedic-VQA: the published columns, pictures of the embedded flags under ids and in folders as iNaturalist's and Google Landmarks', and a knowledge base in the published keys."""

import csv
import json
import shutil
from pathlib import Path

import open_r1_kivqa
from open_r1_kivqa.benchmarks.evqa_csv import COLUMNS

FLAGS = Path(open_r1_kivqa.__file__).parent / "demo" / "data" / "images" / "eval"
WIKI = "https://en.wikipedia.org/wiki/"
LANDMARK, OTHER = "00a1b2c3d4e5f607", "ffe0123456789abc"
SPECIES = {12: "val/00001_Animalia_Aves/0a7c1111-aaaa.jpg", 345: "val/00002_Plantae/9bd52222-bbbb.jpg"}


def question(**columns) -> dict:
    """A row of the csv; what isn't given is as in the first question."""
    row = {
        "question": "How tall is this tower?",
        "answer": "330 m|330 metres",
        "dataset_image_ids": f"{LANDMARK}|{OTHER}",
        "dataset_name": "landmarks",
        "dataset_category_id": "7",
        "question_type": "automatic",
        "wikipedia_url": f"{WIKI}Eiffel_Tower",
        "wikipedia_title": "Eiffel Tower",
        "evidence": "",
        "evidence_section_id": "1",
        "evidence_section_title": "Height",
        "encyclopedic_vqa_split": "val",
        "question_original": "How tall is the Eiffel Tower?",
        "wikipedia_url_used_in_train": "False",
    }
    return row | columns


BIRD = question(
    question="Which colours does this bird have?",
    answer="black&&white|black&&white&&grey",
    dataset_image_ids="12",
    dataset_name="inaturalist",
    question_type="multi_answer",
    wikipedia_url=f"{WIKI}Eurasian_magpie",
    evidence_section_id="0",
)
HOPS = question(
    question="In which country does this plant's discoverer lie buried?",
    answer="Sweden",
    dataset_image_ids="345",
    dataset_name="inaturalist",
    question_type="2_hop",
    wikipedia_url=f"{WIKI}Linnaea|{WIKI}Carl_Linnaeus",
    evidence_section_id="0|1",
)
QUESTIONS = [question(), BIRD, HOPS]
ARTICLES = {"Eiffel_Tower": 2, "Eurasian_magpie": 1, "Linnaea": 1, "Carl_Linnaeus": 2}  # title: number of sections


def write_csv(path: Path, rows: list[dict], columns=COLUMNS) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_images(folder: Path) -> Path:
    """Both benchmarks' images, and `val.json`, which says which file an iNaturalist id is."""
    flags = sorted(FLAGS.glob("*.jpg"))
    names = [f"landmarks/{id[0]}/{id[1]}/{id[2]}/{id}.jpg" for id in (LANDMARK, OTHER)]
    names += [f"inat/{name}" for name in SPECIES.values()]
    for flag, name in zip(flags, names, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(flag, folder / name)
    images = [{"id": id, "width": 1, "height": 1, "file_name": name} for id, name in SPECIES.items()]
    (folder / "val.json").write_text(json.dumps({"info": {}, "images": images, "annotations": [{"id": 1}]}))
    return folder


def write_knowledge_base(path: Path) -> Path:
    """As `kivqa convert kb` writes it: keys are urls, ids of sections their places."""
    articles = [
        {
            "key": WIKI + name,
            "title": name.replace("_", " "),
            "url": WIKI + name,
            "sections": [{"id": str(i), "title": f"Part {i}", "text": f"Text {i} of {name}."} for i in range(sections)],
            "images": [],
        }
        for name, sections in ARTICLES.items()
    ]
    path.write_text("".join(json.dumps(article) + "\n" for article in articles))
    return path
