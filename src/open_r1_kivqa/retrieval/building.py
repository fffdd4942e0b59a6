"""Building an index: its size beforehand, training, adding, and writing its folder at once."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata

import numpy as np

from ..data.aside import write_json
from ..data.packed import Texts
from ..errors import InputError
from .index import FORMAT
from .kinds import EF_CONSTRUCTION, EF_SEARCH, PROBES, factory_name, index_bytes
from .vectors import BATCH, Vectors

SAMPLE = 64  # x lists vectors train an inverted file
TRAINED = 65_536  # vectors, at least, train the scale of sq8
TOLD = 10  # times that progress is told


def build_index(
    folder: str,
    vectors: Vectors,
    keys: Sequence[str],
    *,
    kind: str = "flat",
    precision: str = "fp32",
    seed: int = 0,
    nprobe: int | None = None,
    ef_search: int | None = None,
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
        nprobe: lists that a search looks into (ivf).
        ef_search: candidates that a search keeps (hnsw).
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
            before = index.ntotal
            index.add(batch)
            if index.ntotal * TOLD // len(vectors) > before * TOLD // len(vectors):
                progress(f"{index.ntotal:,} of {len(vectors):,} vectors added")
    part = f"{folder.rstrip(os.sep)}.part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        faiss.write_index(index, os.path.join(part, "index.faiss"))
    except RuntimeError as error:  # of a full disk faiss says no more than that it wrote too little
        raise InputError(
            f"{part} cannot be written to its end, as on a full disk; make room for {gib(index_bytes(kind, precision, len(vectors), vectors.dim))} and give the same command again."
        ) from error
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
        **({"lists": index.nlist} if kind == "ivf" else {}),
        **search_settings(kind, getattr(index, "nlist", None), nprobe=nprobe, ef_search=ef_search),
        "versions": {
            "faiss": faiss.__version__,
            **{name: metadata.version(name) for name in ("open-r1-kivqa", "numpy", "torch", "transformers")},
        },
    }
    write_manifest(part, manifest)
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


def check_room(folder: str, kind: str, precision: str, vectors: int, dim: int, copies: int = 0) -> str:
    """What the index will take, as a sentence.

    Args:
        copies: of the vectors in fp32 that lie beside the index when it is written.

    Raises:
        InputError: disk or memory lack room for it.
    """
    size = index_bytes(kind, precision, vectors, dim)
    stored = size + copies * 4 * vectors * dim
    smaller = "" if precision == "sq8" else ", or make the index smaller with --precision sq8 (or fp16)"
    parent = os.path.dirname(os.path.abspath(folder))
    free, memory = shutil.disk_usage(parent).free, _available_memory()
    if stored > free:
        raise InputError(f"{gib(stored)} are needed on disk, but {parent} has {gib(free)} free; make room{smaller}.")
    if memory is not None and size > memory:
        raise InputError(
            f"The index takes {gib(size)} of memory while it is built, but {gib(memory)} are available; use a larger machine{smaller}."
        )
    beside = f", the vectors beside it {gib(stored - size)}" if copies else ""
    return f"the index will take {gib(size)} on disk and in memory ({vectors:,} x {dim}, {kind}, {precision}){beside}; {gib(free)} are free"


def search_settings(kind: str, lists: int | None, *, nprobe: int | None = None, ef_search: int | None = None) -> dict:
    """What the manifest says about searching: {"nprobe"}, {"ef_search"} or nothing, by the kind; None takes the default."""
    if kind == "ivf":
        return {"nprobe": min(nprobe or PROBES, lists)}
    return {"ef_search": ef_search or EF_SEARCH} if kind == "hnsw" else {}


def write_manifest(folder: str, manifest: dict) -> None:
    """Writes manifest.json whole."""
    path = os.path.join(folder, "manifest.json")
    write_json(path, manifest)


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

    index = faiss.index_factory(vectors.dim, factory_name(kind, precision, len(vectors)), faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = EF_CONSTRUCTION
    if kind == "ivf":
        index.cp.seed = seed % 2**31
        index.cp.max_points_per_centroid = SAMPLE
    if not index.is_trained:
        sample = _sample(vectors, max(SAMPLE * index.nlist if kind == "ivf" else 0, TRAINED), seed)
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
    """Writes articles.npy, keys.npy and key_ends.npy; gives the number of articles."""
    distinct = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(distinct)}
    joined, ends = Texts.of(distinct).arrays
    articles = np.fromiter((numbers[key] for key in keys), dtype=np.int32)
    for name, array in (("articles", articles), ("keys", joined), ("key_ends", ends)):
        np.save(os.path.join(folder, f"{name}.npy"), array)
    return len(distinct)


def _replace_folder(part: str, folder: str) -> None:
    """A folder cannot be replaced by a full one in one step: the old one steps aside first."""
    old = f"{folder.rstrip(os.sep)}.old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(folder):
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)
