"""Files that say how alike articles or rows are: embeddings, a json of similarities, lists of edges."""

import json
import os
import zipfile

import numpy as np

from ..data.lines import JsonLines
from ..errors import InputError
from .graph import UNREADABLE

JSON_FORM = '{"entity": {"other entity": similarity}} or {"entity": [["other entity", similarity], ...]}'
SLACK = 1e-3  # by which rounding may carry a similarity above 1


def read_embeddings(path: str) -> tuple[list[str], np.ndarray]:
    """ids and (ids, D) float32 vectors of an .npz with the arrays `ids` and `vectors`.

    Raises:
        InputError: not such a file, an id given twice, a vector that is not finite or all zeros.
    """
    _refuse_missing(path)
    form = "give an .npz with the arrays `ids` (texts) and `vectors` (one row for each id)"
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no .npz file; {form}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); {form}.") from None
    if "ids" not in arrays or "vectors" not in arrays:
        raise InputError(f"{path} holds the arrays {', '.join(arrays) or 'none'}; {form}.")
    ids, vectors = arrays["ids"], arrays["vectors"]
    if ids.ndim != 1 or ids.dtype.kind not in "UiuS" or vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise InputError(f"{path} has ids {ids.dtype}{ids.shape} and vectors {vectors.dtype}{vectors.shape}; {form}.")
    if len(ids) != len(vectors) or not len(ids):
        raise InputError(f"{path} has {len(ids):,} ids and {len(vectors):,} vectors; {form}.")
    names = [id.decode("utf-8") if isinstance(id, bytes) else str(id) for id in ids.tolist()]
    if len(set(names)) < len(names):
        seen: set[str] = set()
        repeated = next(name for name in names if name in seen or seen.add(name))
        raise InputError(f"{path} gives the id {repeated!r} twice; give each id one vector.")
    vectors = np.asarray(vectors, dtype=np.float32)
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    bad = np.flatnonzero(~((squares > 0) & np.isfinite(squares)))
    if len(bad):
        kind = "is all zeros" if squares[bad[0]] == 0 else "holds NaN or infinite numbers"
        raise InputError(
            f"{path}: the vector of {names[bad[0]]!r} {kind} ({len(bad):,} such vectors); embed these again or leave their rows out."
        )
    return names, vectors


def read_similarities(path: str) -> tuple[list[str], list[str], np.ndarray]:
    """Pairs and their similarities, (E,) float64 in [0, 1], of a .json of all entities, or a .tsv or .jsonl of edges.

    Raises:
        InputError: another file or form, a similarity outside 0 to 1 or NaN, a pair given twice.
    """
    _refuse_missing(path)
    readers = {".json": _read_json, ".tsv": _read_tsv, ".jsonl": _read_jsonl}
    reader = readers.get(os.path.splitext(path)[1])
    if reader is None:
        raise InputError(f"{path} is no known kind of similarities; give a file that ends with {', '.join(readers)}.")
    left, right, values, place = reader(path)
    if not left:
        raise InputError(f"{path} holds no similarity.")
    similarities = np.array(values, dtype=np.float64)
    bad = np.flatnonzero(~((similarities >= 0) & (similarities <= 1 + SLACK)))
    if len(bad):
        e = int(bad[0])
        raise InputError(
            f"{place(e)}: the similarity of {left[e]!r} and {right[e]!r} is {similarities[e]:g} ({len(bad):,} such pairs); similarities lie from 0 to 1, rescale them or leave these pairs out."
        )
    pairs = set(zip(left, right, strict=True))
    if len(pairs) < len(left):
        seen: set[tuple[str, str]] = set()
        e = next(e for e, pair in enumerate(zip(left, right, strict=True)) if pair in seen or seen.add(pair))
        raise InputError(
            f"{place(e)}: the pair {left[e]!r}, {right[e]!r} is given twice; give each pair one similarity."
        )
    return left, right, np.minimum(similarities, 1)


def _read_json(path: str):
    def refuse(found: str):
        return InputError(f"{path} holds {found}; expected is {JSON_FORM}.")

    with open(path, "rb") as file:
        try:
            table = json.load(file)
        except (ValueError, RecursionError) as error:
            raise refuse(f"no JSON ({error})") from None
    if not isinstance(table, dict) or not table:
        raise refuse("an empty object" if table == {} else f"a {type(table).__name__}")
    left, right, values = [], [], []
    for name, others in table.items():
        pairs = list(others.items()) if isinstance(others, dict) else others
        if not isinstance(pairs, list):
            raise refuse(f"{_short(others)} for {name!r}")
        for pair in pairs:
            if not (
                isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) and _number(pair[1])
            ):
                raise refuse(f"{_short(pair)} among the similarities of {name!r}")
            left.append(name)
            right.append(pair[0])
            values.append(float(pair[1]))
        if not pairs:  # an entity like no other is known all the same
            left.append(name)
            right.append(name)
            values.append(1.0)
    return left, right, values, lambda e: path


def _read_tsv(path: str):
    left, right, values, numbers = [], [], [], []
    with open(path, encoding="utf-8", newline="\n") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                parts = line.rstrip("\r\n").split("\t")
                if len(parts) != 3:
                    raise InputError(
                        f"{path}:{number}: {len(parts)} column(s); write first, second and similarity, separated by tabs."
                    )
                try:
                    values.append(float(parts[2]))
                except ValueError:
                    raise InputError(
                        f"{path}:{number}: the similarity {parts[2]!r} is no number; write one from 0 to 1."
                    ) from None
                left.append(parts[0])
                right.append(parts[1])
                numbers.append(number)
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text; convert it with iconv -t UTF-8.") from None
    return left, right, values, lambda e: f"{path}:{numbers[e]}"


def _read_jsonl(path: str):
    lines = JsonLines(path)
    left, right, values = [], [], []
    for i in range(len(lines)):
        edge = lines.record(i)
        names = [edge.get("a"), edge.get("b")] if isinstance(edge, dict) else []
        if not names or not all(isinstance(name, str) for name in names) or not _number(edge.get("similarity")):
            raise InputError(
                f'{lines.source(i)}: an edge is written {{"a": "first", "b": "second", "similarity": 0.5}}, not {_short(edge)}.'
            )
        left.append(names[0])
        right.append(names[1])
        values.append(float(edge["similarity"]))
    return left, right, values, lines.source


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _refuse_missing(path: str) -> None:
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist; give the path of a file.")
