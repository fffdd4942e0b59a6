"""Work that one rank does for all, before there is a process group."""

import json
import os
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta

from ..errors import InputError

LONGEST = timedelta(days=7)  # torchrun ends the waiting ranks at once if the working one dies

_store = None  # kept: where no torchrun serves it, rank 0 does, and the process group will share its port


def once_per_launch(name: str, work: Callable[[], dict]) -> dict:
    """`work()`'s result, a dict of JSON values, on every rank of the launch; only rank 0 runs it.

    The others wait at the launch's own store (torchrun's, or one that rank 0 opens at MASTER_ADDR:MASTER_PORT): no process group is needed, whose collectives would time out during
    long work, and no shared folder. An InputError of rank 0 ends the other ranks with exit code 2 and no message of their own.

    Args:
        name: of the work; once per launch each.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return work()
    store, key = _shared_store(), _key(name)
    if os.environ["RANK"] == "0":
        try:
            result = work()
        except InputError:
            store.set(key, zlib.compress(b"null"))
            raise
        store.set(key, zlib.compress(json.dumps(result).encode()))  # the store takes 8 MiB
        return result
    store.wait([key], LONGEST)
    result = json.loads(zlib.decompress(store.get(key)))
    if result is None:
        sys.exit(2)
    return result


def wait_for_all(name: str) -> None:
    """Returns on each rank once every rank of the launch has come here; without torchrun at once. Each machine's files must be in a folder that the reader sees.

    Args:
        name: of the meeting; once per launch each.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        return
    store = _shared_store()
    store.set(f"{_key(name)}/{os.environ['RANK']}", b"here")
    store.wait([f"{_key(name)}/{rank}" for rank in range(ranks)], LONGEST)


def _shared_store():
    global _store
    if _store is None:
        from torch.distributed import rendezvous

        _store, _, _ = next(rendezvous("env://", timeout=LONGEST))
    return _store


def _key(name: str) -> str:
    return f"kivqa/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"
