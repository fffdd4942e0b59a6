"""What a check of the same data found last time, so that the next launch need not look again."""

import gzip
import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from .cache import cache_folder
from .report import Problem, Report
from .verdicts import files_digest

logger = logging.getLogger(__name__)


def stamp_path(inputs: dict) -> Path:
    """Where the stamp of a check lies. `inputs` is all that its result depends on besides the image files, as JSON values; anything else there makes another stamp."""
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "checked" / f"{key}.json.gz"


def read_stamp(path: Path) -> Report | None:
    """The report behind a stamp, if there is one and no image was touched since (each is asked for its size and time of change, none is opened)."""
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        values = json.load(file)
    if files_digest(values["image_paths"]) != values["image_digest"]:
        return None
    values["problems"] = [Problem(**problem) for problem in values["problems"]]
    return Report(**values)


def write_stamp(path: Path, report: Report) -> None:
    """Stores a report: aside first, then under its name, since several launches may do so at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(gzip.compress(json.dumps(asdict(report)).encode(), compresslevel=1))
        os.replace(file.name, path)
    except OSError as error:  # the run can go on; the next one checks again
        logger.warning(
            "Cannot keep the check's result in %s (%s); set KIVQA_CACHE to a folder that can be written.",
            path.parent,
            error,
        )
