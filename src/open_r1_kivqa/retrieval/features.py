"""Vectors of pictures on disk: computed in shards, which a killed run keeps and ranks share out."""

import json
import os
import shutil
from collections.abc import Callable, Iterator

import numpy as np

from ..data.aside import write_json, written_aside
from ..data.launch import once_per_launch, own_share, wait_for_all
from ..data.locks import Lock
from ..data.packed import Texts
from ..errors import InputError
from .encoders import ImageEncoder, load_batches
from .pictures import EXAMPLES, Pictures

BATCHES = 128  # in a shard, at most; fewer where there are few pictures, so that ranks have something to share
SHARDS = 256  # that there should be at least
LOCK = "lock"  # file of the folder, held by rank 0


class Features:
    """The vectors of the pictures that could be read, in their order (as `vectors.Vectors`).

    Attributes:
        dim: length of a vector.
        keys: the article of each.
        broken: pictures that could not be read, and some of them.
        examples: of these, why.
    """

    def __init__(self, folder: str, pictures: Pictures, shards: int):
        self._paths = [_path(folder, shard) for shard in range(shards)]
        kept, examples, self.dim = [], [], 0
        for path in self._paths:
            with np.load(path, allow_pickle=False) as shard:
                kept.append(shard["kept"])
                examples += shard["examples"].tolist()
                self.dim = int(shard["dim"])
        kept = np.concatenate(kept)
        self.keys = Texts.of(pictures.keys[i] for i in np.flatnonzero(kept).tolist())
        self.broken, self.examples = int((~kept).sum()), examples[:EXAMPLES]

    def __len__(self) -> int:
        return len(self.keys)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """All vectors in order, (up to `size`, dim) float32 at a time."""
        for path in self._paths:
            with np.load(path, allow_pickle=False) as shard:
                vectors = shard["vectors"]
            for start in range(0, len(vectors), size):
                yield vectors[start : start + size]

    def save(self, folder: str) -> None:
        """Writes vectors.npy and ids.json into the folder, as --features and --ids take them.

        Raises:
            InputError: the folder cannot be written, or has no room.
        """
        vectors, ids = os.path.join(folder, "vectors.npy"), os.path.join(folder, "ids.json")
        head = {"descr": "<f4", "fortran_order": False, "shape": (len(self), self.dim)}
        try:
            os.makedirs(folder, exist_ok=True)
            # Written, not mapped: on a full disk a page of a mapping ends the process without a word.
            with written_aside(vectors, "wb") as file:
                np.lib.format.write_array_header_1_0(file, head)
                for batch in self.batches(len(self)):
                    file.write(np.ascontiguousarray(batch, dtype="<f4").data)
                write_json(ids, list(self.keys), indent=None)
        except OSError as error:
            raise InputError(
                f"--save_features {folder} cannot be written ({error.strerror}); make room or name another folder, and give the same command again: nothing is embedded anew."
            ) from error


def prepare(folder: str, identity: dict, overwrite: bool = False) -> Lock:
    """Makes the folder for `embed`; shards of the same identity stay in it. One rank calls this, before any calls `embed`.

    Args:
        identity: JSON values, all that the vectors and their shards depend on, batch size and pictures among them.
        overwrite: remove vectors of another identity.

    Returns:
        what keeps other runs out of the folder; to be kept until the vectors aren't needed any more.

    Raises:
        InputError: the folder holds vectors of another identity, or something else; or another run is writing it.
    """
    if _identity(folder) is None and os.path.isdir(folder) and set(os.listdir(folder)) - {LOCK}:
        raise InputError(f"{folder} holds something else than vectors of pictures; give another --output.")
    os.makedirs(folder, exist_ok=True)
    lock = Lock(os.path.join(folder, LOCK), what=folder, remedy="give another --output")
    found = _identity(folder)
    if found == identity:
        return lock
    if found is not None:
        if not overwrite:
            differs = ", ".join(name for name in identity if found.get(name) != identity[name])
            raise InputError(
                f"{folder} holds vectors of another run (another {differs}); give --overwrite to remove them, or another --output."
            )
        lock.clear()
    path = os.path.join(folder, "identity.json")
    write_json(path, identity)
    return lock


def discard(folder: str, identity: dict) -> None:
    """Removes the folder of `prepare` with its shards, if it is that identity's."""
    if _identity(folder) == identity:
        shutil.rmtree(folder)


def embed(
    pictures: Pictures, encoder: ImageEncoder, folder: str, progress: Callable[[str], None] = lambda text: None
) -> Features:
    """The vectors of all pictures; those that an earlier run has stored in the folder are not computed again.

    Under torchrun each rank computes a run of the shards, and all return once all are there. Which pictures are computed together depends on the batch size alone, not on the number
    of ranks nor on interruptions, so the vectors are the same to the bit on the same kind of device.

    Args:
        folder: of `prepare`.
        progress: called with what has been done.

    Raises:
        InputError: not one picture can be read.
    """
    size = encoder.batch_size * max(1, min(BATCHES, len(pictures) // (encoder.batch_size * SHARDS)))
    shards = -(-len(pictures) // size)
    own = own_share(shards)
    todo = [shard for shard in own if not os.path.exists(_path(folder, shard))]
    if len(todo) < len(own):
        progress(f"{len(own) - len(todo):,} of {len(own):,} shards were there already")
    for number, shard in enumerate(todo, 1):
        _compute(pictures, range(shard * size, min(len(pictures), (shard + 1) * size)), encoder, _path(folder, shard))
        progress(f"{number:,} of {len(todo):,} shards of up to {size:,} pictures embedded")
    wait_for_all(f"features {folder}")
    features = Features(folder, pictures, shards)
    once_per_launch(f"features read from {folder}", lambda: _refuse_empty(features))
    return features


def _refuse_empty(features: Features) -> dict:
    if not len(features):
        raise InputError(
            f"Not one of the {features.broken:,} pictures can be read, for example: {features.examples[0]}"
        )
    return {}


def _compute(pictures: Pictures, places: range, encoder: ImageEncoder, path: str) -> None:
    kept, examples = np.ones(len(places), dtype=bool), []
    vectors = [np.empty((0, encoder.dim), dtype=np.float32)]
    start = 0
    for batch in load_batches([pictures.paths[i] for i in places], encoder.batch_size):
        images = []
        for i, image in enumerate(batch, start):
            if isinstance(image, InputError):
                kept[i] = False
                examples.append(str(image))
            else:
                images.append(image)
        if images:
            vectors.append(encoder.encode_images(images))
        start += len(batch)
    arrays = {"vectors": np.concatenate(vectors), "kept": kept, "dim": np.int64(encoder.dim)}
    try:
        with written_aside(path, "wb") as file:
            np.savez(file, examples=np.array(examples[:EXAMPLES], dtype=np.str_), **arrays)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); make room or mend the folder, then give the same command again: it goes on from here."
        ) from error


def _identity(folder: str) -> dict | None:
    """What `prepare` wrote; None where it wrote nothing."""
    path = os.path.join(folder, "identity.json")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _path(folder: str, shard: int) -> str:
    return os.path.join(folder, f"shard-{shard:06d}.npz")
