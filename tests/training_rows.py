"""A small data set on disk for the trainer's tests: eight rows with one, two or no image, and their passages."""

import json
from pathlib import Path

from PIL import Image

COUNTRIES = ["France", "Germany", "Italy", "Spain", "Norway", "Japan", "Brazil", "Canada"]


def write_data(folder: Path, kinds: str = "12012010") -> dict[str, str]:
    """Write rows.jsonl, images and wiki.jsonl.

    Args:
        kinds: how many images each row has, one digit a row.

    Returns:
        The flags --data_file_paths, --image_folders and --knowledge_base as a dict.
    """
    images = folder / "images"
    images.mkdir(parents=True)
    rows, articles = [], []
    for number, (country, kind) in enumerate(zip(COUNTRIES, kinds, strict=False)):
        names = [f"{country}-{i}.png" for i in range(int(kind))]
        for i, name in enumerate(names):
            Image.new("RGB", (56 + 28 * (number % 2), 56), (30 * number, 80 * i, 120)).save(images / name)
        question = "<image>" * len(names) + f"What is the capital? {number}"
        rows.append(
            {
                "id": country.lower(),
                "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "yes"}],
                "entity": country.lower(),
                "evidence": f"{country.lower()}#capital",
                "candidates": [f"{other.lower()}#capital" for other in COUNTRIES[: number + 1]],
            }
            | ({"image": names} if names else {})
        )
        text = f"The capital of {country}: yes"
        section = {"id": "capital", "title": "Capital", "text": text}
        articles.append({"key": country.lower(), "title": country, "url": "", "sections": [section], "images": []})
    for name, entries in (("rows.jsonl", rows), ("wiki.jsonl", articles)):
        (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return data_flags(folder)


def data_flags(folder: Path) -> dict[str, str]:
    """The flags of the data that `write_data` wrote there."""
    return {
        "data_file_paths": str(folder / "rows.jsonl"),
        "image_folders": str(folder / "images"),
        "knowledge_base": str(folder / "wiki.jsonl"),
    }
