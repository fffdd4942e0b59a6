"""What a sentence-transformers folder says about its model beside the weights: pooling, limit, prompts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from .checkpoints import read_json

POOLINGS = ("mean", "cls")
MODULES = ("Transformer", "Pooling", "Normalize")  # in this order
ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}  # and the names of their prompts


@dataclass(frozen=True)
class SentenceSettings:
    """How texts become vectors.

    Attributes:
        pooling: one of `POOLINGS`: the average over the words, or the first one.
        limit: tokens that are read; None: as many as the model can.
        lower_case: whether capitals are made small first.
        prompts: what is put before a text, by its role; "" for a text without a role.
    """

    pooling: str = "mean"
    limit: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)


def read_settings(name: str, folder: Path) -> SentenceSettings:
    """The settings in a folder; those of a plain average where it has no such files.

    Raises:
        InputError: modules or a pooling that are not known here.
    """
    sizes = _optional(folder / "sentence_bert_config.json")
    prompts = _optional(folder / "config_sentence_transformers.json")
    named = prompts.get("prompts") or {}
    own = named.get(prompts.get("default_prompt_name"), "")
    by_role = {
        role: next((named[prompt] for prompt in names if named.get(prompt)), own) for role, names in ROLES.items()
    }
    return SentenceSettings(
        pooling=_pooling(name, folder, prompted=bool(own) or any(by_role.values())),
        limit=sizes.get("max_seq_length"),
        lower_case=bool(sizes.get("do_lower_case")),
        prompts={"": own, **by_role},
    )


def _pooling(name: str, folder: Path, prompted: bool) -> str:
    if not (folder / "modules.json").is_file():
        return "mean"
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
    if [kind for kind in MODULES if kind in kinds] != list(kinds) or "Transformer" not in kinds:
        raise InputError(
            f"Encoder {name} is made of {', '.join(kinds)}; known are {', '.join(MODULES)}, in this order."
        )
    if "Pooling" not in kinds:
        return "mean"
    config = read_json(kinds["Pooling"] / "config.json")
    if prompted and config.get("include_prompt") is False:
        raise InputError(f"Encoder {name} leaves its prompt out of the average, which is not known here; give another.")
    if "pooling_mode" in config:
        modes = [config["pooling_mode"]]
    else:
        modes = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
        modes = [mode.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for mode in modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(
            f"Encoder {name} pools by {' and '.join(map(str, modes)) or 'nothing'}; known are {', '.join(POOLINGS)}."
        )
    return modes[0]


def _optional(path: Path) -> dict:
    return read_json(path) if path.is_file() else {}
