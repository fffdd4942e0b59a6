"""What training and test rows share: what a model could answer from memory."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .images import content_hash
from .lines import JsonLines
from .report import Problem
from .sources import Row, Source, read_rows


@dataclass
class Contents:
    """What some rows hold; each value maps to where it was first seen."""

    ids: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)  # by path
    entities: dict[str, str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    asked: dict[tuple[str, str], str] = field(default_factory=dict)  # (entity, question)


def compare(
    training: list[tuple[Source, JsonLines]], test: list[tuple[Source, JsonLines]]
) -> tuple[list[Problem], dict[str, int]]:
    """Problems of training rows that give a test row away, and how many entities and questions both sides name.

    A row does so by the id, an image of the same content (bytes, whatever its name), or the same question about the same entity. Entities and question texts alone are only counted:
    whether they may be shared depends on the benchmark. Lines that can't be used are left out.
    """
    ours, theirs = _contents(read_rows(training)), _contents(read_rows(test))
    same_images = _same_images(ours.images, theirs.images)
    problems = []
    for row in read_rows(training):
        if row.sample is None:
            continue
        if row.id in theirs.ids:
            row.add("shared_id", f"the test row {theirs.ids[row.id]} has the same id", "remove one of them")
        for path in dict.fromkeys(row.images):
            if path in same_images:
                row.add(
                    "shared_image",
                    f"image {path} is also that of the test row {same_images[path]}",
                    "remove one of the rows",
                )
        asked = _asked(row)
        if asked in theirs.asked:
            row.add(
                "shared_question",
                f"the test row {theirs.asked[asked]} asks the same about {asked[0]!r}",
                "remove one of the rows",
            )
        problems += row.problems
    return problems, {
        "entities": len(ours.entities.keys() & theirs.entities.keys()),
        "questions": len(ours.questions.keys() & theirs.questions.keys()),
    }


def _contents(rows: Iterable[Row]) -> Contents:
    contents = Contents()
    for row in rows:
        if row.sample is None:
            continue
        place = f"{row.path}:{row.line}"
        contents.ids.setdefault(row.id, place)
        for path in row.images:
            contents.images.setdefault(path, place)
        contents.questions.setdefault(_question(row), place)
        if row.sample.entity is not None:
            contents.entities.setdefault(row.sample.entity, place)
            contents.asked.setdefault(_asked(row), place)
    return contents


def _question(row: Row) -> str:
    return " ".join(row.sample.question.casefold().split())


def _asked(row: Row) -> tuple[str | None, str]:
    return row.sample.entity, _question(row)


def _same_images(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """Of our image paths those whose bytes are also theirs, with the place of their row. Only files of a size that both sides have are read."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        our_sizes, their_sizes = (dict(zip(paths, pool.map(_size, paths), strict=True)) for paths in (ours, theirs))
        both = (set(our_sizes.values()) & set(their_sizes.values())) - {None}
        our_paths, their_paths = (
            [path for path, size in sizes.items() if size in both] for sizes in (our_sizes, their_sizes)
        )
        places = {
            hash: theirs[path] for path, hash in zip(their_paths, pool.map(content_hash, their_paths), strict=True)
        }
        hashes = zip(our_paths, pool.map(content_hash, our_paths), strict=True)
        return {path: places[hash] for path, hash in hashes if hash in places}


def _size(path: str) -> int | None:
    return os.path.getsize(path) if os.path.isfile(path) else None
