"""The kinds of index: what faiss makes of them and how large they are."""

import math

KINDS = ("flat", "ivf", "hnsw")
PRECISIONS = {"fp32": 4, "fp16": 2, "sq8": 1}  # bytes of a number
LINKS = 32  # of a vector in an HNSW graph; twice as many in its lowest layer
EF_CONSTRUCTION = 200  # candidates kept while its links are chosen
EF_SEARCH = 128  # and while it is searched
PROBES = 32  # lists of an inverted file that a search looks into
SMALLEST_LIST = 39  # vectors that train a list, below which faiss warns


def lists_for(vectors: int) -> int:
    """Lists of an inverted file: about 4 times the square root of the vectors, a power of two, but no more than can be trained."""
    return max(1, min(2 ** int(math.log2(4 * math.sqrt(vectors))), vectors // SMALLEST_LIST))


def index_bytes(kind: str, precision: str, vectors: int, dim: int) -> int:
    """Size of index.faiss, and of the index in memory while it is built, but for what training takes; to about 2 %."""
    size = vectors * dim * PRECISIONS[precision]
    if kind == "ivf":
        size += vectors * 8 + lists_for(vectors) * dim * 4
    if (
        kind == "hnsw"
    ):  # links of 4 bytes, layer above layer, each with one in LINKS of the vectors below; place and layer of each vector
        size += int(vectors * (2 * LINKS * 4 + LINKS * 4 / (LINKS - 1) + 12))
    return size


def factory_name(kind: str, precision: str, vectors: int) -> str:
    """What faiss.index_factory calls it."""
    code = {"fp32": "Flat", "fp16": "SQfp16", "sq8": "SQ8"}[precision]
    return {"flat": code, "ivf": f"IVF{lists_for(vectors)},{code}", "hnsw": f"HNSW{LINKS},{code}"}[kind]
