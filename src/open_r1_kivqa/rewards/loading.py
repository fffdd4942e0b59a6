"""From the names in `--reward_funcs` to the functions that TRL calls."""

import functools
import hashlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.accuracy import accuracy_reward, answer_scores
from open_r1_kivqa.rewards.boxes import box_format_reward
from open_r1_kivqa.rewards.extraction import EXTRACTIONS
from open_r1_kivqa.rewards.format import format_reward
from open_r1_kivqa.rewards.hard_format import hard_format_reward
from open_r1_kivqa.rewards.length import length_options, length_reward
from open_r1_kivqa.rewards.repetition import repetition_reward

if TYPE_CHECKING:
    from open_r1_kivqa.rewards.arguments import RewardArguments
    from open_r1_kivqa.rewards.judge import Judge

# What TRL and the rollout pass to every reward, by keyword.
KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
KEYWORDS += ("sample", "sample_id", "solution", "image_path", "accu_reward_method", "passages", "level", "box_scale")

REWARDS: dict[str, Callable[..., list[float | None]]] = {
    "accuracy": accuracy_reward,
    "format": format_reward,
    "format_rec": box_format_reward,
    "hard_format": hard_format_reward,
    "length": length_reward,
    "repetition": repetition_reward,
}
ASKING = (
    "accuracy",
    "length",
    "hard_format",
)  # read the answers' scores, and so may ask a judge; the last one named logs what it did
CUSTOMISED = {"rec": {"format": "format_rec"}}  # VLM-R1's --is_reward_customized_from_vlm_module, by --task_type


def customised(specs: list[str], task: str) -> list[str]:
    """The rewards' names with those that the task has a form of its own for replaced by it; InputError for a task that has none."""
    if task not in CUSTOMISED:
        raise InputError(
            f"--is_reward_customized_from_vlm_module has nothing to act on with --task_type {task}: only {', '.join(CUSTOMISED)} has rewards of its own. Leave the flag out, and name the reward "
            "in --reward_funcs or --reward_method."
        )
    return [CUSTOMISED[task].get(spec, spec) for spec in specs]


def load_reward_functions(
    specs: list[str],
    answer_extraction: str = "strict",
    *,
    settings: "RewardArguments | None" = None,
    judge: "Judge | None" = None,
) -> list[Callable[..., list[float | None]]]:
    """The reward functions that `specs` name, in that order: names of `REWARDS`, or `path/to/file.py:function` for one's own.

    Each has a `__name__` of its own, under which TRL logs it (`rewards/<name>/mean`). Raises InputError if a spec cannot be loaded, two share a name, or `answer_extraction` is
    not one of `EXTRACTIONS`. One's own file is executed.

    Args:
        settings: the flags of `length`, `hard_format` and `repetition`; None for their defaults. judge: grades rows of the method `llm`.
    """
    if answer_extraction not in EXTRACTIONS:
        raise InputError(f"answer_extraction is {answer_extraction!r}; choose one of {', '.join(EXTRACTIONS)}.")
    options = _options(answer_extraction, settings, judge)
    asking = [spec for spec in specs if spec in ASKING]
    functions = []
    for spec in specs:
        if spec in REWARDS:
            function = _named(spec, options.get(spec, {}), logs_judge=asking[-1:] == [spec])
        elif ".py:" in spec:
            function = _load_own(spec)
        else:
            raise InputError(
                f"Unknown reward {spec!r}; known are {', '.join(REWARDS)}, and your own as path/to/file.py:function."
            )
        if function.__name__ in [known.__name__ for known in functions]:
            raise InputError(
                f"Two rewards are called {function.__name__!r}, so their logs would mix; rename one or give it once."
            )
        functions.append(function)
    return functions


def _options(
    answer_extraction: str, settings: "RewardArguments | None", judge: "Judge | None"
) -> dict[str, dict[str, Any]]:
    """What is set of each reward."""
    scoring = {"answer_extraction": answer_extraction, "judge": judge}
    scores = functools.partial(answer_scores, **scoring)
    options = {"accuracy": scoring, "length": {"correct": scores}, "hard_format": {"correct": scores}}
    if settings is not None:
        options["hard_format"]["threshold"] = settings.right_threshold
        options["length"] |= length_options(settings)
        options["repetition"] = {"ngram": settings.repetition_ngram}
    return options


def _named(name: str, options: dict[str, Any], logs_judge: bool) -> Callable[..., list[float | None]]:
    """The reward of that name with options set. A plain function, since TRL logs a partial under the inner function's name."""

    @functools.wraps(REWARDS[name])
    def reward(prompts, completions, *, log_metric=None, **kwargs):
        if logs_judge:
            kwargs["log_judge"] = log_metric
        return REWARDS[name](prompts, completions, **options, **kwargs)

    reward.__name__ = name
    return reward


def _load_own(spec: str) -> Callable[..., list[float | None]]:
    file, _, name = spec.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InputError(
            f"Reward {spec!r}: there is no file {path}; give an existing file as path/to/file.py:function."
        )
    module_name = f"kivqa_reward_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_name] = module
        try:
            module_spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise InputError(
                f"Reward {spec!r}: {path}{line} could not be loaded ({type(error).__name__}: {error}); run it with python to see where."
            ) from error
    module = sys.modules[module_name]
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module_name
        ]
        raise InputError(f"Reward {spec!r}: {path} has no {name!r}; it defines {', '.join(own) or 'no function'}.")
    function = getattr(module, name)
    if not callable(function):
        raise InputError(
            f"Reward {spec!r}: {name!r} in {path} is {type(function).__name__}, not a function; name a function f(prompts, completions, **kwargs)."
        )
    if not hasattr(function, "__name__"):
        raise InputError(
            f"Reward {spec!r}: {name!r} has no __name__, under which its values are logged; define it with def."
        )
    try:
        inspect.signature(function).bind(**dict.fromkeys(KEYWORDS))
    except TypeError as error:
        raise InputError(
            f"Reward {spec!r} cannot be called ({error}); write it as def {name}(prompts, completions, **kwargs)."
        ) from error
    return _checked(function, spec)


def _checked(function: Callable, spec: str) -> Callable:
    """One's own function; whatever goes wrong in it while training is an InputError that says where."""

    def failed(error: Exception) -> InputError:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return InputError(
            f"Reward {spec!r} failed with {type(error).__name__}: {error} ({place.filename}, line {place.lineno}); it must take any completion."
        )

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def reward(prompts, completions, **kwargs):
            try:
                values = await function(prompts=prompts, completions=completions, **kwargs)
            except Exception as error:
                raise failed(error) from error
            return _checked_values(values, len(completions), spec)

    else:

        @functools.wraps(function)
        def reward(prompts, completions, **kwargs):
            try:
                values = function(prompts=prompts, completions=completions, **kwargs)
            except Exception as error:
                raise failed(error) from error
            return _checked_values(values, len(completions), spec)

    return reward


def _checked_values(values, number: int, spec: str) -> list[float | None]:
    """The values as floats and None; also of an array or tensor."""
    values = values.tolist() if hasattr(values, "tolist") else values
    wanted = f"a list of {number} numbers or None, one for each completion"
    if not isinstance(values, (list, tuple)):
        raise InputError(f"Reward {spec!r} returned {type(values).__name__}; it must return {wanted}.")
    values = [value.item() if hasattr(value, "item") else value for value in values]
    if len(values) != number:
        raise InputError(f"Reward {spec!r} returned {len(values)} values; it must return {wanted}.")
    for value in values:
        if value is not None and not (isinstance(value, numbers.Real) and math.isfinite(value)):
            raise InputError(f"Reward {spec!r} returned {value!r} for a completion; it must return {wanted}.")
    return [None if value is None else float(value) for value in values]
