"""Lists of texts from a pickle, without running what it asks for.

A pickle may call any function of any module. This reader knows a few names, those with which numpy writes its arrays and numbers, and answers them with stand-ins of its own: not even numpy's own functions
run on what the file says (with a made-up dtype they can be led to read foreign memory).
"""

import pickle
import re

import numpy as np

from ..errors import InputError

PLAIN = re.compile(r"[USiu][0-9]*|O8?")  # types of an array's items: texts, bytes, whole numbers, objects


def read_pickle(path: str) -> object:
    """The value in a pickle file: one list of what is in its lists, tuples and numpy arrays, however nested; or any other single value.

    Raises:
        InputError: damaged, or asking for anything but lists, tuples, dicts, sets, texts, numbers and numpy arrays.
    """
    with open(path, "rb") as file:
        try:
            return _flat(_Reader(file, path).load())
        except InputError:
            raise
        except Exception as error:  # a damaged pickle raises any kind
            raise InputError(
                f"{path} is no pickle that can be read ({type(error).__name__}: {error}); give a pickled list of texts, or better a .json."
            ) from None


class _Reader(pickle.Unpickler):
    def __init__(self, file, path: str):
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        known = STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise InputError(
                f"{self._path}: this pickle asks for {module}.{name}. A list of texts has no need of it, and it could run code, so nothing was run; don't trust this file."
            )
        return known

    def persistent_load(self, pid: object) -> object:
        raise InputError(f"{self._path}: this pickle refers to things outside of it; give one that is complete.")


class _Type:
    """In place of numpy.dtype."""

    def __init__(self, code: str, *_: object):
        if not isinstance(code, str) or not PLAIN.fullmatch(code):
            raise ValueError(f"items of type {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple) -> None:
        self.order = {"<": "<", ">": ">"}.get(state[1], "=")

    def items(self, data: object) -> list:
        if self.code.startswith("O"):
            if not isinstance(data, list):
                raise ValueError("objects that are no list")
            return data
        if isinstance(data, str):  # protocols below 3 write bytes as texts
            data = data.encode("latin1")
        return np.frombuffer(data, dtype=np.dtype(self.order + self.code)).tolist()


class _Array:
    """In place of numpy.ndarray, which is made empty and then filled."""

    def __init__(self, *_: object):
        self.items: list = []

    def __setstate__(self, state: tuple) -> None:
        _, _, kind, _, data = state
        self.items = kind.items(data)


def _scalar(kind: _Type, data: object) -> object:
    (item,) = kind.items(data)
    return item


def _from_buffer(data: object, kind: _Type, *_: object) -> _Array:
    array = _Array()
    array.items = kind.items(bytes(data))
    return array


def _encode(text: str, encoding: str) -> bytes:
    """In place of codecs.encode, with which protocols below 3 write bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in {encoding!r}")
    return text.encode("latin1")


STAND_INS = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


def _flat(value: object) -> object:
    if not isinstance(value, list | tuple | _Array):
        return value
    flat: list = []
    for item in value.items if isinstance(value, _Array) else value:
        item = _flat(item)
        flat.extend(item if isinstance(item, list) else [item])
    return flat
