"""Opening and reading a million rows: `python bench/data.py [--rows 1000000 --read 50000 --images 1000]`.

Writes rows and a knowledge base into a temporary folder, opens them with an empty cache, and prints as its last line one JSON
object:
  rows, mib            what was written
  open_s               seconds to open the file and read every id, with nothing remembered from before
  open_cpu_s           processor seconds of that; on a busy machine open_s is longer
  open_again_s         the same from the cache
  rows_per_s           rows parsed into samples, drawn at random
  rows_checked_per_s   rows that `run_checks` looked at, their passages and images included, no model given
  articles             articles of the knowledge base
  knowledge_open_s     seconds to open it, with nothing remembered from before
  passages_per_s       passages found by key and parsed, drawn at random
  peak_rss_mib         peak resident memory of the process: imports, ids and mapped pages included
"""

import argparse
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from PIL import Image

from open_r1_kivqa.data.checks import Source, run_checks
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows to write")
    parser.add_argument(
        "--read", type=int, default=50_000, help="rows and passages read, and rows checked, for the rates"
    )
    parser.add_argument("--images", type=int, default=1000, help="pictures that the rows show in turn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["KIVQA_CACHE"] = f"{name}/cache"
        print(json.dumps(measure(Path(name), arguments.rows, arguments.read, arguments.images)))


def measure(folder: Path, number: int, read: int, images: int) -> dict:
    articles = max(1, number // 10)
    data, part, knowledge = (folder / name for name in ("rows.jsonl", "part.jsonl", "knowledge.jsonl"))
    write(data, (row(i, articles, images) for i in range(number)))
    write(part, (row(i, articles, images) for i in range(read)))
    write(knowledge, (article(i) for i in range(articles)))
    (folder / "images").mkdir()
    for i in range(images):
        Image.effect_noise((224, 224), 50).convert("RGB").save(folder / "images" / f"{i}.jpg")
    print(f"{number} rows, {data.stat().st_size / 2**20:.0f} MiB, and {articles} articles written", flush=True)

    def open_rows() -> Rows:
        rows = Rows.open([str(data)], [str(folder)], None)
        assert len(rows.ids) == number
        return rows

    start = time.process_time()
    rows, open_s = timed(open_rows)
    open_cpu_s = time.process_time() - start
    rows, open_again_s = timed(open_rows)
    generator = random.Random(0)
    draws = [generator.randrange(number) for _ in range(read)]
    _, read_s = timed(lambda: [rows[i].id for i in draws])
    kb, knowledge_open_s = timed(lambda: KnowledgeBase.open(str(knowledge)))
    keys = [f"article/{generator.randrange(articles)}#s1" for _ in range(read)]
    _, passages_s = timed(lambda: [len(kb.passage(key).text) for key in keys])
    report, check_s = timed(lambda: run_checks([Source(str(part), str(folder))], kb=kb))
    assert report.rows == read and not report.problems, report.problems[:3]
    return {
        "rows": number,
        "mib": round(data.stat().st_size / 2**20),
        "open_s": round(open_s, 2),
        "open_cpu_s": round(open_cpu_s, 2),
        "open_again_s": round(open_again_s, 2),
        "rows_per_s": round(read / read_s),
        "rows_checked_per_s": round(read / check_s),
        "articles": articles,
        "knowledge_open_s": round(knowledge_open_s, 2),
        "passages_per_s": round(read / passages_s),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def timed(function):
    """(what it returns, seconds)"""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def row(i: int, articles: int, images: int) -> dict:
    """A row of a knowledge-based set: 20 candidates, some aliases."""
    return {
        "id": f"train_{i:08d}",
        "image": f"images/{i % images}.jpg",
        "conversations": [
            {"from": "human", "value": f"<image>In which year was the building in picture {i} finished?"},
            {"from": "gpt", "value": str(1000 + i % 1000)},
        ],
        "answers": [str(1000 + i % 1000), f"in {1000 + i % 1000}"],
        "question_type": "templated",
        "entity": f"article/{i % articles}",
        "evidence": f"article/{i % articles}#s1",
        "candidates": [f"article/{(i * 31 + k) % articles}#s1" for k in range(min(20, articles))],
    }


def article(i: int) -> dict:
    sections = [
        {"id": f"s{k}", "title": f"Section {k}", "text": f"Sentence {k} of article {i}. " * 20} for k in range(5)
    ]
    return {"key": f"article/{i}", "title": f"Article {i}", "url": "", "sections": sections, "images": []}


def write(path: Path, records) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    os.utime(path, (1e9, 1e9))  # as a file at rest: one that has just changed is not remembered


if __name__ == "__main__":
    main()
