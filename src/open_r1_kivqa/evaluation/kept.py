"""Whether the answers that an earlier run left are to the prompts that this one would ask: the manifest says so of data and flags, but neither of pictures nor of the program."""

import random
from collections.abc import Iterable
from pathlib import Path

from ..data.jsonl import Rows
from ..errors import InputError
from ..prompting import Prompting
from .records import Job
from .shown import prompt_hash, show

MOST = 20_000  # records whose prompts are built again, drawn from all: some ten seconds, however large the evaluation


def refuse_changed_prompts(
    folder: Path,
    kept: Iterable[tuple[Job, str]],
    rows: Rows,
    prompting: Prompting,
    pictures: dict[str, list[tuple[str, str]]] | None = None,
) -> tuple[int, int]:
    """Builds the prompts of kept records again and compares their hashes; of more than MOST, those of a draw.

    Args:
        folder: where they are kept, for the message.
        kept: the job and the `prompt_hash` of each record.
        rows: all rows of the evaluation.
        prompting, pictures: as for `shown.show`; the seed draws as well.

    Returns:
        How many were compared, and how many there are.

    Raises:
        InputError: some differ; says how many, which is the first, and what to do.
    """
    kept = sorted(kept)
    compared = kept if len(kept) <= MOST else sorted(random.Random(prompting.seed).sample(kept, MOST))
    changed = []
    for (setting, id), known in compared:
        (shown,) = show([rows[rows.index_of(id)]], setting, prompting, pictures)
        if prompt_hash(shown.prompt) != known:
            changed.append((setting, id))
    if changed:
        setting, id = changed[0]
        raise InputError(
            f"{len(changed):,} of {len(compared):,} answers kept in {folder} that were compared are to other prompts than would be asked now, the first that of row {id!r} under {setting}: a picture or the program has changed since. Give another --output_dir, or delete predictions*.jsonl and rollouts*.jsonl there, and all rows are answered anew."
        )
    return len(compared), len(kept)
