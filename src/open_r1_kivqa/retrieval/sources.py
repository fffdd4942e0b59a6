"""Where a question's articles come from: an index searched by its picture, or another system's list."""

import json
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ..data.images import ImageError, content_hash
from ..data.samples import Sample
from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.pictures import find_picture
from .index import ImageIndex
from .pictures import article_pictures
from .ranking import merge_images
from .topk import Retrieved, TopK

# A row without articles says why by one of these.
NO_IMAGE, NO_VECTOR, NO_LIST = "no image", "no query vector", "no list"
ALIKE = 0.95  # V from which an article's pictures are compared with the question's byte by byte


class IndexSource:
    """Articles by an index.

    Args:
        vectors: gives each of some rows the vectors (n, dim) of its images; (0, dim) where it has none.
        why: why a row may have none, one of the reasons above.
    """

    def __init__(self, index: ImageIndex, vectors: Callable[[Sequence[Sample]], list[np.ndarray]], k: int, why: str):
        self._index, self._vectors, self._k, self._why = index, vectors, k, why

    def find(self, samples: Sequence[Sample]) -> list[Retrieved | str]:
        """For each row its k best articles, or why there are none."""
        vectors = self._vectors(samples)
        keys, scores = self._index.search(np.concatenate(vectors), self._k) if sum(map(len, vectors)) else ([], [])
        found = list(zip(keys, scores, strict=True))
        answers: list[Retrieved | str] = []
        start = 0
        for own in vectors:
            if not len(own):
                answers.append(self._why)
                continue
            articles, visual = merge_images(found[start : start + len(own)], self._k)
            answers.append(Retrieved(articles=tuple(articles), visual=tuple(visual)))
            start += len(own)
        return answers


class ListSource:
    """Articles or passages by another system's lists, the first `k` of each."""

    def __init__(self, topk: TopK, k: int):
        self._topk, self._k = topk, k

    def find(self, samples: Sequence[Sample]) -> list[Retrieved | str]:
        """For each row what its list holds, or why there is nothing."""
        found = [self._topk.of(sample) for sample in samples]
        return [
            NO_LIST if own is None else Retrieved(own.passages, own.articles[: self._k], own.visual[: self._k])
            for own in found
        ]


def encoded(encoder) -> Callable[[Sequence[Sample]], list[np.ndarray]]:
    """Vectors of rows by an `ImageEncoder`, each image encoded once for all of the given rows."""

    def vectors(samples: Sequence[Sample]) -> list[np.ndarray]:
        paths = list(dict.fromkeys(path for sample in samples for path in sample.images))
        places = {path: place for place, path in enumerate(paths)}
        try:
            rows = encoder.encode(paths)
        except ImageError as error:
            raise InputError(
                f"{error} `kivqa check` lists every picture that cannot be read; put one that can in its place, and the same command goes on where it was."
            ) from error
        return [rows[[places[path] for path in sample.images]] for sample in samples]

    return vectors


def imported(
    ids: Sequence[str], rows: np.ndarray, *, without: Collection[int] = ()
) -> Callable[[Sequence[Sample]], list[np.ndarray]]:
    """Vectors of rows that came from a file. A row's are those of its images, by their paths as the row writes them or their names without folder and ending, else that of its `id` or
    `data_id`.

    Args:
        ids: of the vectors.
        rows: (ids, dim).
        without: places of vectors that count as if they were not there.
    """
    without = set(without)
    places = {id: place for place, id in enumerate(ids) if place not in without}

    def own(sample: Sample) -> list[int]:
        images = sample.row.get("image") or []
        images = [images] if isinstance(images, str) else images
        found = [places.get(image, places.get(os.path.splitext(os.path.basename(image))[0])) for image in images]
        if images and None not in found:
            return found
        return [
            place
            for place in (places.get(id) for id in (sample.id, str(sample.row.get("data_id"))))
            if place is not None
        ][:1]

    return lambda samples: [np.asarray(rows[own(sample)], dtype=np.float32) for sample in samples]


def read_query_ids(path: str) -> list[str]:
    """What imported query vectors belong to: .json, a list of texts and integers, or .txt, one a line.

    Raises:
        InputError: no such file, another form, or an id given twice.
    """
    if not os.path.isfile(path):
        raise InputError(f"--query_ids {path} does not exist; give the path of a file.")
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            ids = json.load(file) if path.endswith(".json") else [line.rstrip("\r\n") for line in file]
    except ValueError as error:
        raise InputError(
            f"--query_ids {path} cannot be read ({error}); give a .json list, or a .txt in UTF-8 with one a line."
        ) from None
    if not isinstance(ids, list) or not all(isinstance(id, str | int) and not isinstance(id, bool) for id in ids):
        raise InputError(
            f"--query_ids {path} holds no list of texts and integers; name the row or the image of each vector."
        )
    names = [str(id) for id in ids]
    if len(set(names)) < len(names):
        seen: set[str] = set()
        repeated = next(name for name in names if name in seen or seen.add(name))
        raise InputError(f"--query_ids {path} names {repeated!r} twice; give each row or image one vector.")
    return names


def same_picture(sample: Sample, found: Retrieved, kb: KnowledgeBase, folders: Sequence[str]) -> str | None:
    """ "own" if an image of the question is, byte by byte, a picture of its own article, "other" if it is another article's, else None.

    Only the pictures of articles with V from `ALIKE` on are compared, and only those that lie in one of the folders, looked through in their order.
    """
    images = [(os.path.getsize(path), path) for path in sample.images if os.path.isfile(path)]
    kinds = set()
    for key, score in zip(found.articles, found.visual, strict=True):
        if score < ALIKE:
            break
        for picture in _pictures(kb, key, folders):
            size = os.path.getsize(picture)
            if any(size == its and content_hash(path) == content_hash(picture) for its, path in images):
                kinds.add("own" if key == sample.entity else "other")
    return "own" if "own" in kinds else next(iter(kinds), None)


def _pictures(kb: KnowledgeBase, key: str, folders: Sequence[str]) -> list[str]:
    paths = (find_picture(name, folders) for name in article_pictures(kb.article(key), kb.path))
    return [path for path in paths if path is not None]
