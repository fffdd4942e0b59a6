"""The image files below some folders, found by id: one walk over the folders, remembered until one of them changes.

An image's id is its file name without the extension: Google Landmarks (`a/b/c/abc….jpg`), OVEN (`oven_04000000.jpg` in numbered folders) and iNaturalist (in category folders) are all laid
out so. Where a benchmark's ids are other names, a JSON file says which file each one is (image_names.py).

    files = ImageFiles.scan(["/data/inat", "/data/landmarks"], inat_json=["train.json"])
    files.find("4dcd27a2c5bd4fd5", "landmarks")  # "landmarks/train/4/d/c/4dcd27a2c5bd4fd5.jpg", below files.folder; None if there is none
"""

import hashlib
import os
import time
import unicodedata
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import InputError
from .cache import SETTLED, cache_folder, store_arrays
from .image_names import ImageNames, name_of
from .packed import Packer, Texts, places, sort_hashes, text_hash

EXTENSIONS = frozenset(".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .tif .tiff .ppm .pgm .jp2 .avif".split())
DATASETS = ("inaturalist", "landmarks", "oven", "")


class ImageFiles:
    """Images by id. In memory a file takes the length of its name and 28 bytes.

    Attributes:
        roots: the folders that were walked, absolute.
        folder: their common folder, absolute. Paths are relative to it, so this is what to give as --image_folders.
    """

    def __init__(self, roots: list[str], arrays: dict[str, np.ndarray], names: dict[str, Sequence[ImageNames]]):
        self.roots, self.folder = roots, os.path.commonpath(roots)
        self._folders = list(Texts(arrays["folders"], arrays["folder_ends"]))
        self._names = Texts(arrays["names"], arrays["name_ends"])
        self._folder_of, self._hashes, self._order = arrays["folder_of"], arrays["hashes"], arrays["order"]
        self._names_of = names

    @classmethod
    def scan(cls, roots: Sequence[str], id2path: str | None = None, inat_json: Sequence[str] = ()) -> "ImageFiles":
        """Walks the folders, or takes what the last walk found.

        Links to folders are followed, and each folder is entered once. The last walk, kept in the cache folder (data/cache.py), holds as long as the same roots are given and no folder
        below them has another time of change, which every file that comes, goes or gets another name leaves on its folder. A walk less than two seconds after a change isn't kept.

        Args:
            roots: folders; one that lies in another counts once.
            id2path: JSON file that gives each OVEN id its path (`oven_id2path.json`).
            inat_json: iNaturalist's own JSON files (`train.json`, `val.json`; `images: [{"id", "file_name"}]`), or files with an object of ids and names (`val_id2name.json`).

        Raises:
            InputError: a root is no folder or can't be read, no image lies below them, or a JSON file has another form.
        """
        roots = [os.path.abspath(root) for root in roots]
        if not roots:
            raise InputError("No image folder was given; name one or several, separated by ':'.")
        for root in roots:
            if not os.path.isdir(root):
                raise InputError(f"Image folder {root} does not exist; give the folder that the images lie below.")
        names = {"oven": [ImageNames.read(id2path)] if id2path else []}
        names["inaturalist"] = [ImageNames.read(path) for path in inat_json]
        arrays = _last_walk(roots)
        if not len(arrays["order"]):
            raise InputError(f"No image lies below {':'.join(roots)}; give the folders of the unpacked images.")
        return cls(roots, arrays, names)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """All paths, in no order that means something."""
        return (self._path(i) for i in range(len(self)))

    @property
    def fingerprint(self) -> str:
        """sha256 over the paths and the JSON files' contents: the same images under the same ids."""
        digest = hashlib.sha256()
        for part in (*Texts.of(self._folders).arrays, *self._names.arrays, self._folder_of):
            digest.update(np.ascontiguousarray(part))
        for dataset, files in sorted(self._names_of.items()):
            digest.update(" ".join([dataset, *(file.content_hash for file in files)]).encode())
        return digest.hexdigest()

    def find(self, id: str, dataset: str = "") -> str | None:
        """Path of an image relative to `folder`; None if there is none. The first of `find_all`."""
        return next(iter(self.find_all(id, dataset)), None)

    def find_all(self, id: str, dataset: str = "") -> list[str]:
        """Paths of the files that an id can mean, relative to `folder`: those that end in the id as given, else those that do but for their extension, else those that do but for the case
        of letters and how their accents are composed too. One in the dataset's own layout stands first, then they are in alphabetical order.

        Args:
            id: file name with or without its extension, or the end of a path.
            dataset: "landmarks" prefers `a/b/c/abc….jpg`; "inaturalist" finds the file's name in the JSON files given for it, and takes the id for the name only if none was given; "oven"
                does so for each id that its file doesn't have; "" takes the id for the name.

        Raises:
            InputError: two JSON files have the id, with different names.
        """
        if dataset not in DATASETS:
            raise ValueError(f"dataset {dataset!r} is none of {DATASETS}")
        files = self._names_of.get(dataset, ())
        named = name_of(id, files)
        if (
            named is None and files and dataset == "inaturalist"
        ):  # its ids are numbers, which files of another kind may be called too
            return []
        wanted = os.path.normpath(named or id).lstrip("/")
        stem = _stem(os.path.basename(wanted))
        layout = "/".join([*stem[:3], stem]) if dataset == "landmarks" else wanted

        form = _form(stem)
        found = (int(self._order[place]) for place in places(self._hashes, form))
        paths = [self._path(i) for i in found if _form(_stem(self._names[i])) == form]
        if len(paths) < 2:
            return paths
        for ends in (_ends, _ends_but_for_extension):
            paths = [path for path in paths if ends(path, wanted)] or paths
        return sorted(paths, key=lambda path: (not _ends_but_for_extension(path, layout), path))

    @property
    def duplicates(self) -> list[list[str]]:
        """For each id that several files have their paths, in alphabetical order; worked out anew at each use."""
        groups: dict[str, set[str]] = {}
        for place in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]).tolist():
            for i in self._order[place : place + 2].tolist():
                groups.setdefault(_form(_stem(self._names[i])), set()).add(self._path(i))
        return sorted(sorted(paths) for paths in groups.values() if len(paths) > 1)

    def _path(self, i: int) -> str:
        return os.path.join(self._folders[self._folder_of[i]], self._names[i])


def _ends(path: str, end: str) -> bool:
    """Whether a path ends in these parts."""
    return f"/{path}".endswith(f"/{end}")


def _ends_but_for_extension(path: str, end: str) -> bool:
    folder, name = os.path.split(path)
    return _ends(os.path.join(folder, _stem(name)), os.path.join(os.path.dirname(end), _stem(os.path.basename(end))))


def _stem(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension.lower() in EXTENSIONS else name


def _form(stem: str) -> str:
    """In which stems are compared: small letters, and characters composed, which an archive of a Mac's has taken apart."""
    lower = stem.lower()
    return lower if lower.isascii() else unicodedata.normalize("NFC", lower)


def _last_walk(roots: list[str]) -> dict[str, np.ndarray]:
    """The arrays of `_walk`, from the cache if no folder has changed since."""
    key = hashlib.sha256("\n".join(["image-files-2", *roots]).encode("utf-8", "surrogateescape")).hexdigest()
    entry = cache_folder() / f"{key}.npz"
    if entry.exists():
        with np.load(entry, allow_pickle=False) as stored:
            arrays = dict(stored)
        if _unchanged(os.path.commonpath(roots), arrays):
            return arrays
    arrays = _walk(roots)
    if time.time() - arrays["times"].max() / 1e9 > SETTLED:
        store_arrays(entry, arrays)
    return arrays


def _unchanged(common: str, arrays: dict[str, np.ndarray]) -> bool:
    folders = Texts(arrays["folders"], arrays["folder_ends"])
    try:
        return all(
            os.stat(os.path.join(common, folder)).st_mtime_ns == time_of_change
            for folder, time_of_change in zip(folders, arrays["times"].tolist(), strict=True)
        )
    except OSError:  # a folder is gone
        return False


def _walk(roots: list[str]) -> dict[str, np.ndarray]:
    """Folders below the common one and their times of change; of each image its name, the number of its folder, and the hash of its id's `_form`, hashes sorted."""
    common = os.path.commonpath(roots)
    waiting, entered = roots[::-1], set()
    folders, times = [], []
    names, folder_of, unsorted = Packer(), array("i"), array("Q")
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)  # before it is listed: what comes meanwhile is noticed next time
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if not _is_text(entry.name):
                        continue
                    if entry.is_dir():
                        waiting.append(entry.path)
                    elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS and entry.is_file():
                        names.add(entry.name)
                        folder_of.append(len(folders))
                        unsorted.append(text_hash(_form(_stem(entry.name))))
        except OSError as error:
            raise InputError(
                f"Image folder {folder} cannot be read ({error.strerror}); give one that you may read."
            ) from error
        folders.append(os.path.relpath(folder, common))
        times.append(status.st_mtime_ns)
    folder_texts, name_texts = Texts.of("" if name == "." else name for name in folders), names.texts()
    hashes, order = sort_hashes(unsorted)
    return {
        "folders": folder_texts.arrays[0],
        "folder_ends": folder_texts.arrays[1],
        "times": np.array(times, dtype=np.int64),
        "names": name_texts.arrays[0],
        "name_ends": name_texts.arrays[1],
        "folder_of": np.frombuffer(folder_of, dtype=np.int32),
        "hashes": hashes,
        "order": order,
    }


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8; no row could hold another."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
