"""What the tests of `kivqa bridge` share: a few embedded rows, and the command run on them."""

import json
from pathlib import Path

import open_r1_kivqa
from open_r1_kivqa.cold_start.bridge_cli import main

DATA = Path(open_r1_kivqa.__file__).parent / "demo" / "data"
IMAGES, KNOWLEDGE = str(DATA / "images"), str(DATA / "knowledge.jsonl")


def factbook(count: int) -> list[dict]:
    """The first rows of the embedded training set; each has another picture."""
    with open(DATA / "train.jsonl", encoding="utf-8") as file:
        return [json.loads(next(file)) for _ in range(count)]


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read_jsonl(path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


class Run:
    """A folder with rows, and the command over them; `words` replaces or adds flags."""

    def __init__(self, folder: Path, rows: list[dict], url: str):
        self.folder, self.rows = folder, rows
        self.output, self.answers = folder / "out.jsonl", folder / "out.answers"
        self.flags = {
            "data_file_paths": write_jsonl(folder / "rows.jsonl", rows),
            "image_folders": IMAGES,
            "mllm_url": url,
            "mllm_model": "eyes",
            "reasoner_model": "brain",
            "output": str(self.output),
            "timeout": 5,
            "retries": 1,
        }

    def words(self, **flags) -> list[str]:
        given = {name: value for name, value in (self.flags | flags).items() if value is not None}
        words = [[f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in given.items()]
        return [word for pair in words for word in pair]

    def __call__(self, **flags) -> int:
        return main(self.words(**flags))

    @property
    def report(self) -> dict:
        return json.loads((self.folder / "out.report.json").read_text(encoding="utf-8"))

    def counts(self) -> dict[str, int]:
        """How many rows had each outcome, but for those that none had."""
        return {kind: one["count"] for kind, one in self.report["outcomes"].items() if one["count"]}
