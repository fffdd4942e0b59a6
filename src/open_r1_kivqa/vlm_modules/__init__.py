"""Model families: `module_for(config)` gives the one that serves a checkpoint. Light to import: models load in `loading`."""

from ..errors import InputError
from .base import PARTS, VLMModule
from .glm import GLM4V
from .internvl import InternVL
from .qwen import Qwen2VL, Qwen3VL, Qwen25VL

MODULES: dict[str, VLMModule] = {
    model_type: module
    for module in (Qwen2VL(), Qwen25VL(), Qwen3VL(), InternVL(), GLM4V())
    for model_type in module.model_types
}

__all__ = ["MODULES", "PARTS", "VLMModule", "module_for"]


def module_for(config) -> VLMModule:
    """The family's module for a model config (anything with `model_type`). Raises InputError where none serves it."""
    model_type = getattr(config, "model_type", None)
    if model_type in MODULES:
        return MODULES[model_type]
    if model_type == "internvl_chat":
        raise InputError(
            "This InternVL checkpoint needs its own remote code (model_type 'internvl_chat'), which is never run here: use the same model's checkpoint whose name ends in -hf or -HF, "
            "for example OpenGVLab/InternVL3-1B-hf."
        )
    raise InputError(
        f"A checkpoint of model_type {model_type!r} is not a vision-language model that can be trained here: give one of {', '.join(sorted(MODULES))}, "
        "or add its family (docs/add_a_model_family.md)."
    )
