"""Files that stand there whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def written_aside(path: str | os.PathLike, mode: str = "w", **how) -> Iterator[IO]:
    """A new file that takes `path`'s place at the end of the block, its content on the disk; texts are UTF-8.

    Until then it is `<path>.part`, which one process at a time may write. After an error, as of a disk that fills up, that goes and `path` is as it was.

    Args:
        mode, how: as for `open`.
    """
    part = f"{os.fspath(path)}.part"
    if "b" not in mode:
        how = {"encoding": "utf-8", **how}
    try:
        with open(part, mode, **how) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def write_json(path: str | os.PathLike, values, indent: int | None = 1, **how) -> None:
    """JSON in a file, `written_aside`; texts as they are, not escaped. `how` as for `json.dump`."""
    # Half a pair of UTF-16, as in a path that is no UTF-8, is no UTF-8 either; as an escape JSON takes it.
    with written_aside(path, errors="backslashreplace") as file:
        json.dump(values, file, ensure_ascii=False, indent=indent, **how)
        file.write("\n")
