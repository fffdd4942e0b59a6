"""Building the graph of a million rows: `python bench/graph.py [--rows 1000000 --articles 100000]`.

Writes rows and a knowledge base into a temporary folder, runs `kivqa graph` on them as a process of its own, and prints as its last line one JSON object:
  rows, articles, questions   what was written; questions are distinct texts
  neighbours                  most neighbours of a row
  threads                     of compiled code and BLAS
  seconds                     of the command: imports, reading, compiling if nothing is cached, search, recall, writing
  peak_rss_gib                peak resident memory of the command
  recall_at_K                 share of the true K nearest rows among the K neighbours, on 1000 random rows
  edges, file_gib             what came out
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from open_r1_kivqa.curriculum.graph import SampleGraph

WORDS, TOPICS, RELATIONS = 50_000, 500, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows to write")
    parser.add_argument("--articles", type=int, default=100_000, help="how many articles they ask about")
    parser.add_argument("--neighbours", type=int, default=100, help="--prop_topk")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of compiled code and BLAS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name), arguments)))


def measure(folder: Path, arguments: argparse.Namespace) -> dict:
    topics = np.random.default_rng(0).integers(TOPICS, size=arguments.articles)
    data, knowledge, output = (folder / name for name in ("rows.jsonl", "knowledge.jsonl", "graph.npz"))
    write(knowledge, articles(topics))
    questions = write(data, rows(arguments.rows, topics))
    print(f"{arguments.rows:,} rows and {arguments.articles:,} articles written", flush=True)
    flags = {"data_file_paths": data, "knowledge_base": knowledge, "output": output, "prop_topk": arguments.neighbours}
    command = [sys.executable, "-m", "open_r1_kivqa.cli", "graph"]
    command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    threads = {name: str(arguments.threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    start = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **threads, "KIVQA_CACHE": str(folder / "cache")})
    seconds = time.perf_counter() - start
    graph = SampleGraph.load(output)
    return {
        "rows": len(graph),
        "articles": arguments.articles,
        "questions": questions,
        "neighbours": arguments.neighbours,
        "threads": arguments.threads,
        "seconds": round(seconds, 1),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 2),
        f"recall_at_{arguments.neighbours}": round(graph.recipe["recall"], 4),
        "edges": len(graph.indices),
        "file_gib": round(output.stat().st_size / 2**30, 2),
    }


def articles(topics: np.ndarray):
    """An article has some 150 words: half of its topic's, half of the whole language, frequent ones (Zipf) more often."""
    generator = np.random.default_rng(1)
    vocabulary = generator.integers(WORDS, size=(TOPICS, 400))
    for i, topic in enumerate(topics.tolist()):
        own = vocabulary[topic][np.minimum(generator.zipf(1.3, 75), 400) - 1]
        text = " ".join(f"w{word}" for word in [*own, *np.minimum(generator.zipf(1.2, 75), WORDS)])
        section = {"id": "s", "title": "", "text": text}
        yield {"key": f"article/{i}", "title": f"Name{i}", "url": "", "sections": [section], "images": []}


def rows(number: int, topics: np.ndarray):
    """A row asks for one of the relations of its article's topic; a topic's word stands in the question, as "bird" in "What does this bird eat?"."""
    generator = np.random.default_rng(2)
    of_article = generator.integers(len(topics), size=number).tolist()
    # Every topic has 30 of the relations, some of them far more frequent.
    relations = (topics[of_article] * 7 + np.minimum(generator.zipf(1.5, number), 30) * 11) % RELATIONS
    for i, (article, relation) in enumerate(zip(of_article, relations.tolist(), strict=True)):
        question = f"<image>What is the relation{relation} feature{relation % 40} of this kind{topics[article]}?"
        yield {
            "id": f"train_{i:08d}",
            "image": f"{i % 1000}.jpg",
            "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "answer"}],
            "entity": f"article/{article}",
            "evidence": f"article/{article}#s",
        }


def write(path: Path, records) -> int:
    """Writes the records; how many distinct questions they ask."""
    questions = set()
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            if "conversations" in record:
                questions.add(record["conversations"][0]["value"])
            file.write(json.dumps(record) + "\n")
    return len(questions)


if __name__ == "__main__":
    main()
