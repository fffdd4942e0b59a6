"""What the tests of `kivqa retrieve` are about: pictures of three colours, articles and an index of them."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from open_r1_kivqa.cli import main
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.building import build_index
from open_r1_kivqa.retrieval.encoders import load_image_encoder
from open_r1_kivqa.retrieval.vectors import ArrayVectors

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (30, 60, 220)}
SECTIONS = {"habitat": "It lives in woods and fields.", "diet": "It eats mice, berries and worms."}


def picture(path: Path, colour, noise: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((24, 32, 3), colour, dtype=np.uint8)
    pixels[:noise] //= 2
    Image.fromarray(pixels).save(path)


def write_base(path: Path, names) -> KnowledgeBase:
    with open(path, "w") as file:
        for name in names:
            sections = [{"id": id, "title": id, "text": text} for id, text in SECTIONS.items()]
            article = {"key": name, "title": f"The {name} one", "sections": sections, "images": [f"kb/{name}.png"]}
            file.write(json.dumps(article) + "\n")
    return KnowledgeBase.open(str(path))


def write_index(folder: Path, kb: KnowledgeBase, images: Path) -> str:
    encoder = load_image_encoder("colour")
    keys = [article["key"] for article in kb for _ in article["images"]]
    vectors = encoder.encode([str(images / name) for article in kb for name in article["images"]])
    about = {"encoder": encoder.name, "encoder_fingerprint": encoder.fingerprint}
    about |= {"knowledge_base": kb.path, "knowledge_base_fingerprint": kb.fingerprint}
    build_index(str(folder), ArrayVectors(vectors), keys, about=about)
    return str(folder)


def question(id, image=None, text="What does it eat?", **fields) -> dict:
    marker = "" if image is None else "<image>\n" * (1 if isinstance(image, str) else len(image))
    row = {"id": id} | ({} if image is None else {"image": image})
    return {**row, "conversations": [{"from": "human", "value": f"{marker}{text}"}], **fields}


class World:
    """A knowledge base of three colours with an index, and a way to retrieve for rows: run(rows, *flags) -> (rows, report)."""

    def __init__(self, folder: Path):
        self.folder, self.images = folder, folder / "images"
        for name, colour in COLOURS.items():
            picture(self.images / "kb" / f"{name}.png", colour)
            picture(self.images / f"{name}.png", colour, noise=3)
        write_index(folder / "index", write_base(folder / "kb.jsonl", COLOURS), self.images)

    def flags(self, rows: list[dict] | None, *flags: str, index: bool = True) -> list[str]:
        if rows is not None:
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (self.folder / "rows.jsonl").write_text(text)
        given = {"data_file_paths": self.folder / "rows.jsonl", "image_folders": self.images}
        given |= {"knowledge_base": self.folder / "kb.jsonl", "output": self.folder / "out.jsonl"}
        given |= {"index": self.folder / "index"} if index else {}
        return ["retrieve", *(part for name, value in given.items() for part in (f"--{name}", str(value))), *flags]

    def run(self, rows: list[dict], *flags: str, index: bool = True) -> tuple[list[dict], dict]:
        assert main(self.flags(rows, *flags, index=index)) == 0
        out = self.folder / "out.jsonl"
        lines = out.read_text().splitlines()
        return [json.loads(line) for line in lines], json.loads(Path(f"{out}.report.json").read_text())
