"""What made a run: `manifest.json` in its folder, and `kivqa diff`, which says in what two runs differ.

A manifest names contents, not only places: the model's, data's and knowledge base's SHA-256, so that two runs with the
same manifest saw the same bytes wherever those lay.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from .data.aside import write_json
from .data.cache import content_hash
from .errors import InputError

PACKAGES = (
    "open-r1-kivqa",
    "torch",
    "transformers",
    "trl",
    "deepspeed",
    "accelerate",
    "peft",
    "datasets",
    "vllm",
    "flash-attn",
)
# What decides how a checkpoint acts. Trainer state and README.md don't.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "pytorch_model*.bin",
)

# Not compared: when and where a run lies, and the flags whose files are compared by content instead.
PLACES = ("date", "flags.output_dir", "flags.logging_dir", "flags.run_name", "flags.data_file_paths")
PLACES += ("flags.eval_data_file_paths", "flags.model_name_or_path", "flags.knowledge_base", "flags.task_type")


def write_manifest(
    folder: str | os.PathLike,
    *,
    entry: str,
    flags: dict,
    model: str | None,
    data_files: list[str],
    image_folders: list[str],
    knowledge_base: str | None = None,
    template=None,
) -> Path:
    """Writes `folder`/manifest.json and returns its path. Call it on the main process only.

    Args:
        entry: name of the program, as `grpo_jsonl`.
        flags: every flag by name; values that json lacks are written as text, tokens and keys are left out.
        model: folder of the checkpoint, or its hub name once it has been downloaded; None for one that only a server knows.
        data_files: jsonl files in the order given; evaluation's own files come last.
        image_folders: written down as they are; images are not hashed.
        knowledge_base: file of articles, or None.
        template: the `Template` that prompts are built with (any dataclass), or None.

    Raises:
        InputError: a file is missing, or `model` is neither a folder nor a downloaded hub model.
    """
    manifest = {
        "entry": entry,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "flags": {name: value for name, value in flags.items() if not name.endswith(("_token", "_key"))},
        "model": model and model_hashes(model),
        "data": [{"path": str(path), "sha256": file_hash(path)} for path in data_files],
        "image_folders": [str(path) for path in image_folders],
        "knowledge_base": knowledge_base and {"path": str(knowledge_base), "sha256": file_hash(knowledge_base)},
        "template": template and dataclasses.asdict(template),
        "versions": {"python": platform.python_version(), **package_versions()},
        "git": git_state(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "devices": device_names(),
    }
    path = Path(folder) / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, manifest, default=str)
    return path


def refuse_unusable_folder(folder: str | os.PathLike) -> None:
    """InputError for an --output_dir that cannot be made or written to. Makes nothing."""
    place = Path(folder).absolute()
    there = next(path for path in (place, *place.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        raise InputError(f"--output_dir {folder}: {there} is a file; give the path of a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--output_dir {folder}: {there} cannot be written to; give another folder.")


# ------------------------------------------------------------------------------------------------ what is written down


def file_hash(path: str | os.PathLike) -> str:
    """SHA-256 of a file's content, in hexadecimal; remembered for large files.

    Raises:
        InputError: there is no such file.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path} is no file, so it cannot be written into the run's manifest.")
    return content_hash(str(path))


def model_hashes(model: str) -> dict:
    """`{"path", "files": {name: sha256}}` of a checkpoint's config, weights and processor.

    Raises:
        InputError: `model` is neither a folder with a config.json nor a hub model in the local cache.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(model, local_files_only=True, allow_patterns=list(MODEL_FILES)))
        except (HFValidationError, LocalEntryNotFoundError) as error:
            raise InputError(f"Model {model!r} is neither a folder nor a hub model in the local cache.") from error
    if not (folder / "config.json").is_file():
        raise InputError(f"Model folder {folder} has no config.json: give the folder of a saved checkpoint.")
    names = sorted(path.name for pattern in MODEL_FILES for path in folder.glob(pattern))
    return {"path": str(model), "files": {name: file_hash(folder / name) for name in names}}


def package_versions() -> dict[str, str]:
    """Version of each of PACKAGES that is installed."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not there
    return installed


def git_state() -> dict | None:
    """`{"commit", "modified"}` of the checkout that this package runs from; None if it runs from no checkout or git is missing."""
    here = Path(__file__)

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # a virtual environment inside some checkout is not that checkout
        return {
            "commit": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None


def device_names() -> list[str]:
    """Names of this machine's GPUs, or of its CPU where it has none."""
    import torch  # here, since `kivqa diff` needs none of it

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if cpuinfo.is_file()
        else []
    )
    return [names[0] if names else platform.machine()]


# ---------------------------------------------------------------------------------------------------------- kivqa diff


def read_manifest(run: str | os.PathLike) -> dict:
    """The manifest of a run's folder (or the manifest.json itself).

    Raises:
        InputError: there is none, or it is no json object.
    """
    path = Path(run)
    path = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: give the folder of a run that this package started.") from None
    except ValueError as error:
        raise InputError(f"{path} is not json ({error}): give the folder of a run.") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path} holds no json object: give the folder of a run.")
    return manifest


def differences(one: dict, two: dict) -> list[tuple[str, object, object]]:
    """What differs between two manifests, as (dotted name, value in one, value in two); a missing value is "-".

    Time and place don't count: PLACES, and the `path` of what is compared by its hash.
    """
    left, right = _flat(one), _flat(two)
    names = [*left, *(name for name in right if name not in left)]
    skipped = {name for name in names if name in PLACES or name.endswith(".path")}
    pairs = ((name, left.get(name, "-"), right.get(name, "-")) for name in names if name not in skipped)
    return [pair for pair in pairs if pair[1] != pair[2]]


def _flat(value, name: str = "") -> dict[str, object]:
    """{"a": {"b": 1}, "c": [{"d": 2}]} -> {"a.b": 1, "c.0.d": 2}. Lists of plain values stay whole."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    flat = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{name}.{key}" if name else str(key)))
    return flat


def diff_main(argv: list[str]) -> int:
    """`kivqa diff RUN RUN`: prints what differs; exit code 0 if nothing does, 1 if something does."""
    parser = argparse.ArgumentParser(
        prog="kivqa diff", description="Say in what two runs differ: flags, data, model, versions."
    )
    parser.add_argument("runs", nargs=2, metavar="RUN", help="folder of a run, or its manifest.json")
    one, two = (read_manifest(run) for run in parser.parse_args(argv).runs)
    found = differences(one, two)
    width = max((len(name) for name, _, _ in found), default=0)
    for name, left, right in found:
        print(f"{name:{width}}  {json.dumps(left)}  ->  {json.dumps(right)}")
    if not found:
        print("the same flags, model, data, knowledge base, template, versions and devices", file=sys.stderr)
    return 1 if found else 0
