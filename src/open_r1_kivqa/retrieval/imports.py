"""Vectors that others computed: a .npy file with its ids, and EchoSight's faiss index with its pickled urls."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..data.lines import JsonLines
from ..data.packed import Texts
from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.pictures import find_picture
from ..knowledge.titles import Titles
from .encoders import ImageEncoder
from .harmless_pickle import read_pickle
from .pictures import article_pictures
from .vectors import ArrayVectors, usable

UNMATCHED = 20  # names shown that fit no article
COMPARED = 16  # pictures that are embedded to see whether an encoder made the vectors
SAME = 0.98  # cosine of two vectors of one picture by one encoder: precision and decoders move it by less


@dataclass(frozen=True, eq=False)
class Imported:
    """Vectors of the knowledge base's articles.

    Attributes:
        vectors, keys: scaled to length 1, and the article of each.
        unmatched: vectors whose name fits no article, and some of the names.
        examples: of these.
        zero: vectors that are zero or not finite, left out.
    """

    vectors: ArrayVectors
    keys: Texts
    unmatched: int
    examples: list[str]
    zero: int


class FaissArray:
    """The vectors of a faiss index, read as a slice of an array is."""

    def __init__(self, index):
        self._index = index
        self.shape = (index.ntotal, index.d)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        return self._index.reconstruct_n(start, max(0, stop - start))


def read_features(path: str, flag: str = "--features") -> np.ndarray:
    """(vectors, dim) of a .npy file, memory-mapped; `InputError`, naming `flag`, for anything else."""
    _refuse_missing(flag, path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{flag} {path} is no .npy file of numbers ({error}); write one with numpy.save.") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        shape = f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        raise InputError(f"{flag} {path} holds {shape}; wanted are floats of shape (vectors, dim).")
    return array


def read_echosight(path: str) -> FaissArray:
    """The vectors of EchoSight's `kb_index.faiss`, or another flat faiss index; memory-mapped where faiss can.

    Raises:
        InputError: no faiss index, an empty one, or one of another kind.
    """
    import faiss

    _refuse_missing("--echosight", path)
    try:
        index = faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise InputError(
            f"--echosight {path} is no faiss index ({_reason(error)}); give EchoSight's kb_index.faiss."
        ) from None
    if not index.ntotal:
        raise InputError(f"--echosight {path} holds no vectors; give EchoSight's kb_index.faiss.")
    whole = (faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexHNSWFlat)
    if not isinstance(index, whole):
        raise InputError(
            f"--echosight {path} is a {type(index).__name__}, which is not known to give its vectors back as they were; give one of {', '.join(kind.__name__ for kind in whole)}."
        )
    return FaissArray(index)


def read_ids(path: str) -> list[str]:
    """The name of each vector's article.

    Args:
        path: .txt, one a line; .json, a list; .jsonl, a text or {"key": ...} a line; .pkl, a pickled list, tuple or array of texts, read without running anything.

    Raises:
        InputError: another file or form.
    """
    _refuse_missing("--ids", path)
    readers = {".txt": _read_txt, ".json": _read_json, ".jsonl": _read_jsonl, ".pkl": _read_pickle}
    reader = readers.get(os.path.splitext(path)[1])
    if reader is None:
        raise InputError(f"--ids {path} is no known kind of list; give a file that ends with {', '.join(readers)}.")
    return reader(path)


def match(
    array: np.ndarray | FaissArray, names: Sequence[str], titles: Titles, source: str, progress: Callable[[str], None]
) -> Imported:
    """Gives each vector the article that its name means: a key, url, title or alias of the knowledge base.

    Args:
        array: (vectors, dim).
        names: one for each vector.
        source: the files, for errors.

    Raises:
        InputError: another number of names than of vectors, or not one vector is left.
    """
    if len(names) != len(array):
        raise InputError(
            f"{source}: {len(array):,} vectors, but {len(names):,} ids; they are not of the same run (an index that is older or newer than its ids finds wrong articles): get both anew."
        )
    articles = {name: titles.find(name) for name in dict.fromkeys(names)}
    progress(f"{len(articles):,} names looked up")
    known = np.fromiter((articles[name] is not None for name in names), dtype=bool, count=len(names))
    good = usable(array)
    rows = np.flatnonzero(known & good)
    unmatched = [name for name, key in articles.items() if key is None]
    if not len(rows):
        reason = (
            f"not one id names an article of the knowledge base (for example {unmatched[0]!r})"
            if unmatched
            else "all are zero or not finite"
        )
        raise InputError(f"{source}: none of the {len(array):,} vectors can be used, since {reason}.")
    keys = Texts.of(articles[names[row]] for row in rows.tolist())
    return Imported(
        ArrayVectors(array, rows), keys, int((~known).sum()), unmatched[:UNMATCHED], int((known & ~good).sum())
    )


def check_encoder(
    encoder: ImageEncoder, imported: Imported, kb: KnowledgeBase, folders: Sequence[str], source: str
) -> int:
    """How many pictures were embedded and found to have the imported vectors; 0 if none of those looked for is there.

    Raises:
        InputError: the vectors are of another length, or others than the encoder gives.
    """
    vectors = imported.vectors
    if encoder.dim != vectors.dim:
        raise InputError(
            f"{source}: vectors of {vectors.dim} numbers, but encoder {encoder.name} gives {encoder.dim}; give the encoder that made them, or none."
        )
    places = np.unique(np.linspace(0, len(vectors) - 1, 64 * COMPARED).astype(np.int64))
    cosines: list[float] = []
    for place, vector in zip(places.tolist(), vectors.take(places), strict=True):
        if len(cosines) == COMPARED:
            break
        article = kb.article(imported.keys[place])
        paths = [find_picture(name, folders) for name in article_pictures(article, kb.path)]
        if paths and None not in paths:  # with one missing the vector could be that one's
            cosines.append(float((encoder.encode(paths) @ vector).max()))
    if cosines and np.median(cosines) < SAME:
        raise InputError(
            f"{source}: encoder {encoder.name} gives other vectors (the median cosine of {len(cosines)} pictures is {np.median(cosines):.3f}); give the encoder that made them, or none."
        )
    return len(cosines)


def _read_txt(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError:
        raise InputError(f"--ids {path} is not UTF-8 text; convert it with iconv -t UTF-8.") from None


def _read_json(path: str) -> list[str]:
    with open(path, "rb") as file:
        try:
            value = json.load(file)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--ids {path} is not JSON ({error}); give a list of keys.") from None
    return _texts(value, path)


def _read_jsonl(path: str) -> list[str]:
    lines = JsonLines(path)
    records = (lines.record(i) for i in range(len(lines)))
    return _texts([record.get("key") if isinstance(record, dict) else record for record in records], path)


def _read_pickle(path: str) -> list[str]:
    return _texts(read_pickle(path), path)


def _texts(value: object, path: str) -> list[str]:
    """A list of texts or whole numbers, as texts."""
    found = f"{'an' if isinstance(value, int) else 'a'} {type(value).__name__}"
    if isinstance(value, list):
        wrong = [item for item in value if not isinstance(item, str | int) or isinstance(item, bool)]
        if value and not wrong:
            return [str(item) for item in value]
        found = f"a list with {wrong[0]!r:.60} in it" if wrong else "an empty list"
    raise InputError(
        f"--ids {path} holds {found}; wanted is a list with the key (or url, or title) of each vector's article."
    )


def _refuse_missing(flag: str, path: str) -> None:
    if not os.path.isfile(path):
        raise InputError(f"{flag} {path} does not exist; give the path of a file.")


def _reason(error: Exception) -> str:
    """faiss' errors name a place in its source, then what failed."""
    return str(error).strip().splitlines()[-1][-200:] if str(error).strip() else type(error).__name__
