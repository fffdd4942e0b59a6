"""The one error of this package that is meant for people, and what a full disk is."""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError: the disk, or what a user may fill of it, is full


class InputError(ValueError):
    """Something a user gave cannot be used.

    Its message is one sentence or a few: what was given, what was wanted, what to do. Entry points print it without a traceback and end with exit code 2, before a model
    is loaded but for what shows only in training, such as a fault in a reward of one's own.
    """
