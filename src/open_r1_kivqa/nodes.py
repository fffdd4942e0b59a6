"""Several machines: they must run the same, and each must notice when another one is gone. Without effect on one machine.

`compare_nodes(flags)` refuses what differs between the nodes before a model is loaded; node_ties.py has the other half. A node's number is torchrun's (GROUP_RANK); its local rank 0 speaks for
it, over the launch's own store.
"""

import hashlib
import json
import os
import secrets
import socket
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

from .data.cache import content_hash
from .data.jsonl import split_paths
from .data.sources import open_sources, pair_sources, read_rows
from .errors import InputError
from .manifest import MODEL_FILES, git_state, package_versions, refuse_unusable_folder

ARRIVAL = timedelta(minutes=15)  # for every node to import what it needs, from a slow disk in the worst case
LONGEST = timedelta(days=7)  # for what a node computes; the watch ends the wait if that node is lost
SHARED = 30.0  # seconds; NFS may show a new file that late
SHOWN = 12  # differences in one message

FOLDERS = ("image_folders", "eval_image_folders")
# Compared in their own way (the model, the output folder) or different by nature.
NOT_AS_TEXT = ("output_dir", "logging_dir", "run_name", "local_rank")


def several_nodes() -> bool:
    """Whether this process is one of a launch on more than one machine."""
    world = os.environ.get("WORLD_SIZE", "1")
    return os.environ.get("LOCAL_WORLD_SIZE", world) != world


def this_node() -> int:
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("GROUP_RANK", int(os.environ["RANK"]) // ranks))


def number_of_nodes() -> int:
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("GROUP_WORLD_SIZE", int(os.environ["WORLD_SIZE"]) // ranks))


def speaks() -> bool:
    """Whether this rank is the one that speaks for its node."""
    return os.environ["LOCAL_RANK"] == "0"


# --------------------------------------------------------------------------------------------- what the nodes tell each other


@cache
def launch_store():
    """The store of this launch: torchrun's, or one that rank 0 opens at MASTER_ADDR:MASTER_PORT, which the process group will share."""
    from torch.distributed import PrefixStore, rendezvous

    store, _, _ = next(rendezvous("env://", timeout=ARRIVAL))
    return PrefixStore(f"kivqa/nodes/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def exchange(name: str, work: Callable[[], dict]) -> list[dict]:
    """`work()`'s result of every node, on every rank; it runs once a node.

    Args:
        name: of what is exchanged; once per launch each.
        work: gives a dict of JSON values.
    """
    store = launch_store()
    if speaks():
        store.set(f"{name}/{this_node()}", zlib.compress(json.dumps(work()).encode()))
    keys = [f"{name}/{node}" for node in range(number_of_nodes())]
    store.wait(keys, LONGEST)
    found = [json.loads(zlib.decompress(store.get(key))) for key in keys]
    if store.add(f"{name}/read", 1) == int(os.environ["WORLD_SIZE"]):
        store.set(f"{name}/all", "")
    store.wait([f"{name}/all"], LONGEST)  # or one that ends because of what it read could be taken for the cause
    return found


@cache
def host_names() -> list[str]:
    """The nodes' host names, in their order. Waits until all nodes are there.

    Raises:
        InputError: one did not come.
    """
    from torch.distributed import DistStoreError

    store = launch_store()
    if speaks():
        store.set(f"host/{this_node()}", socket.gethostname())
    keys = [f"host/{node}" for node in range(number_of_nodes())]
    try:
        store.wait(keys, ARRIVAL)
    except DistStoreError:
        missing = [str(node) for node, key in enumerate(keys) if not store.check([key])]
        fail_everywhere(
            f"Node {', '.join(missing)} of 0 to {len(keys) - 1} was launched but has not come within {ARRIVAL.total_seconds() / 60:g} minutes: its own output says why."
        )
    return [store.get(key).decode() for key in keys]


def fail_everywhere(message: str) -> None:
    """InputError on the rank that speaks for its node; the others end without a word of their own."""
    if speaks():
        raise InputError(message)
    sys.exit(2)


def called(node: int) -> str:
    return f"node {node} ({host_names()[node]})"


# ------------------------------------------------------------------------------------------------------------- comparing


def compare_nodes(flags: Namespace) -> None:
    """Refuse a launch whose nodes would not run the same. Call it on every rank, before data is checked or a model loaded.

    Compared are the package's files, versions, flags (a file that a flag names counts by its content, wherever it lies), the model's files, the images that rows name unless the folder is one that the
    nodes share, and whether they share --output_dir.

    Raises:
        InputError: which node differs in which item, with all values; on the rank that speaks for its node. The others end with exit code 2.
    """
    if not several_nodes():
        return
    refuse_differences([found["items"] for found in exchange("items", lambda: {"items": what_runs(flags)})])
    folders = exchange("folders", lambda: {"folders": folder_marks(flags)})
    if any(found != folders[0] for found in folders):
        refuse_differences(exchange("images", lambda: {"images that the rows name": images_named(flags)}))
    refuse_output_of_one_node(flags.output_dir or "trainer_output")


def refuse_differences(nodes: list[dict[str, str | None]]) -> None:
    found = differences(nodes)
    if not found:
        return
    lines = [
        f"  {name}: " + "; ".join(f"{' and '.join(map(called, having))}: {value}" for value, having in values.items())
        for name, values in found.items()
    ]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"  … and {len(lines) - SHOWN} more"]
    fail_everywhere(
        "The nodes would not run the same:\n"
        + "\n".join(lines)
        + "\nGive every node the same command, code, environment and files, then start again on all of them."
    )


def differences(nodes: list[dict[str, str | None]]) -> dict[str, dict[str, list[int]]]:
    """{item: {value: nodes that have it}} of the items in which the nodes differ; a node without the item has "none".

    None says that a node cannot tell, and differs from nothing. A differing commit counts only beside differing files: it may lie outside the package.
    """
    found = {}
    for name in dict.fromkeys(name for items in nodes for name in items):
        values: dict[str, list[int]] = {}
        for node, items in enumerate(nodes):
            if (value := items.get(name, "none")) is not None:
                values.setdefault(value, []).append(node)
        if len(values) > 1:
            found[name] = values
    if not any(name.startswith("code ") for name in found):
        found.pop("git commit", None)
    return found


def what_runs(flags: Namespace) -> dict[str, str | None]:
    """What this node will run, item by item. Files count by their content."""
    package = Path(__file__).parent
    sources = (path for ending in ("py", "yaml") for path in package.rglob(f"*.{ending}"))
    items = {f"code {path.relative_to(package)}": file_mark(path) for path in sorted(sources)}
    state = git_state()
    items["git commit"] = state and state["commit"] + (" with changes" if state["modified"] else "")
    items["version of python"] = sys.version.split()[0]
    items |= {f"version of {name}": version for name, version in package_versions().items()}
    for name, value in vars(flags).items():
        if name not in NOT_AS_TEXT:
            secret = name.endswith(("_token", "_key")) and value is not None
            items[f"--{name}"] = mark(str(value).encode()) if secret else flag_mark(value)
    return items | model_marks(flags)


def flag_mark(value) -> str:
    """A flag's value, where parts of it (separated by ":") that are files or folders count as what they are, wherever they lie."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(flag_mark, value))
    return ":".join(
        f"{Path(part).name} {file_mark(part)}" if os.path.isfile(part) else "a folder" if os.path.isdir(part) else part
        for part in str(value).split(":")
    )


def mark(content: bytes) -> str:
    return f"sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def file_mark(path: str | os.PathLike) -> str:
    try:
        return f"sha256 {content_hash(str(path))[:12]}"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def model_marks(flags: Namespace) -> dict[str, str | None]:
    """The model's files: small ones by their content; weights, which are large, by their size and by the MiB at the begin, in the middle and at the end. A model of the hub by its commit, if it is there already."""
    name = flags.model_name_or_path
    if name is None or not os.path.isdir(name):
        return {"model's commit": name and hub_commit(name, flags.model_revision)}
    paths = sorted(path for pattern in MODEL_FILES for path in Path(name).glob(pattern))
    return {f"model's {path.name}": weights_mark(path) if path.suffix in (".safetensors", ".bin") else file_mark(path) for path in paths}  # fmt: skip


def hub_commit(name: str, revision: str | None) -> str | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:  # no name that the hub could have: whoever loads it says so
        return None
    return Path(found).parent.name if isinstance(found, str) else None


def weights_mark(path: Path) -> str:
    size, piece = path.stat().st_size, 2**20
    with open(path, "rb") as file:
        pieces = []
        for start in (0, size // 2, max(0, size - piece)):
            file.seek(start)
            pieces.append(file.read(piece))
    return f"{size:,} bytes, {mark(b''.join(pieces))}"


def folder_marks(flags: Namespace) -> list[str]:
    """File number and time of change of the image folders: equal on all nodes only if these see one shared folder."""
    folders = [folder for name in FOLDERS for folder in split_paths(getattr(flags, name) or "")]
    states = (os.stat(folder) for folder in folders if os.path.isdir(folder))
    return [f"{state.st_ino} {state.st_ctime_ns}" for state in states]


def images_named(flags: Namespace) -> str:
    """How many images the rows name, how many of them are missing, and a digest over their names and sizes; none is opened."""
    names: dict[str, str] = {}
    for files, folders in (
        (flags.data_file_paths, flags.image_folders),
        (flags.eval_data_file_paths, flags.eval_image_folders or flags.image_folders),
    ):
        if files:
            opened, _ = open_sources(pair_sources(split_paths(files), split_paths(folders or ""), []))
            for row in read_rows(opened):
                for path in row.images:
                    names.setdefault(path, os.path.relpath(path, row.source.image_folder))
    with ThreadPoolExecutor(16) as pool:  # a network folder answers slowly, but many at once
        sizes = list(pool.map(size_of, names))
    missing = [name for name, size in zip(names.values(), sizes, strict=True) if size is None]
    digest = mark("\n".join(f"{name} {size}" for name, size in sorted(zip(names.values(), sizes, strict=True), key=str)).encode())  # fmt: skip
    gone = f"{len(missing):,} missing, the first {missing[0]}" if missing else "all there"
    return f"{len(names):,}, {gone}, names and sizes {digest}"


def size_of(path: str) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_size
    return None


def refuse_output_of_one_node(output_dir: str) -> None:
    """InputError unless a file that node 0 writes into the folder shows on all nodes."""

    def write() -> dict:
        if this_node() != 0:
            return {}
        try:
            refuse_unusable_folder(output_dir)
            made = not os.path.isdir(output_dir)
            os.makedirs(output_dir, exist_ok=True)
            probe = f".nodes-{secrets.token_hex(8)}"
            Path(output_dir, probe).touch()
        except (InputError, OSError) as error:
            return {"problem": str(error)}
        return {"probe": probe, "made": made}

    written = exchange("probe", write)[0]
    if "problem" in written:
        fail_everywhere(f"{called(0)}: {written['problem']}")
    probe = Path(output_dir, written["probe"])

    def look() -> dict:
        end = time.monotonic() + SHARED
        while not probe.exists() and time.monotonic() < end:
            time.sleep(0.5)
        return {"seen": probe.exists()}

    seen = [found["seen"] for found in exchange("seen", look)]
    if this_node() == 0 and speaks():
        probe.unlink()
        if written["made"] and not all(seen):
            os.rmdir(output_dir)
    blind = [called(node) for node, sees in enumerate(seen) if not sees]
    if blind:
        fail_everywhere(
            f"--output_dir {output_dir} on {' and '.join(blind)} is not the folder that {called(0)} sees. Checkpoints have files of every rank, so give a folder that all nodes share, as NFS offers."
        )
