"""Locks on files: what one run is writing, another one leaves alone. A lock ends with its process, however that ends."""

import contextlib
import errno
import fcntl
import os
from typing import IO

from ..errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems of clusters without locks


def take(file: IO, path: str | os.PathLike) -> bool:
    """Locks an open file until it is closed. False if another run holds it, or if it has lost its name, which a run that came to its end meanwhile has renamed or removed.

    True where the file system has no locks: nothing says then that another run writes it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


class Lock:
    """A lock on a file of its own, for a folder that a run writes into. Held until `release`, or as long as this object lives.

    Args:
        path: of the file, in a folder that is there; made, and removed by `release`.
        what: what is being written, and how else to do it, for the message.

    Raises:
        InputError: another run holds it. OSError: the file cannot be made.
    """

    def __init__(self, path: str | os.PathLike, *, what: str, remedy: str):
        self._path = path
        self._file = open(path, "a")  # noqa: SIM115 - closed by `release`
        if not take(self._file, path):
            self._file.close()
            raise InputError(f"{what} is being written by another run; wait for it, or {remedy}.")

    def clear(self) -> None:
        """Removes all other files of its folder."""
        folder, name = os.path.split(os.path.abspath(self._path))
        for other in set(os.listdir(folder)) - {name}:
            os.remove(os.path.join(folder, other))

    def remove_folder(self) -> None:
        """`clear`, `release`, and the empty folder goes too; what another run puts there from then on stays."""
        self.clear()
        self.release()
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(os.path.abspath(self._path)))

    def release(self) -> None:
        """Removes the file and ends the lock, for processes forked meanwhile too."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path)
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
