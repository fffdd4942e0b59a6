"""Where the pictures of articles lie: `images` of the knowledge base, paths below its own folder or below an image folder."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..data.aside import written_aside
from ..data.packed import Texts
from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.pictures import find_picture

EXAMPLES = 5  # of what is missing


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures of a knowledge base that are there, in its order.

    Attributes:
        keys: the article of each picture; an article may have several.
        paths: the file of each.
        sizes: (pictures,) int64, its bytes: a picture that was mended in its place is another one.
        articles: in the knowledge base.
        unlisted: articles that name no picture.
        missing: pictures that are named but lie in no folder, and some of them.
        examples: of these, "article: picture".
    """

    keys: Texts
    paths: Texts
    sizes: np.ndarray
    articles: int
    unlisted: int
    missing: int
    examples: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    @classmethod
    def open(cls, folder: str) -> "Pictures":
        """What `save` wrote there."""
        with np.load(os.path.join(folder, "pictures.npz"), allow_pickle=False) as arrays:
            texts = [Texts(arrays[name], arrays[f"{name}_ends"]) for name in ("keys", "paths")]
            return cls(*texts, arrays["sizes"], *arrays["counts"].tolist(), arrays["examples"].tolist())

    def save(self, folder: str) -> None:
        """Writes pictures.npz."""
        arrays = {
            "counts": np.array([self.articles, self.unlisted, self.missing]),
            "examples": np.array(self.examples, dtype=np.str_),
            "sizes": self.sizes,
        }
        for name, texts in (("keys", self.keys), ("paths", self.paths)):
            arrays[name], arrays[f"{name}_ends"] = texts.arrays
        path = os.path.join(folder, "pictures.npz")
        with written_aside(path, "wb") as file:
            np.savez(file, **arrays)

    @property
    def hash(self) -> str:
        """sha256 over articles, paths and sizes."""
        digest = hashlib.sha256(self.sizes.astype("<i8").tobytes())
        for texts in (self.keys, self.paths):
            for array in texts.arrays:
                digest.update(array.tobytes())
        return digest.hexdigest()


def find_pictures(kb: KnowledgeBase, image_folders: Sequence[str]) -> Pictures:
    """Looks for every picture that an article names; the same one twice in an article counts once.

    Raises:
        InputError: `images` of an article is no list of texts, or not one picture is there.
    """
    folders = picture_folders(kb, image_folders)
    keys, paths, examples, unlisted, missing = [], [], [], 0, 0
    for number, article in enumerate(kb):
        names = article_pictures(article, kb.source(number))
        unlisted += not names
        for name in names:
            path = find_picture(name, folders)
            if path is not None:
                keys.append(str(article["key"]))
                paths.append(path)
                continue
            missing += 1
            if len(examples) < EXAMPLES:
                examples.append(f"{article['key']}: {name}")
    if not paths:
        reason = (
            f"none of their {missing:,} pictures is there (for example {examples[0]})"
            if missing
            else "none names a picture"
        )
        raise InputError(
            f"{kb.path} has {len(kb):,} articles, but {reason}; they are looked for in {', '.join(folders)}: give --image_folders and `images` relative to them."
        )
    sizes = np.fromiter(map(os.path.getsize, paths), dtype=np.int64, count=len(paths))
    return Pictures(Texts.of(keys), Texts.of(paths), sizes, len(kb), unlisted, missing, examples)


def article_pictures(article: dict, source: str) -> list[str]:
    """The pictures that an article names, each once; `InputError`, which names `source`, if `images` is no list of texts."""
    names = article.get("images") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{source}: `images` must be a list of paths, not {names!r}.")
    return list(dict.fromkeys(name for name in names if name))


def picture_folders(kb: KnowledgeBase, image_folders: Sequence[str]) -> list[str]:
    """Where pictures are looked for, in this order: the knowledge base's own folder, then the image folders. InputError for one that is not there."""
    for folder in image_folders:
        if not os.path.isdir(folder):
            raise InputError(f"Image folder {folder} does not exist; check --image_folders.")
    return list(dict.fromkeys([os.path.dirname(kb.path), *map(os.path.abspath, image_folders)]))
