"""Work that one rank does for all, before there is a process group."""

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta

from ..errors import InputError

LONGEST = timedelta(days=7)  # torchrun ends the waiting ranks at once if the working one dies
FAREWELL = timedelta(minutes=1)  # that rank 0, which failed, serves the others the news

_store = None  # kept: where no torchrun serves it, rank 0 does, and the process group will share its port


def once_per_launch(name: str, work: Callable[[], dict]) -> dict:
    """`work()`'s result, a dict of JSON values, on every rank of the launch; only rank 0 runs it.

    The others wait at the launch's own store (torchrun's, or one that rank 0 opens at MASTER_ADDR:MASTER_PORT): no process group is needed, whose collectives would time out during
    long work, and no shared folder. An InputError of rank 0 ends the other ranks with exit code 2 and no message of their own. Where rank 0 serves the store, it stays until all others have
    the result: it may have nothing else to do, and the store ends with it.

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
            with contextlib.suppress(RuntimeError):  # too late, or gone: what is wrong must be told all the same
                _stay_until_read(store, key, FAREWELL)
            raise
        store.set(key, zlib.compress(json.dumps(result).encode()))  # the store takes 8 MiB
        _stay_until_read(store, key, LONGEST)
        return result
    store.wait([key], LONGEST)
    result = json.loads(zlib.decompress(store.get(key)))
    store.set(f"{key}/read/{os.environ['RANK']}", b"read")
    if result is None:
        sys.exit(2)
    return result


def own_share(number: int) -> range:
    """This rank's run of `number` things; the runs of all ranks follow each other and differ in length by one at most. All of them without torchrun."""
    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return range(number * rank // ranks, number * (rank + 1) // ranks)


def wait_for_all(name: str) -> None:
    """Returns on each rank once every rank of the launch has come here; without torchrun at once. Each machine's files must be in a folder that the reader sees.

    Args:
        name: of the meeting; once per launch each.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        return
    store, key, own = _shared_store(), _key(name), os.environ["RANK"]
    store.set(f"{key}/{own}", b"here")
    store.wait([f"{key}/{rank}" for rank in range(ranks)], LONGEST)
    if own == "0":
        _stay_until_read(store, key, LONGEST)
    else:
        store.set(f"{key}/read/{own}", b"read")


def _stay_until_read(store, key: str, longest: timedelta) -> None:
    """Returns once all other ranks have read what is at `key`; at once where torchrun serves the store, which outlives this rank."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        store.wait([f"{key}/read/{rank}" for rank in range(1, int(os.environ["WORLD_SIZE"]))], longest)


def _shared_store():
    global _store
    if _store is None:
        from torch.distributed import rendezvous

        _store, _, _ = next(rendezvous("env://", timeout=LONGEST))
    return _store


def _key(name: str) -> str:
    return f"kivqa/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"
