"""What was worked out about a large file, kept beside the user's caches: line offsets, keys, content hashes."""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SMALLEST_CACHED = 4 * 2**20  # bytes; smaller files are read again faster than a cache entry is found
SETTLED = 2.0  # seconds; a file changed within its clock's resolution could change again with the same time stamp

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`$KIVQA_CACHE`, else `~/.cache/open_r1_kivqa`."""
    return Path(os.environ.get("KIVQA_CACHE") or Path.home() / ".cache" / "open_r1_kivqa")


def cached_arrays(path: str, name: str, build: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`build()`, remembered for the file as it is now: by absolute path, size and time of change.

    Args:
        path: the file that the arrays describe.
        name: what they are; part of the key, so raise it when their meaning changes.
        build: makes the arrays (no object arrays).
    """
    status = os.stat(path)
    if status.st_size < SMALLEST_CACHED:
        return build()
    key = f"{os.path.abspath(path)}\n{status.st_size}\n{status.st_mtime_ns}\n{name}"
    entry = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"
    if entry.exists():
        with np.load(entry, allow_pickle=False) as arrays:
            return dict(arrays)
    arrays = build()
    if time.time() - status.st_mtime > SETTLED:
        _store(entry, arrays)
    return arrays


def content_hash(path: str) -> str:
    """sha256 of a file's bytes, hexadecimal; remembered for large files."""

    def build() -> dict[str, np.ndarray]:
        with open(path, "rb") as file:
            return {"sha256": np.frombuffer(hashlib.file_digest(file, "sha256").digest(), dtype=np.uint8)}

    return cached_arrays(path, "sha256", build)["sha256"].tobytes().hex()


def _store(entry: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write aside, then rename: several ranks may store the same entry at once."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".part", delete=False) as file:
            np.savez(file, **arrays)
        os.replace(file.name, entry)
    except OSError as error:  # the run can go on, only slower
        logger.warning("Cannot cache in %s (%s); set KIVQA_CACHE to a folder that can be written.", entry.parent, error)
