"""Building and searching an index of each kind: `python bench/retrieval.py [--vectors 200000 --dim 128 --only hnsw]`.

Draws vectors in clusters, two of each article, builds an index of each kind and precision in a temporary folder, searches it for the 20 best articles of new vectors of the same clusters, and
prints as its last line one JSON object:
  vectors, dim, queries, threads   what was measured, and OMP_NUM_THREADS
  indexes        for each "kind precision":
    build_seconds      training, adding and writing
    search_ms          a query, of all queries together
    gib, said_gib      index.faiss, and what was said beforehand
    peak_rss_gib       peak resident memory while it was built, of a process of its own
    recall_at_20       share of the articles that "flat fp32" finds, which compares with every vector
"""

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time

import numpy as np

from open_r1_kivqa.retrieval.building import build_index
from open_r1_kivqa.retrieval.index import ImageIndex
from open_r1_kivqa.retrieval.kinds import KINDS, PRECISIONS, index_bytes
from open_r1_kivqa.retrieval.vectors import ArrayVectors

ARTICLES, SPREAD = 20, 0.8  # found by a query; of a cluster, beside middles of standard deviation 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--only", choices=KINDS, help="measure this kind, beside flat fp32")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vectors.npy")
        np.save(path, draw(arguments.vectors, arguments.dim, 1))
        queries = draw(arguments.queries, arguments.dim, 2)
        exact, indexes = None, {}
        for kind in KINDS:
            for precision in PRECISIONS:
                if arguments.only not in (None, kind) and exact:
                    continue
                found, indexes[f"{kind} {precision}"] = measure(folder, path, queries, kind, precision, exact)
                exact = exact or found
                print(kind, precision, indexes[f"{kind} {precision}"], flush=True)
    shape = {"vectors": arguments.vectors, "dim": arguments.dim, "queries": arguments.queries}
    print(json.dumps({**shape, "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())), "indexes": indexes}))


def draw(number: int, dim: int, seed: int) -> np.ndarray:
    """(number, dim) float32 around a thousand middles, which are the same for every seed."""
    middles = np.random.default_rng(0).standard_normal((1000, dim), dtype=np.float32)
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((number, dim), dtype=np.float32)
    return middles[generator.integers(len(middles), size=number)] + SPREAD * noise


def measure(folder: str, path: str, queries: np.ndarray, kind: str, precision: str, exact) -> tuple[list, dict]:
    output = os.path.join(folder, f"{kind}-{precision}")
    # In a process of its own, for its peak memory.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, peak = pool.apply(build, (path, output, kind, precision))
    index = ImageIndex.open(output)
    index.search(queries[:1], ARTICLES)  # reads the file
    start = time.perf_counter()
    found, _ = index.search(queries, ARTICLES)
    searched = time.perf_counter() - start
    shares = [len(set(one) & set(other)) / ARTICLES for one, other in zip(found, exact or found, strict=True)]
    return found, {
        "build_seconds": round(seconds, 1),
        "search_ms": round(1000 * searched / len(queries), 2),
        "gib": round(os.path.getsize(os.path.join(output, "index.faiss")) / 2**30, 4),
        "said_gib": round(index_bytes(kind, precision, len(index), index.dim) / 2**30, 4),
        "peak_rss_gib": round(peak, 2),
        "recall_at_20": round(float(np.mean(shares)), 3),
    }


def build(path: str, output: str, kind: str, precision: str) -> tuple[float, float]:
    """Seconds, and GiB of peak memory of this process."""
    vectors = ArrayVectors(np.load(path, mmap_mode="r"))
    start = time.perf_counter()
    build_index(output, vectors, [f"article {i // 2}" for i in range(len(vectors))], kind=kind, precision=precision)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
