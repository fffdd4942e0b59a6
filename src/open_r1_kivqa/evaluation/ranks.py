"""The processes of an evaluation that torchrun started; one alone without it.

Each rank has its own copy of the model and answers its own share, so they only wait on each other: over gloo, also on GPUs, with no limit that a slow rank could run into.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed

from ..errors import InputError


@dataclass(frozen=True)
class Ranks:
    """This process's rank, from 0, and the number of ranks."""

    rank: int
    size: int

    @classmethod
    def join(cls) -> "Ranks":
        """Reads what torchrun set, and meets the other ranks."""
        ranks = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if ranks.size > 1:
            distributed.init_process_group("gloo", timeout=timedelta(days=7))
        return ranks

    def leave(self) -> None:
        if self.size > 1:
            distributed.destroy_process_group()

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            distributed.barrier()

    def first(self, work: Callable[[], object]) -> None:
        """Rank 0 does `work` while the others wait; an InputError of it is raised on every rank."""
        refusal = [None]
        if self.rank == 0:
            try:
                work()
            except InputError as error:
                refusal = [str(error)]
        if self.size > 1:
            distributed.broadcast_object_list(refusal, src=0)
        if refusal[0] is not None:
            raise InputError(refusal[0])
