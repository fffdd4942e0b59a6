"""The rows of one or several jsonl files as one sequence of samples, parsed when asked for."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from ..errors import InputError
from .lines import JsonLines
from .samples import Sample, parse_row


def split_paths(text: str) -> list[str]:
    """ "a.jsonl:b.jsonl" -> ["a.jsonl", "b.jsonl"]; also used for folders and methods."""
    return [part.strip() for part in text.split(":") if part.strip()]


class Rows(Sequence[Sample]):
    """Rows of several files, one after the other; `rows[i]` parses row `i`, a slice is another `Rows`.

    Keeps 16 bytes a row and maps the files. Can be pickled.
    """

    def __init__(
        self, files: list[JsonLines], folders: list[str], methods: list[str], indices: np.ndarray | None = None
    ):
        self._files, self._folders, self._methods, self._indices = files, folders, methods, indices
        self._ends = np.cumsum([len(file) for file in files])
        self._ids: list[str] | None = None
        self._positions: dict[str, int] | None = None

    @classmethod
    def open(cls, data_file_paths: list[str], image_folders: list[str], reward_methods: list[str] | None) -> "Rows":
        """Find the lines of the files; no row is parsed.

        Args:
            data_file_paths: jsonl files, UTF-8.
            image_folders: one for each file, or one for all; may be empty if no row has an image.
            reward_methods: one for each file, or one for all; None means "default". A row's own method goes first.

        Raises:
            InputError: a file or folder is missing, a file is not jsonl, or the numbers do not match.
        """
        number = len(data_file_paths)
        if not number:
            raise InputError(
                "No data file was given; set --data_file_paths to one or several jsonl files, separated by ':'."
            )
        if len(image_folders) not in (0, 1, number):
            raise InputError(
                f"{number} data file(s) but {len(image_folders)} image folders; give one folder for all files or one for each."
            )
        methods = reward_methods or ["default"]
        if len(methods) not in (1, number):
            raise InputError(
                f"{number} data file(s) but {len(methods)} reward methods; give one method for all files or one for each."
            )
        for folder in image_folders:
            if not os.path.isdir(folder):
                raise InputError(
                    f"Image folder {folder} does not exist; give the folder that the rows' images lie under."
                )
        folders = [os.path.abspath(folder) for folder in image_folders] or [""]
        folders = folders * number if len(folders) == 1 else folders
        methods = methods * number if len(methods) == 1 else methods
        return cls([JsonLines(path) for path in data_file_paths], folders, methods)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._indices is None else len(self._indices)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return self.subset(range(*i.indices(len(self))))
        file, line = self._locate(i)
        return parse_row(
            self._files[file].record(line),
            image_folder=self._folders[file],
            reward_method=self._methods[file],
            source=self._files[file].source(line),
        )

    def raw(self, i: int) -> bytes:
        """The line of row `i` as it stands in its file."""
        file, line = self._locate(i)
        return self._files[file].raw(line)

    def source(self, i: int) -> str:
        """ "path.jsonl:line" of row `i`."""
        file, line = self._locate(i)
        return self._files[file].source(line)

    def subset(self, indices: Sequence[int]) -> "Rows":
        """The rows at these places, in this order, over the same files."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not (0 <= chosen.min() and chosen.max() < len(self)):
            raise IndexError(f"row indices must lie in 0..{len(self) - 1}")
        return Rows(
            self._files, self._folders, self._methods, chosen if self._indices is None else self._indices[chosen]
        )

    @property
    def ids(self) -> list[str]:
        """Every row's id, in order; read at the first use. `InputError` if one of these rows has none, or two have the same."""
        if self._ids is None:
            ids = [key for file in self._files for key in file.keys("id", required=False)]
            ids = ids if self._indices is None else [ids[i] for i in self._indices.tolist()]
            if "" in ids:
                file, line = self._locate(ids.index(""))
                self._files[file].key(line, "id")  # says what is wrong with it
            self._check_unique(ids)
            self._ids = ids
        return self._ids

    def index_of(self, id: str) -> int:
        """Place of the row with this id; `KeyError` if there is none."""
        if self._positions is None:
            self._positions = {id: i for i, id in enumerate(self.ids)}
        return self._positions[id]

    @property
    def fingerprint(self) -> str:
        """sha256 over the files' content hashes in order: the same rows from the same files, wherever they lie."""
        return hashlib.sha256("\n".join(file.content_hash for file in self._files).encode()).hexdigest()

    @property
    def hashes(self) -> np.ndarray:
        """(rows,) uint64: blake2b of each row's line as it stands in its file. Tells a changed row from the one of the same id before."""
        lines = (hashlib.blake2b(self.raw(i), digest_size=8).digest() for i in range(len(self)))
        return np.frombuffer(b"".join(lines), dtype="<u8")

    def _locate(self, i: int) -> tuple[int, int]:
        """(file, line within it) of row `i`."""
        i = range(len(self))[i]  # negative places; IndexError outside
        if self._indices is not None:
            i = int(self._indices[i])
        file = int(np.searchsorted(self._ends, i, side="right"))
        return file, i - (int(self._ends[file - 1]) if file else 0)

    def _check_unique(self, ids: list[str]) -> None:
        if len(set(ids)) == len(ids):
            return
        first: dict[str, int] = {}
        i = next(i for i, id in enumerate(ids) if first.setdefault(id, i) != i)
        raise InputError(
            f"id {ids[i]!r} is given twice, at {self.source(first[ids[i]])} and {self.source(i)}; ids must be unique over all "
            f"files."
        )
