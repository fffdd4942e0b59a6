"""Work on rows in blocks, each kept in files of its own until all are there: a run that was killed goes on, and ranks share the work."""

import json
import os
import shutil
from collections.abc import Iterator

from ..data.aside import write_json, written_aside
from ..data.launch import once_per_launch, own_share, wait_for_all
from ..data.locks import Lock
from ..errors import InputError

BLOCK = 256  # rows
LOCK = "lock"  # file of the folder, held by rank 0


class Blocks:
    """The blocks of an output file, in the folder `<output>.parts` until `merge`.

    What a block holds may depend on its own rows alone, so that the output is the same however the blocks were shared out and whenever a run was interrupted.
    """

    def __init__(self, output: str, identity: dict, rows: int):
        """Keeps the blocks of an interrupted run of the same identity, removes those of another. Every rank of a launch calls this.

        Args:
            output: the final file.
            identity: JSON values, all that the output depends on.
            rows: of the input.

        Raises:
            InputError: the folder cannot be written, or another run is writing it.
        """
        self._output, self._folder = output, f"{os.path.abspath(output)}.parts"
        self._identity, self._rows = json.loads(json.dumps(identity)), rows
        once_per_launch(f"blocks of {output}", self._prepare)

    def __len__(self) -> int:
        return -(-self._rows // BLOCK)

    def todo(self) -> list[int]:
        """This rank's blocks, a run of them, but those that are there already."""
        return [block for block in own_share(len(self)) if not os.path.exists(self._path(block, "rows"))]

    def rows_of(self, block: int) -> range:
        """Places of a block's rows."""
        return range(block * BLOCK, min(self._rows, (block + 1) * BLOCK))

    def write(self, block: int, rows: list[dict], records: list[dict]) -> None:
        """Stores a block: its output rows, and what is to be counted of each."""
        for kind, values in (("records", records), ("rows", rows)):  # rows last: they say that the block is there
            path = self._path(block, kind)
            text = "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)
            try:
                with written_aside(path, newline="\n") as file:
                    file.write(text)
            except OSError as error:
                raise self._unwritable(error) from error

    def wait(self) -> None:
        """Returns once all ranks have stored their blocks."""
        wait_for_all(f"blocks of {self._output}")

    def records(self) -> Iterator[dict]:
        """What is to be counted of each row, in their order. Needs all blocks."""
        for block in range(len(self)):
            with open(self._path(block, "records"), encoding="utf-8") as file:
                yield from map(json.loads, file)

    def merge(self, report: dict) -> None:
        """Writes the output file, and `report` to `<output>.report.json`, and removes the blocks. Needs all blocks."""
        try:
            with written_aside(self._output, "wb") as output:
                for block in range(len(self)):
                    with open(self._path(block, "rows"), "rb") as file:
                        shutil.copyfileobj(file, output)
                write_json(f"{self._output}.report.json", report)
            self._lock.remove_folder()
        except OSError as error:
            raise self._unwritable(error) from error

    def _prepare(self) -> dict:
        path = os.path.join(self._folder, "identity.json")
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._lock = Lock(
                os.path.join(self._folder, LOCK), what=f"--output {self._output}", remedy="name another --output"
            )
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    if json.load(file) == self._identity:
                        return {}
            self._lock.clear()
            write_json(path, self._identity)
        except OSError as error:
            raise self._unwritable(error) from error
        return {}

    def _path(self, block: int, kind: str) -> str:
        return os.path.join(self._folder, f"{block:07d}.{kind}.jsonl")

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"--output {self._output} cannot be written ({error.strerror}); give another one or make room."
        )
