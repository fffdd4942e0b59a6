"""Checkpoints of encoders: their folder, the fingerprint of what their vectors depend on, loading without any code of their own and without random weights."""

import hashlib
import json
import os
from pathlib import Path

from ..data.cache import content_hash
from ..errors import InputError

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # what is fetched from the hub
IMAGE_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
TEXT_FILES = (
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
)


def checkpoint_folder(name_or_path: str) -> Path:
    """The folder of a checkpoint: itself, or where the hub's files of that name are kept, fetched first if need be.

    Raises:
        InputError: neither a folder with config.json nor a name on the hub, weights that are not safetensors, or a checkpoint that needs code of its own.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(name_or_path, allow_patterns=list(FILES)))
        except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError) as error:
            raise InputError(
                f"Encoder {name_or_path!r} is neither a folder nor a model that could be fetched from the hub; give the folder of a checkpoint. ({_first_line(error)})"
            ) from error
    if not (folder / "config.json").is_file():
        raise InputError(f"Encoder {name_or_path}: the folder has no config.json; give the folder of a checkpoint.")
    refuse_own_code(name_or_path, read_json(folder / "config.json"))
    if not _weights(folder):
        raise InputError(
            f"Encoder {name_or_path} has no weights in model.safetensors; other weights are pickle files, which can run code when loaded: save it again with save_pretrained."
        )
    return folder


def refuse_own_code(name: str, config: dict) -> None:
    """InputError for a checkpoint whose model is no class of transformers. Its `model_type` may be one all the same (EVA-CLIP-8B says "clip"), and would load wrong weights."""
    if "auto_map" not in config:
        return
    import transformers

    architectures = config.get("architectures") or ["?"]
    if not hasattr(transformers, architectures[0]):
        raise InputError(
            f"Encoder {name} needs code of its own ({architectures[0]}, trust_remote_code), which is never run here; "
            "compute its vectors where you trust that code, and import them with --features and --ids."
        )


def fingerprint(folder: Path, patterns: tuple[str, ...]) -> str:
    """sha256 over names and contents of the files that match and of the weights that transformers loads; large files' hashes are remembered."""
    names = {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern)}
    digest = hashlib.sha256()
    for name in sorted(names | _weights(folder)):
        digest.update(f"{name}\n{content_hash(str(folder / name))}\n".encode())
    return digest.hexdigest()


def load_model(name: str, folder: Path, kind: type, dtype: str | None, device: str):
    """(model in evaluation mode on `device`, names of the parameters that the checkpoint lacks).

    Args:
        kind: class with `from_pretrained`.
        dtype: "float32", "float16", "bfloat16"; None: float32 on a CPU, else as saved.
    """
    import torch
    from safetensors import SafetensorError

    if dtype is None:
        dtype = "float32" if torch.device(device).type == "cpu" else "auto"
    try:
        model, info = kind.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except SafetensorError as error:
        raise InputError(
            f"The weights of encoder {name} are damaged ({_first_line(error)}): download or save the checkpoint again."
        ) from error
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise InputError(f"Encoder {name} cannot be loaded: {_first_line(error)}") from error
    return model.to(device).eval(), sorted(info["missing_keys"])


def refuse_missing(name: str, missing: list[str]) -> None:
    """InputError if weights are missing: they would be drawn at random."""
    if missing:
        raise InputError(
            f"Encoder {name} lacks the weights of {len(missing)} parameters, for example {missing[0]}: download the checkpoint again or give a complete one."
        )


def choose_device(device: str | None) -> str:
    """The device as torch names it; None: this process's GPU if there is one, else the CPU. InputError for one that is not there."""
    import torch

    if device is None:
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device} cannot be used here ({_first_line(error)}); give cpu or cuda:0.") from None
    return device


def read_json(path: Path) -> dict:
    """A json object; InputError if it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); download or save the checkpoint again.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object; download or save the checkpoint again.")
    return value


def _weights(folder: Path) -> set[str]:
    """Names of the weight files; the same model for another library may lie beside them."""
    if (folder / "model.safetensors").is_file():
        return {"model.safetensors"}
    index = folder / "model.safetensors.index.json"
    return {index.name, *read_json(index)["weight_map"].values()} if index.is_file() else set()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
