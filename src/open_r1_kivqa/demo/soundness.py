"""Checks that the benchmark measures seeing and reading, computed from the written files alone."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from open_r1_kivqa.demo import pictures
from open_r1_kivqa.demo.confusion import nearest
from open_r1_kivqa.demo.facts import normalise


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def candidate_sets(row: dict) -> list[list[str]]:
    """All candidate sets of a row, as lists of passage keys."""
    return row["candidates"] if isinstance(row["candidates"][0], list) else [row["candidates"]]


def retrieval(folder: Path, names: list[str]) -> dict[str, float]:
    """Share of pictures whose own clean flag is the nearest (R@1), or among the five nearest (R@5), of all flags, by colour thumbnails."""
    keys = sorted(path.stem for path in (folder / "images" / "flags").glob("*.png"))
    flags = np.stack([pictures.features(Image.open(folder / "images" / "flags" / f"{key}.png")) for key in keys])
    queries = np.stack([pictures.features(Image.open(folder / "images" / name)) for name in names])
    apart = pictures.distances(queries, flags)
    own = np.array([keys.index(Path(name).stem.rsplit("_", 1)[0]) for name in names])
    rank = (apart < apart[np.arange(len(names)), own][:, None]).sum(axis=1)
    return {"R@1": float((rank < 1).mean()), "R@5": float((rank < 5).mean()), "n": len(names)}


def blind_rules(folder: Path, rows: list[dict]) -> dict[str, float]:
    """Accuracy of rules that see a row's candidates but not its picture; chance is 1 in 5. Ties go to the first candidate, whose place is random.

    "Most often gold in training" is fitted to the training rows, so it does a little better than chance on these same rows.
    """
    keys = sorted(path.stem for path in (folder / "images" / "flags").glob("*.png"))
    index = {key: i for i, key in enumerate(keys)}
    flags = np.stack([pictures.features(Image.open(folder / "images" / "flags" / f"{key}.png")) for key in keys])
    apart = pictures.distances(flags, flags)
    in_degree = np.bincount(nearest(apart).reshape(-1), minlength=len(keys))
    train = read_jsonl(folder / "train.jsonl")
    as_gold = Counter(row["entity"] for row in train)
    as_candidate = Counter(key.split("#")[0] for row in train for one in candidate_sets(row) for key in one)
    right: Counter = Counter()
    total = 0
    for row in rows:
        for one in candidate_sets(row):
            members = [key.split("#")[0] for key in one]
            places = [index[key] for key in members]
            among = apart[np.ix_(places, places)].sum(axis=1)
            rules = {
                "medoid": -among,
                "outlier": among,
                "most often a neighbour": in_degree[places],
                "most often gold in training": [as_gold[key] for key in members],
                "most often a candidate in training": [as_candidate[key] for key in members],
                "always first": [0] * len(members),
            }
            for name, score in rules.items():
                right[name] += members[int(np.argmax(score))] == row["entity"]
            total += 1
    return {name: count / total for name, count in right.items()}


def most_common_values(folder: Path) -> dict[str, float]:
    """Per attribute the share of the knowledge base's entities that its most frequent value fits."""
    values: dict[str, list[str]] = {}
    for article in read_jsonl(folder / "knowledge.jsonl"):
        for section in article["sections"]:
            values.setdefault(section["id"], []).append(normalise(section["text"].split(": ", 1)[1]))
    return {kind: Counter(known).most_common(1)[0][1] / len(known) for kind, known in values.items()}


def print_report(folder: Path) -> None:
    """Print counts and every check of this file."""
    train, evaluation = read_jsonl(folder / "train.jsonl"), read_jsonl(folder / "eval.jsonl")
    articles = read_jsonl(folder / "knowledge.jsonl")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    splits = Counter(row["split"] for row in train + evaluation)
    common = most_common_values(folder)
    print(
        f"{len(articles)} entities, {len(common)} attributes, {sum(len(article['sections']) for article in articles)} passages, {size / 1e6:.1f} MB"
    )
    print("rows:", dict(splits))
    for name in ("train", "eval"):
        names = sorted(str(path.relative_to(folder / "images")) for path in (folder / "images" / name).glob("*.jpg"))
        print(
            f"retrieval of {name} pictures by colour thumbnails:",
            {key: round(value, 3) for key, value in retrieval(folder, names).items()},
        )
    print(f"most frequent value of an attribute, at most: {max(common.values()):.3f} ({max(common, key=common.get)})")
    for split in splits:
        rows = [row for row in train + evaluation if row["split"] == split]
        print(
            f"rules that see no picture, {split} ({len(rows)} rows):",
            {name: round(share, 3) for name, share in blind_rules(folder, rows).items()},
        )
