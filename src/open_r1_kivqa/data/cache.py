"""What was worked out about a large file, kept beside the user's caches: line offsets, keys, content hashes."""

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SMALLEST_CACHED = 4 * 2**20  # bytes; smaller files are read again faster than a cache entry is found
LONG = 5.0  # seconds; what takes longer is told
SETTLED = 2.0  # seconds; a file changed within its clock's resolution could change again with the same time stamp

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`$KIVQA_CACHE`, else `~/.cache/open_r1_kivqa`."""
    return Path(os.environ.get("KIVQA_CACHE") or Path.home() / ".cache" / "open_r1_kivqa")


def cached_arrays(path: str, name: str, build: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`build()`, remembered for the file as it is now: by absolute path, size and time of change.

    What was remembered comes memory-mapped and read-only: only the parts that are used take memory, once for all processes of a machine.

    Args:
        path: the file that the arrays describe.
        name: what they are; part of the key, so raise it when their meaning changes.
        build: makes the arrays (no object arrays).
    """
    status = os.stat(path)
    if status.st_size < SMALLEST_CACHED:
        return build()
    key = f"{os.path.abspath(path)}\n{status.st_size}\n{status.st_mtime_ns}\n{name}"
    entry = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.arrays"
    if entry.is_dir():
        return {file.stem: _mapped(file) for file in entry.glob("*.npy")}
    arrays = build()
    if time.time() - status.st_mtime > SETTLED:
        _store_folder(entry, arrays)
    return arrays


def content_hash(path: str) -> str:
    """sha256 of a file's bytes, hexadecimal; remembered for large files."""

    def build() -> dict[str, np.ndarray]:
        with open(path, "rb") as file:
            return {"sha256": np.frombuffer(hashlib.file_digest(file, "sha256").digest(), dtype=np.uint8)}

    return cached_arrays(path, "sha256", build)["sha256"].tobytes().hex()


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Says on stderr how long the work took if that was long: "`what` took 32 s; ..."."""
    start = time.monotonic()
    yield
    if (seconds := time.monotonic() - start) > LONG:
        print(
            f"{what} took {seconds:.0f} s; what was found is kept in {cache_folder()}, so the next time takes none.",
            file=sys.stderr,
            flush=True,
        )


def _mapped(file: Path) -> np.ndarray:
    return np.load(file, mmap_mode="r", allow_pickle=False).view(
        np.ndarray
    )  # an element of a memmap takes ten times as long


def _store_folder(entry: Path, arrays: dict[str, np.ndarray]) -> None:
    """Keeps arrays as a folder of npy files, which can be mapped: written aside, then renamed."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=entry.parent, suffix=".part"))
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array)
        try:
            os.rename(aside, entry)
        except OSError:
            if not entry.is_dir():
                raise
            shutil.rmtree(aside)  # another rank was first
    except OSError as error:  # the run can go on, only slower
        logger.warning("Cannot cache in %s (%s); set KIVQA_CACHE to a folder that can be written.", entry.parent, error)


def store_arrays(entry: Path, arrays: dict[str, np.ndarray]) -> None:
    """Keeps arrays as an npz file: written aside, then renamed, since several ranks may store the same entry at once. A folder that can't be written is only warned of."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".part", delete=False) as file:
            np.savez(file, **arrays)
        os.replace(file.name, entry)
    except OSError as error:  # the run can go on, only slower
        logger.warning("Cannot cache in %s (%s); set KIVQA_CACHE to a folder that can be written.", entry.parent, error)
