"""An index of articles' pictures: which articles have the pictures most like a given one.

A folder with
  index.faiss       vectors of length 1, by inner product
  articles.npy      (vectors,) int32, the article of each vector, numbered in the order of their keys
  keys.npy          the articles' keys, sorted, one after the other in UTF-8;
  key_ends.npy      (articles,) int64, where each one ends (data/packed.py)
  manifest.json     encoder and knowledge base with their fingerprints, kind, precision, counts, versions
"""

import itertools
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np

from ..data.packed import Texts
from ..errors import InputError
from ..knowledge.base import KnowledgeBase

FORMAT = 1  # raise it when the files change
NEEDED = ("precision", "vectors", "articles", "encoder", "encoder_fingerprint", "knowledge_base")
NEEDED += ("knowledge_base_fingerprint",)  # of the manifest
OF_KIND = {"flat": (), "ivf": ("nprobe",), "hnsw": ("ef_search",)}  # needed besides
SLACK = 1e-5  # inner products of float32 vectors of length 1 differ by less, however they are summed up
SURPLUS, GROWTH = (
    2,
    4,
)  # 2 x k vectors are looked for first, since some are other pictures of the same article, then 4 times as many
ENTRIES = 2**25  # scores and places that a search holds at a time, 12 bytes each
TOGETHER = 1024  # queries searched at a time by a flat index, which then multiplies matrices,
FEW = 16  # and by the others: few enough that faiss looks at each query alone, so that a result doesn't depend on its neighbours in the batch


class Ids(Sequence[str]):
    """The article key of each vector."""

    def __init__(self, articles: np.ndarray, keys: Texts):
        self._articles, self._keys = articles, keys

    def __len__(self) -> int:
        return len(self._articles)

    def __getitem__(self, i: int) -> str:
        return self._keys[int(self._articles[i])]


class ImageIndex:
    """An index on disk, opened memory-mapped.

    Attributes:
        folder: where it lies.
        manifest: what manifest.json holds.
        ids: the article key of each vector.
        dim: length of a vector.
    """

    def __init__(self, folder: str, manifest: dict, index, articles: np.ndarray, keys: Texts):
        self.folder, self.manifest = folder, manifest
        self._index, self._articles, self._keys = index, articles, keys
        self.ids = Ids(articles, keys)
        self.dim: int = index.d

    @classmethod
    def open(cls, folder: str) -> "ImageIndex":
        """Opens the index in a folder.

        Raises:
            InputError: no index, one of another version, or a damaged one.
        """
        import faiss

        manifest = read_manifest(folder)
        # The first maps the lists of an inverted file, the second all else.
        flag = faiss.IO_FLAG_MMAP if manifest["kind"] == "ivf" else faiss.IO_FLAG_MMAP_IFC
        try:
            index = faiss.read_index(os.path.join(folder, "index.faiss"), flag)
            articles = _mapped(folder, "articles")
            keys = Texts(_mapped(folder, "keys"), _mapped(folder, "key_ends"))
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"Index {folder} cannot be read ({error}); build it again with kivqa index.") from error
        if not index.ntotal == len(articles) == manifest["vectors"] or len(keys) != manifest["articles"]:
            raise InputError(
                f"Index {folder} holds {index.ntotal:,} vectors, {len(articles):,} numbers and {len(keys):,} articles, but was written with {manifest['vectors']:,} vectors "
                f"of {manifest['articles']:,} articles; build it again with kivqa index."
            )
        if manifest["kind"] == "ivf":
            index.nprobe = manifest["nprobe"]
        if manifest["kind"] == "hnsw":
            index.hnsw.efSearch = manifest["ef_search"]
        return cls(folder, manifest, index, articles, keys)

    def __len__(self) -> int:
        """Vectors."""
        return len(self._articles)

    @property
    def encoder(self) -> str:
        """Name of the encoder; "" if the vectors were imported without one."""
        return self.manifest["encoder"]

    @property
    def encoder_fingerprint(self) -> str:
        """Of the encoder; "" if the vectors were imported without one."""
        return self.manifest["encoder_fingerprint"]

    @property
    def knowledge_base_fingerprint(self) -> str:
        """sha256 of the knowledge base's file."""
        return self.manifest["knowledge_base_fingerprint"]

    def refuse_other(
        self, *, encoder_fingerprint: str | None = None, knowledge_base: KnowledgeBase | str | None = None
    ) -> None:
        """Refuses to be used with another encoder or knowledge base than it was built with.

        Args:
            encoder_fingerprint: of the encoder of the queries; None: not asked.
            knowledge_base: that the keys found are looked up in, or its fingerprint; None: not asked.

        Raises:
            InputError: says which of the two differs.
        """
        if encoder_fingerprint is not None and encoder_fingerprint != self.encoder_fingerprint:
            if not self.encoder_fingerprint:
                raise InputError(
                    f"Index {self.folder} holds imported vectors, and of which encoder is not known; give the queries' vectors of the same encoder, or build the index again "
                    "with --encoder beside the imported vectors."
                )
            raise InputError(
                f"Index {self.folder} was built with the encoder {self.encoder} (fingerprint {self.encoder_fingerprint[:12]}), the pictures of the questions are encoded by another "
                f"({encoder_fingerprint[:12]}); their vectors cannot be compared. Give that encoder, or build the index again."
            )
        if knowledge_base is None:
            return
        given = knowledge_base if isinstance(knowledge_base, str) else knowledge_base.fingerprint
        if given != self.knowledge_base_fingerprint:
            named = "" if isinstance(knowledge_base, str) else f"{knowledge_base.path} "
            raise InputError(
                f"Index {self.folder} was built for the knowledge base {self.manifest['knowledge_base']} (fingerprint {self.knowledge_base_fingerprint[:12]}), not for the given one "
                f"{named}({given[:12]}), whose articles it may lack; give that file, or build the index again."
            )

    def search(self, vectors: np.ndarray, k: int) -> tuple[list[list[str]], list[list[float]]]:
        """Keys and scores of the `k` articles whose best picture is most like each query; all articles if there are fewer than `k`.

        Best first, of equal scores the smaller key first. The result of a query does not depend on the others.

        Args:
            vectors: (queries, dim), of any length but 0.
            k: at least 1.

        Returns:
            for each query `k` distinct keys, and their cosines in [-1, 1] (of compressed vectors about that).

        Raises:
            InputError: vectors of another length, zero or not finite, or a `k` below 1.
        """
        vectors = self._queries(vectors)
        if k < 1:
            raise InputError(f"{k} articles are asked for; ask for 1 or more.")
        keys, scores = [], []
        for numbers, values in self._search(vectors, min(k, len(self._keys))):
            keys.append([self._keys[number] for number in numbers.tolist()])
            scores.append(values.tolist())
        return keys, scores

    def _queries(self, vectors: np.ndarray) -> np.ndarray:
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise InputError(
                f"Queries are of shape {vectors.shape}, but the vectors of index {self.folder} have {self.dim} numbers; give vectors of the encoder that it was built with."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not lengths.all():
            raise InputError("A query's vector is zero or not finite; embed its picture again.")
        return np.ascontiguousarray(vectors / lengths)

    def _search(self, vectors: np.ndarray, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(k,) numbers of articles and their scores for each query."""
        together = FEW if self.manifest["kind"] == "ivf" else TOGETHER
        for start in range(0, len(vectors), together):
            batch = vectors[start : start + together]
            found: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(batch)
            waiting = list(range(len(batch)))
            for step in itertools.count():
                depth = min(len(self), SURPLUS * k * GROWTH**step)  # in the end every vector
                rows = max(1, ENTRIES // depth)
                for first in range(0, len(waiting), rows):
                    chosen = waiting[first : first + rows]
                    for i, scores, places in zip(chosen, *self._nearest(batch[chosen], depth, step), strict=True):
                        found[i] = self._articles_of(batch[i], scores, places, k, depth == len(self))
                waiting = [i for i in waiting if found[i] is None]
                if not waiting:
                    break
            yield from found

    def _nearest(self, queries: np.ndarray, depth: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and places of the `depth` nearest vectors of each query, best first; place -1 where fewer were found. At `depth` = all vectors every one is looked at."""
        import faiss

        everything = depth == len(self)
        if self.manifest["kind"] == "ivf":
            probes = self._index.nlist if everything else min(self._index.nlist, self.manifest["nprobe"] * GROWTH**step)
            return self._index.search(queries, depth, params=faiss.SearchParametersIVF(nprobe=probes))
        if self.manifest["kind"] == "hnsw":
            if everything:
                return faiss.downcast_index(self._index.storage).search(queries, depth)
            effort = max(depth, self.manifest["ef_search"])
            return self._index.search(queries, depth, params=faiss.SearchParametersHNSW(efSearch=effort))
        return self._index.search(queries, depth)

    def _articles_of(
        self, query: np.ndarray, scores: np.ndarray, places: np.ndarray, k: int, everything: bool
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The best `k` articles and their scores; None if an article beyond the vectors found could be among them."""
        last = scores[-1] if places[-1] >= 0 else -np.inf  # fewer were found than asked for: none lies beyond
        places, scores = places[places >= 0], scores[places >= 0].astype(np.float64)
        if self._exact:
            # Sums of a matrix product depend on its shape in their last bits; these don't.
            vectors = self._index.reconstruct_batch(places.astype(np.int64)).astype(np.float64)
            scores = (vectors * query.astype(np.float64)).sum(axis=1)
        numbers = np.asarray(self._articles[places])
        order = np.lexsort((numbers, -scores))
        first = np.unique(numbers[order], return_index=True)[1]  # the best picture of each article
        order = order[np.sort(first)]
        if not everything and (len(order) < k or last >= scores[order[k - 1]] - SLACK):
            return None
        return numbers[order[:k]], scores[order[:k]]

    @property
    def _exact(self) -> bool:
        return self.manifest["kind"] == "flat" and self.manifest["precision"] == "fp32"


def read_manifest(folder: str) -> dict:
    """manifest.json of an index; InputError where there is none, or one of another version."""
    path = os.path.join(folder, "manifest.json")
    if not os.path.isfile(path):
        raise InputError(f"{folder} is no index (it has no manifest.json); build one with kivqa index.")
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); build the index again with kivqa index.") from None
    kind = str(manifest.get("kind")) if isinstance(manifest, dict) else ""
    known = kind in OF_KIND and manifest.get("format") == FORMAT
    if not known or not manifest.keys() >= {*NEEDED, *OF_KIND[kind]}:
        raise InputError(f"{path} is not of the form that this version reads; build the index again with kivqa index.")
    return manifest


def _mapped(folder: str, name: str) -> np.ndarray:
    # As a plain array: an element of a memmap takes ten times as long.
    return np.load(os.path.join(folder, f"{name}.npy"), mmap_mode="r", allow_pickle=False).view(np.ndarray)
