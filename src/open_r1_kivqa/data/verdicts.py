"""Which image files decode, and how large they are: every file is decoded once, and the verdict remembered until the file changes."""

import hashlib
import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from PIL import Image

from ..errors import InputError
from .cache import SETTLED, cache_folder
from .images import image_size, verify_image

PIXEL_LIMIT = 2 * Image.MAX_IMAGE_PIXELS  # where Pillow itself refuses to open an image
BATCH = 2000  # files whose verdicts are stored together: what an interrupted check loses at most

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a file is: `width` x `height` pixels as the processor sees it, `size` bytes; or `kind`, `message` and `remedy` of what is wrong with it ("" if nothing is)."""

    width: int = 0
    height: int = 0
    size: int = 0
    kind: str = ""
    message: str = ""
    remedy: str = ""


def check_images(
    paths: list[str], *, pixel_limit: int = PIXEL_LIMIT, progress: Callable[[int], None] | None = None
) -> list[Verdict]:
    """A verdict for each file, in order. An image of more than `pixel_limit` pixels is not decoded.

    Decoding runs on all CPU cores; files that are as they were at the last check (size and time of change) are not read again.

    Args:
        progress: called with the number of files done so far.
    """
    verdicts: list[Verdict] = []
    with (
        closing(_open_cache()) as cache,
        ThreadPoolExecutor(os.cpu_count()) as pool,  # Pillow decodes outside the interpreter lock
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # pixel_limit decides
        for start in range(0, len(paths), BATCH):
            verdicts += _check_batch(paths[start : start + BATCH], pixel_limit, cache, pool)
            if progress is not None:
                progress(len(verdicts))
    return verdicts


def files_digest(paths: list[str]) -> str:
    """sha256 over names, sizes and times of change of files, missing ones included: whether any of them was touched."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, state in zip(paths, pool.map(_state, paths), strict=True):
            digest.update(f"{path}\0{state}\0".encode())
    return digest.hexdigest()


def _check_batch(
    paths: list[str], pixel_limit: int, cache: sqlite3.Connection, pool: ThreadPoolExecutor
) -> Iterator[Verdict]:
    states = list(pool.map(_state, paths))
    known = [_known(cache, path, state) for path, state in zip(paths, states, strict=True)]
    todo = [path for path, verdict in zip(paths, known, strict=True) if verdict is None]
    fresh = dict(zip(todo, pool.map(partial(_decode, pixel_limit=pixel_limit), todo), strict=True))
    now = time.time_ns()
    entries = [
        (path, *state, fresh[path].width, fresh[path].height, fresh[path].kind, fresh[path].message, fresh[path].remedy)
        for path, state in zip(paths, states, strict=True)
        if path in fresh and state is not None and fresh[path].kind != "image_pixels" and now - state[1] > SETTLED * 1e9
    ]
    with cache:
        cache.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entries)
    for path, verdict in zip(paths, known, strict=True):
        verdict = fresh[path] if verdict is None else verdict
        yield _too_large(verdict.width, verdict.height, verdict.size, pixel_limit) or verdict


def _decode(path: str, pixel_limit: int) -> Verdict:
    try:
        width, height = image_size(path)
        size = os.path.getsize(path)
        too_large = _too_large(width, height, size, pixel_limit)
        if too_large is None:
            verify_image(path)
    except InputError as error:
        return _refusal(path, str(error))
    return too_large or Verdict(width, height, size)


REFUSALS = {  # how the messages of data/images.py go on behind the file's name
    "does not exist": "image_missing",
    "is empty": "image_empty",
    "is damaged": "image_damaged",
    "is not an image": "image_unreadable",
}


def _refusal(path: str, text: str) -> Verdict:
    message, _, remedy = text.rpartition("; ")
    told = message.removeprefix(f"Image {path} ")
    kind = next(kind for words, kind in REFUSALS.items() if told.startswith(words))
    if "decompression bomb" in told:
        kind = "image_pixels"
    return Verdict(kind=kind, message=message, remedy=remedy)


def _too_large(width: int, height: int, size: int, pixel_limit: int) -> Verdict | None:
    if width * height <= pixel_limit:
        return None
    return Verdict(
        width,
        height,
        size,
        kind="image_pixels",
        message=f"image of {width} x {height} pixels is over the limit of {pixel_limit}",
        remedy="make it smaller, or raise --pixel_limit",
    )


def _state(path: str) -> tuple[int, int] | None:
    """(bytes, time of change in ns); None for a missing file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _open_cache() -> sqlite3.Connection:
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        cache = sqlite3.connect(cache_folder() / "images-2.sqlite", timeout=60)
        _create_table(cache)
        with cache:
            cache.execute("DELETE FROM images WHERE path = ''")  # fails where the folder cannot be written
    except (OSError, sqlite3.Error) as error:  # the check can go on, only slower the next time
        logger.warning(
            "Cannot keep verdicts in %s (%s); set KIVQA_CACHE to a folder that can be written.", cache_folder(), error
        )
        cache = sqlite3.connect(":memory:")
        _create_table(cache)
    return cache


def _create_table(cache: sqlite3.Connection) -> None:
    cache.execute(
        "CREATE TABLE IF NOT EXISTS images (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, width INTEGER, height INTEGER, kind TEXT, message TEXT, remedy TEXT) WITHOUT ROWID"
    )


def _known(cache: sqlite3.Connection, path: str, state: tuple[int, int] | None) -> Verdict | None:
    if state is None:
        return None
    row = cache.execute(
        "SELECT width, height, size, kind, message, remedy FROM images WHERE path = ? AND size = ? AND mtime_ns = ?",
        (path, *state),
    ).fetchone()
    return None if row is None else Verdict(*row)
