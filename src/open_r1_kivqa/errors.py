"""The one error of this package that is meant for people."""


class InputError(ValueError):
    """Something a user gave cannot be used.

    Its message is one sentence or a few: what was given, what was wanted, what to do. Entry points print it without a traceback and end with exit code 2, before a model
    is loaded but for what shows only in training, such as a fault in a reward of one's own.
    """
