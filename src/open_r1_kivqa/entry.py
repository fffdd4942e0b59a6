"""What the torchrun entries share: parsing flags, one sentence for bad input, and DeepSpeed on a machine without GPU."""

import atexit
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from .errors import InputError

BAD_INPUT = 2  # exit code

# Flags of VLM-R1's scripts, or of the TRL and transformers it was written for, that are no more: what to do instead.
FORMER = {
    "dataset_name": "rows come from --data_file_paths: leave it out",
    "dataset_config": "rows come from --data_file_paths: leave it out",
    "dataset_train_split": "held-out rows come from --val_split_ratio or --eval_data_file_paths: leave it out",
    "dataset_test_split": "held-out rows come from --val_split_ratio or --eval_data_file_paths: leave it out",
    "image_root": "say --image_folders",
    "torch_dtype": "say --dtype",
    "warmup_ratio": "say --warmup_steps, where a number below 1 is a share of all steps",
    "max_prompt_length": "prompts are never cut, since a cut could fall among image tokens: a row whose prompt leaves no room for --max_completion_length is refused before training. Leave it out",
}


def run(main: Callable[[], None]) -> None:
    """Run an entry; bad input ends it with one message on stderr and exit code 2, without a traceback.

    A rank that is done ends without tearing the interpreter down: threads of libraries (gloo's, arrow's) now and then abort the process then, and torchrun would call a run failed that is complete,
    with the other nodes waiting for it. What was registered with atexit since the start, as wandb's, still runs.
    """
    done = False

    def leave() -> None:  # registered first, so called last
        if done:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit.register(leave)
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    done = True


def parse(dataclasses: Sequence[type], argv: Sequence[str] | None) -> tuple:
    """One instance of each dataclass, from the command line and the yaml that `--config` names.

    Raises:
        InputError: an unknown flag or a value that one of the dataclasses refuses.
    """
    return _parse(dataclasses, dataclasses, argv)[:-1]


def parse_some(dataclasses: Sequence[type], wanted: Sequence[type], argv: Sequence[str] | None) -> tuple:
    """Parse all flags of `dataclasses`, so that a misspelt one ends the run here, but make only the `wanted` instances.

    Returns them and, last, the namespace of all flags as argparse reads them.

    Building transformers' TrainingArguments starts the process group. The checks of the data come before it, on rank 0 alone, since a group that waits for a long check runs into its timeout.
    """
    return _parse(dataclasses, wanted, argv)


def _parse(dataclasses: Sequence[type], wanted: Sequence[type], argv: Sequence[str] | None) -> tuple:
    from argparse import ArgumentError

    import yaml
    from trl import TrlParser

    class Parser(TrlParser):
        def error(self, message):
            raise InputError(f"{message}{self.nearest(message)} --help lists all flags.")

        def nearest(self, message: str) -> str:
            unknown = re.search(r"unrecognized arguments: ([^\s=]+)", message)
            former = FORMER.get(unknown.group(1).lstrip("-").replace("-", "_")) if unknown else None
            if former:
                return f": {former}."
            near = get_close_matches(unknown.group(1), self._option_string_actions, n=1) if unknown else []
            return f": did you mean {near[0]}?" if near else "."

        def set_defaults_with_config(self, **config):
            """The yaml's values, read as the same words on the command line would be; argparse would leave all but texts unread."""
            actions = {action.dest: action for action in self._actions}
            for name, value in config.items():
                if name not in actions:
                    near = get_close_matches(name, actions, n=1)
                    hint = f": {FORMER[name]}." if name in FORMER else f"; did you mean {near[0]!r}?" if near else "."
                    raise InputError(f"--config: {name!r} is no flag{hint}")
                config[name] = self.read(actions[name], value)
            return super().set_defaults_with_config(**config)

        def read(self, action, value):
            several = action.nargs in ("+", "*")
            try:
                if isinstance(value, list) and several:
                    return self._get_values(action, [str(item) for item in value])
                if isinstance(value, (str, int, float)):  # truth values among them
                    if several:
                        return self._get_values(action, [str(value)])
                    value = self._get_value(action, str(value))
                    self._check_value(action, value)
                    return value
            except ArgumentError as error:
                raise InputError(f"--config: {error}.") from error
            if not takes(dataclasses, action.dest, type(value)):
                raise InputError(
                    f"--config: {action.dest} is {'empty' if value is None else repr(value)}, which this flag cannot be."
                )
            return value

        def parse_args_into_dataclasses(self, args=None, **kwargs):
            namespace = self.parse_args(args)
            found = vars(namespace)
            made = (kind(**{name: found[name] for name in init_fields(kind)}) for kind in wanted)
            return (*made, namespace)

    try:
        return Parser(dataclasses, allow_abbrev=False).parse_args_and_config(args=argv)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(
            f"--config {error.filename} does not exist, seen from {os.getcwd()}: give its path."
        ) from error
    except (ValueError, OSError, ImportError, yaml.YAMLError) as error:
        if "use_cpu" in str(error) and no_accelerator():
            raise InputError(
                "No GPU was found, and no other device that transformers trains on: add --use_cpu true to train on the CPU, or see why torch does not find it."
            ) from error
        # TRL's and transformers' own refusals, and a --config that can't be read
        raise InputError(" ".join(str(error).split())) from error


def no_accelerator() -> bool:
    import torch

    return not torch.accelerator.is_available()


def takes(dataclasses: Sequence[type], name: str, kind: type) -> bool:
    """Whether the field of that name may hold a list, a dict or None."""
    hints = (get_type_hints(one).get(name) for one in dataclasses)
    return any(kind in (hint, get_origin(hint), *map(outer, get_args(hint))) for hint in hints if hint is not None)


def outer(hint):
    return get_origin(hint) or hint


def init_fields(kind: type) -> list[str]:
    return [name for name, field in kind.__dataclass_fields__.items() if field.init]


def refuse_deepspeed_without_ranks(deepspeed: str | dict | None) -> None:
    """InputError where nothing has started this process as a rank; DeepSpeed would look for MPI."""
    if deepspeed and "RANK" not in os.environ:
        raise InputError(
            "--deepspeed needs torchrun: put torchrun --nproc_per_node 1 in place of python, or leave --deepspeed out."
        )


def start_deepspeed(deepspeed: str | dict | None) -> None:
    """Let DeepSpeed run on CPUs: it takes a missing GPU for a world of one rank unless its process group is started by hand."""
    if not deepspeed:
        return
    import torch

    if torch.cuda.is_available():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    keep_deepspeed_builds()
    import deepspeed as library

    library.init_distributed("gloo")


def keep_deepspeed_builds() -> None:
    """DeepSpeed compiles its CPU parts at first use, in a minute or more. Keep them in this Python environment, built by its own ninja: where another checkout or another ninja shares them, each
    switch compiles them anew."""
    if os.access(sys.prefix, os.W_OK):
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    own = str(Path(sys.executable).parent)
    if own not in os.environ["PATH"].split(os.pathsep)[:1]:
        os.environ["PATH"] = f"{own}{os.pathsep}{os.environ['PATH']}"
