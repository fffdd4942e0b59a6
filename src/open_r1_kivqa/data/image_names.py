"""JSON files that say which file an image id is, for benchmarks whose ids are no file names: OVEN's `oven_id2path.json`, iNaturalist's `train.json` and `val.json`."""

import os
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import InputError
from .cache import cached_arrays, content_hash
from .packed import Packer, Texts, places, sort_hashes, text_hash


class ImageNames:
    """File names by image id; in memory they take their own length and 24 bytes each."""

    def __init__(self, path: str, hashes: np.ndarray, order: np.ndarray, ids: Texts, names: Texts):
        self.path = path
        self._hashes, self._order, self._ids, self._names = hashes, order, ids, names

    @classmethod
    def read(cls, path: str) -> "ImageNames":
        """Reads a file (remembered for large ones). Forms: `{"images": [{"id": …, "file_name": …}, …]}`, as COCO's and iNaturalist's, or `{id: path, …}`.

        Raises:
            InputError: no such file, no JSON, another form, or an id with two names.
        """
        if not os.path.isfile(path):
            raise InputError(f"{path} is no file; give the JSON file that says which file each image id is.")
        arrays = cached_arrays(path, "image-names-1", lambda: _index(path))
        return cls(
            path,
            arrays["hashes"],
            arrays["order"],
            Texts(arrays["ids"], arrays["id_ends"]),
            Texts(arrays["names"], arrays["name_ends"]),
        )

    @property
    def content_hash(self) -> str:
        """sha256 of the file."""
        return content_hash(self.path)

    def get(self, id: str) -> str | None:
        """The name or path of an image; None if the file doesn't have it."""
        for place in places(self._hashes, id):
            i = int(self._order[place])
            if self._ids[i] == id:
                return self._names[i]
        return None


def name_of(id: str, files: Sequence[ImageNames]) -> str | None:
    """The name that one of several files has for an id; None if none has it. InputError if they have different ones, as the files of two splits may."""
    names = {file.get(id): file.path for file in files}
    names.pop(None, None)
    if len(names) > 1:
        (one, first), (other, second), *_ = names.items()
        raise InputError(
            f"Image id {id!r} is {one} in {first} and {other} in {second}; give only the file of the split that the questions are from."
        )
    return next(iter(names), None)


def _index(path: str) -> dict[str, np.ndarray]:
    packed_ids, packed_names, unsorted = Packer(), Packer(), array("Q")
    for id, name in _pairs(path):
        packed_ids.add(id)
        packed_names.add(name)
        unsorted.append(text_hash(id))
    if not len(unsorted):
        raise InputError(
            f'{path} names no image; wanted is {{"images": [{{"id": …, "file_name": …}}, …]}} or {{"id": "path", …}}.'
        )
    ids, names, (hashes, order) = packed_ids.texts(), packed_names.texts(), sort_hashes(unsorted)
    for place in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        first, second = order[place : place + 2].tolist()
        if ids[first] == ids[second] and names[first] != names[second]:
            raise InputError(
                f"{path}: image id {ids[first]!r} has two names, {names[first]!r} and {names[second]!r}; remove one."
            )
    return {
        "hashes": hashes,
        "order": order,
        "ids": ids.arrays[0],
        "id_ends": ids.arrays[1],
        "names": names.arrays[0],
        "name_ends": names.arrays[1],
    }


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    import ijson

    try:
        with open(path, "rb") as file:
            start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
            file.seek(start)
            number = -1
            for number, image in enumerate(ijson.items(file, "images.item", use_float=True)):
                yield _image(image, f"{path} images[{number}]")
            if number >= 0:
                return
            file.seek(start)
            for id, name in ijson.kvitems(file, "", use_float=True):
                if not isinstance(name, str) or not name:
                    raise InputError(
                        f'{path}: {id!r} is {str(name)[:60]!r}; wanted is {{"images": [{{"id": …, "file_name": …}}, …]}} or {{"id": "path", …}}.'
                    )
                yield id, name
    except ijson.JSONError as error:
        raise InputError(f"{path} is not JSON, or ends early ({error}); download it again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file that you may read.") from error


def _image(image: object, source: str) -> tuple[str, str]:
    id, name = (image.get("id"), image.get("file_name")) if isinstance(image, dict) else (None, None)
    if isinstance(id, bool) or not isinstance(id, int | str) or not isinstance(name, str) or not name:
        raise InputError(f'{source} is {str(image)[:80]}; wanted is {{"id": …, "file_name": "…"}}.')
    return str(id), name
