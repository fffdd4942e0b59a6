"""Building an index: its size beforehand, training, adding, and writing its folder at once."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Protocol

import numpy as np

from ..errors import InputError
from .index import FORMAT

KINDS, PRECISIONS = ("flat", "ivf", "hnsw"), ("fp32", "fp16", "sq8")
BYTES = {"fp32": 4, "fp16": 2, "sq8": 1}  # of a number
LINKS = 32  # of a vector in an HNSW graph; twice as many in its lowest layer
EF_CONSTRUCTION, EF_SEARCH = 200, 128
PROBES = 32  # lists of an inverted file that a search looks into
SAMPLE = 64  # x lists vectors train an inverted file
TRAINED = 65_536  # vectors train the scale of sq8
BATCH = 65_536  # vectors added at a time


class Vectors(Protocol):
    """Vectors of length 1 to index.

    Attributes:
        dim: length of each.
    """

    dim: int

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """All in order, (up to `size`, dim) float32 at a time."""
        ...


class ArrayVectors:
    """Vectors of an array, which may be memory-mapped, scaled to length 1."""

    def __init__(self, array: np.ndarray):
        self._array, self.dim = array, array.shape[1]

    def __len__(self) -> int:
        return len(self._array)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self._array), size):
            rows = np.asarray(self._array[start : start + size], dtype=np.float32)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
            if len(bad):
                raise InputError(
                    f"Vector {start + int(bad[0])} (counted from 0) is zero or not finite ({len(bad):,} among the first {start + len(rows):,}); leave these out or embed their pictures again."
                )
            yield rows / lengths


def lists_for(vectors: int) -> int:
    """Lists of an inverted file: 4 times the square root of the vectors, a power of two, and no more than can be trained with 39 vectors each (faiss' minimum)."""
    wanted = 4 * np.sqrt(max(vectors, 1))
    return max(1, min(2 ** int(np.log2(wanted)), vectors // 39))


def index_bytes(kind: str, precision: str, vectors: int, dim: int) -> int:
    """Size of index.faiss, and of the index in memory while it is built (but for what training takes); to about 2 %."""
    size = vectors * dim * BYTES[precision]
    if kind == "ivf":
        size += vectors * 8 + lists_for(vectors) * dim * 4
    if kind == "hnsw":  # links of 4 bytes, layer above layer each with one vector in LINKS, place and layer of each
        size += vectors * (2 * LINKS * 4 + LINKS * 4 / (LINKS - 1) + 12)
    return int(size)


def build_index(
    folder: str,
    vectors: Vectors,
    keys: Sequence[str],
    *,
    kind: str = "flat",
    precision: str = "fp32",
    seed: int = 0,
    about: dict | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict:
    """Builds an index and writes its folder, which appears (or is replaced) only once all is written. Returns its manifest.

    Args:
        vectors: of length 1.
        keys: the article of each vector.
        kind: "flat" compares with every vector, "ivf" with those of the nearest lists, "hnsw" walks along a graph.
        precision: "fp32", "fp16", "sq8" (8 bits a number, scaled by each dimension's range).
        seed: of the vectors that train it.
        about: encoder, encoder_fingerprint, knowledge_base, knowledge_base_fingerprint and what else the manifest shall hold.

    Raises:
        InputError: no vectors, another number of keys, or too little room on the disk or in memory.
    """
    import faiss

    if not len(vectors) or len(vectors) != len(keys):
        raise InputError(
            f"{len(vectors):,} vectors and {len(keys):,} keys were given; give a key for each vector, and one at least."
        )
    check_room(folder, kind, precision, len(vectors), vectors.dim)
    with faiss_threads():
        index = _trained(vectors, kind, precision, seed, progress)
        for batch in vectors.batches(BATCH):
            index.add(batch)
            progress(f"{index.ntotal:,} of {len(vectors):,} vectors added")
    part = f"{folder.rstrip(os.sep)}.part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    faiss.write_index(index, os.path.join(part, "index.faiss"))
    articles = _write_keys(part, keys)
    manifest = {
        "format": FORMAT,
        "encoder": "",
        "encoder_fingerprint": "",
        "knowledge_base": "",
        "knowledge_base_fingerprint": "",
        **(about or {}),
        "kind": kind,
        "precision": precision,
        "dim": vectors.dim,
        "vectors": len(vectors),
        "articles": articles,
        "seed": seed,
        **({"nprobe": min(PROBES, index.nlist), "lists": index.nlist} if kind == "ivf" else {}),
        **({"ef_search": EF_SEARCH, "links": LINKS} if kind == "hnsw" else {}),
        "versions": {
            name: metadata.version(name) for name in ("open-r1-kivqa", "faiss-cpu", "numpy", "torch", "transformers")
        },
    }
    with open(os.path.join(part, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
    _replace_folder(part, folder)
    return manifest


@contextmanager
def faiss_threads() -> Iterator[None]:
    """Lets faiss compute with all cores under torchrun, which gives each rank one thread, and leaves torch's number of threads as it was: they share OpenMP's.

    Only for work that one rank does while the others wait.
    """
    import faiss

    before = faiss.omp_get_max_threads()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def check_room(folder: str, kind: str, precision: str, vectors: int, dim: int) -> None:
    """InputError if disk or memory lack room for the index."""
    size = index_bytes(kind, precision, vectors, dim)
    smaller = "" if precision == "sq8" else ", or make the index smaller with --precision sq8 (or fp16)"
    parent = os.path.dirname(os.path.abspath(folder)) or "."
    free = shutil.disk_usage(parent).free
    if size > free:
        raise InputError(f"The index takes {gib(size)} on disk, but {parent} has {gib(free)} free; make room{smaller}.")
    memory = _available_memory()
    if memory is not None and size > memory:
        raise InputError(
            f"The index takes {gib(size)} of memory while it is built, but {gib(memory)} are available; use a larger machine{smaller}."
        )


def gib(size: float) -> str:
    """Bytes as GiB, or MiB below a hundredth of one."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 100 else f"{size / 2**20:.2f} MiB"


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")), None)
    except OSError:  # not Linux
        return None


def _trained(vectors: Vectors, kind: str, precision: str, seed: int, progress: Callable[[str], None]):
    """An empty index, trained on a sample."""
    import faiss

    code = {"fp32": "Flat", "fp16": "SQfp16", "sq8": "SQ8"}[precision]
    lists = lists_for(len(vectors))
    name = {"flat": code, "ivf": f"IVF{lists},{code}", "hnsw": f"HNSW{LINKS},{code}"}[kind]
    index = faiss.index_factory(vectors.dim, name, faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = EF_CONSTRUCTION
    if kind == "ivf":
        index.cp.seed = seed % 2**31
        index.cp.max_points_per_centroid = SAMPLE
    if not index.is_trained:
        sample = _sample(vectors, max(SAMPLE * lists if kind == "ivf" else 0, TRAINED), seed)
        index.train(sample)
        progress(f"trained on {len(sample):,} vectors")
    return index


def _sample(vectors: Vectors, number: int, seed: int) -> np.ndarray:
    """Vectors drawn by the seed, in their order."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:number])
    rows, start = [], 0
    for batch in vectors.batches(BATCH):
        inside = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + len(batch))]
        rows.append(batch[inside - start])
        start += len(batch)
    return np.concatenate(rows)


def _write_keys(folder: str, keys: Iterable[str]) -> int:
    """Writes articles.npy, keys.bin and key_ends.npy; gives the number of articles."""
    # Sorted as UTF-8, which is the order of Python's texts.
    distinct = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(distinct)}
    np.save(os.path.join(folder, "articles.npy"), np.fromiter((numbers[key] for key in keys), dtype=np.int32))
    encoded = [key.encode("utf-8") for key in distinct]
    np.save(os.path.join(folder, "key_ends.npy"), np.cumsum([len(key) for key in encoded], dtype=np.int64))
    with open(os.path.join(folder, "keys.bin"), "wb") as file:
        file.writelines(encoded)
    return len(distinct)


def _replace_folder(part: str, folder: str) -> None:
    """A folder cannot be replaced by a full one in one step: the old one steps aside first."""
    old = f"{folder.rstrip(os.sep)}.old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(folder):
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)
