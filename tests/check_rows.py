"""Rows and files for the tests of the checks."""

import json


def row(id, question="<image>What?", answer="Paris", **fields):
    """A row with one image, good.png, unless `fields` say otherwise."""
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": id, "image": "good.png", "conversations": turns, **fields}


def without(row, *names):
    """The row without some fields."""
    return {name: value for name, value in row.items() if name not in names}


def write(path, rows):
    """Writes rows, or lines given as bytes, one a line; returns the path as a string."""
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in rows))
    return str(path)
