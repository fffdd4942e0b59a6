"""What all dataclasses of flags are written with."""

from dataclasses import MISSING, Field, field

from .errors import InputError


def flag(default, help: str):
    """A dataclass field with its help text; lists get a fresh copy per instance."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def default_of(one: Field):
    """The value of a dataclass field that nobody set."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def refuse_below(config, lowest: float, *names: str) -> None:
    """InputError for a flag of `config` that is set to a number below `lowest`, or to none at all (nan)."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= lowest:
            raise InputError(f"--{name} {value}: at least {lowest} is wanted.")


def refuse_unfit_passages(config) -> None:
    """InputError for --max_passage_tokens or --passage_images that is too low, or acts on nothing since there is no --knowledge_base."""
    refuse_below(config, 1, "max_passage_tokens")
    refuse_below(config, 0, "passage_images")
    for name in ("max_passage_tokens", "passage_images"):
        if getattr(config, name) and not config.knowledge_base:
            raise InputError(f"--{name} acts on passages, and without --knowledge_base there are none: leave it out.")
