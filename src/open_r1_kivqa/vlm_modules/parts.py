"""Which parts of a model train: freezing, LoRA that keeps off frozen parts, and a table of what is trained.

Frozen parts are a set of names out of PARTS ("vision", "projector", "language"); `frozen_parts(model_args)` reads it off the flags. The order of use, for every trainer: `freeze_parts` on the model,
`lora_config` for the trainer, and `assert_lora_respects` on the model that the trainer made of both.
"""

import re

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from trl import get_peft_config

from ..errors import InputError
from .base import PARTS, VLMModule


def frozen_parts(model_args) -> set[str]:
    """The parts that --freeze_vision_modules, --freeze_projector and --freeze_language_model name."""
    flags = (model_args.freeze_vision_modules, model_args.freeze_projector, model_args.freeze_language_model)
    return {part for part, frozen in zip(PARTS, flags, strict=True) if frozen}


def freeze_parts(
    model, module: VLMModule, *, vision: bool = False, projector: bool = False, language: bool = False
) -> None:
    """Sets requires_grad to False on every parameter of the parts named. Other parameters stay as they are."""
    frozen = {part for part, freeze in zip(PARTS, (vision, projector, language), strict=True) if freeze}
    for name, parameter in model.named_parameters():
        if module.parameter_part(name) in frozen:
            parameter.requires_grad_(False)


def lora_config(model, module: VLMModule, model_args) -> LoraConfig | None:
    """PEFT's config from TRL's flags; None without --use_peft. Frozen parts carry no adapter, whatever --lora_target_modules names; without that flag every linear layer of the other parts does.

    Raises InputError where no layer would carry an adapter, and for the output head, whose adapter would never be trained (TRL multiplies by the head's weight directly).
    """
    try:
        config = get_peft_config(model_args)
    except ValueError as error:
        raise InputError(f"LoRA's flags cannot be used: {error}") from error
    if config is None:
        return None
    frozen = frozen_parts(model_args)
    if frozen:
        # A regex, since PEFT matches a list against the ends of names only: "vision_tower" in a list excludes nothing.
        config.exclude_modules = frozen_pattern(module, frozen)
    targets = config.target_modules
    if isinstance(targets, str) and re.fullmatch(r"\w+", targets):
        config.target_modules = {targets}  # TRL unpacks a list of one, and PEFT would take the name for a regex
    if targets is None and config.target_parameters is None or targets == "all-linear":
        config.target_modules = "all-linear"
        return config
    try:
        names = [name for name, _ in model.named_modules() if check_target_module_exists(config, name)]
    except re.error as error:
        raise InputError(f"--lora_target_modules {targets} is no regular expression ({error}).") from error
    if "lm_head" in names:
        raise InputError(
            "--lora_target_modules reaches lm_head, whose adapter would never be trained: leave lm_head out."
        )
    if not names and config.target_parameters is None:
        raise InputError(
            f"--lora_target_modules {targets} matches no layer of {type(model).__name__} outside the frozen parts ({', '.join(sorted(frozen)) or 'none'}): "
            "name others, or leave the flag out to take every linear layer."
        )
    return config


def frozen_pattern(module: VLMModule, frozen: set[str]) -> str:
    """Regex that fullmatches the names of all submodules of the frozen parts, and none of the others."""
    kept = [prefix for part in PARTS if part not in frozen for prefix in getattr(module, part)]
    alternatives = []
    for part in sorted(frozen):
        for prefix in getattr(module, part):
            inside = [other[len(prefix) :] for other in kept if other.startswith(f"{prefix}.")]
            guard = "".join(rf"(?!{re.escape(rest)}(\.|$))" for rest in inside)
            alternatives.append(re.escape(prefix) + guard + r"(\..*)?")
    return rf"(.*\.)?({'|'.join(alternatives)})"


def assert_lora_respects(model, module: VLMModule, frozen: set[str]) -> None:
    """Raises InputError if any parameter that trains, an adapter's or another, sits in a frozen part of the model as the trainer wrapped it, or if none trains at all."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise InputError(
            "No parameter of the model would be trained: unfreeze a part of it, or let LoRA reach one (--lora_target_modules)."
        )
    for name in trainable:
        if module.parameter_part(name) in frozen:
            raise InputError(
                f"Parameter {name} would be trained although its part ({module.parameter_part(name)}) is frozen: leave it out of --lora_modules_to_save and --lora_target_parameters."
            )


def parameter_report(model, module: VLMModule) -> str:
    """A table of trainable and total parameters for each part, counted whole under ZeRO-3 too. Adapters count in the part they sit in."""
    counts = {part: [0, 0] for part in PARTS}
    for name, parameter in model.named_parameters():
        number = getattr(parameter, "ds_numel", parameter.numel())
        row = counts[module.parameter_part(name)]
        row[0] += number if parameter.requires_grad else 0
        row[1] += number
    counts["all"] = [sum(row[i] for row in counts.values()) for i in (0, 1)]
    lines = [f"{'part':<12}{'trainable':>16}{'total':>16}"]
    lines += [f"{part:<12}{trainable:>16,}{total:>16,}" for part, (trainable, total) in counts.items()]
    return "\n".join(lines)
