"""Rows and a knowledge base for the tests of evaluation."""

import json
from pathlib import Path

from open_r1_kivqa.data.samples import Sample, parse_row
from open_r1_kivqa.knowledge.base import KnowledgeBase

CAPITALS = {"fr": ("France", "Paris"), "it": ("Italy", "Rome"), "no": ("Norway", "Oslo"), "ne": ("Niger", "Niamey")}


def sample(
    id: str, *, images: tuple[str, ...] = (), question: str = "What is it?", answer: str = "yes", **fields
) -> Sample:
    """A row with these images (absolute paths) and fields."""
    row = {"id": id, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
    row |= {"image": [image.lstrip("/") for image in images]} if images else {}
    return parse_row(row | fields, image_folder="/", reward_method="default", source=f"rows.jsonl:{id}")


def knowledge(folder: Path, **pictures: str) -> KnowledgeBase:
    """A knowledge base of CAPITALS with passages like "capital of France: Paris"; `pictures` maps article keys to image paths."""
    articles = [
        {
            "key": key,
            "title": title,
            "sections": [{"id": "capital", "title": "capital", "text": f"capital of {title}: {capital}"}],
            "images": [pictures[key]] if key in pictures else [],
        }
        for key, (title, capital) in CAPITALS.items()
    ]
    path = folder / "knowledge.jsonl"
    path.write_text("".join(json.dumps(article) + "\n" for article in articles))
    return KnowledgeBase.open(str(path))


def capital_row(key: str, *, id: str = "1", candidates: tuple[str, ...] = tuple(CAPITALS), **fields) -> Sample:
    """The question for the capital of one of CAPITALS, with all of them as candidates."""
    fields = {"question_type": "capital", "entity": key, "evidence": f"{key}#capital"} | fields
    fields |= {"answer": CAPITALS[key][1], "candidates": [f"{candidate}#capital" for candidate in candidates]}
    return sample(id, question="Which capital?", **fields)
