"""The demo: a tiny Qwen2.5-VL before and after reinforcement learning on the embedded questions.

Evaluates the checkpoint that comes with the package, builds the graph of the training questions, trains with
configs/demo.yaml through the same entry as any real run, evaluates what came out, and prints both side by side. Each step is a process of its own, as torchrun would start it;
the first one that fails ends the demo. `outputs/demo/summary.json` is written last:

    {"splits": {split: {"before": {"accuracy", "no_image", "wrong_image", "pick", "copy", "format"}, "after": {...}}},
     "zero_advantage_share": share of groups whose completions all got the same reward, "wall_s": seconds}
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from ..data.aside import write_json
from ..data.locks import Lock
from ..errors import InputError
from . import CHECKPOINT, EVAL, IMAGES, KNOWLEDGE, TRAIN

CONFIG = Path(__file__).parents[3] / "configs" / "demo.yaml"
MARKER = ".kivqa-demo"  # lies in a folder that an earlier demo filled, which a new one may clear
STEPS = ("before", "training", "after")
GRAPH = "graph.npz"
SETTINGS = ("normal", "no_image", "wrong_image")
MEASURES = ("accuracy", "no_image", "wrong_image", "pick", "copy", "format")


def main(argv: list[str] | None = None) -> int:
    """Runs the demo; `argv` as for the command line. Gives the exit code."""
    parser = argparse.ArgumentParser(prog="kivqa demo", description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=42, help="seeds training and what evaluation draws")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("outputs/demo"), help="folder of everything the demo writes"
    )
    parser.add_argument("--max_steps", type=int, help="optimizer steps; default: as configs/demo.yaml says")
    args = parser.parse_args(argv)
    if not CONFIG.is_file():
        raise InputError(f"{CONFIG} is missing: the demo runs from a checkout of this project.")

    started = time.monotonic()
    folder = args.output_dir
    lock = clear(folder)
    evaluate(CHECKPOINT, folder / "before", args.seed)
    make_graph(folder / GRAPH)
    train(folder / "training", folder / GRAPH, args.seed, args.max_steps)
    evaluate(folder / "training", folder / "after", args.seed)
    summary = summarise(folder, time.monotonic() - started)
    write_json(folder / "summary.json", summary)
    lock.release()
    show(summary, folder)
    return 0


def clear(folder: Path) -> Lock:
    """Makes the folder, without what an earlier demo left in it. Returns what keeps other demos out of it.

    Raises:
        InputError: it holds something else, or another demo is writing it.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).exists())):
        raise InputError(f"--output_dir {folder} holds something that no demo wrote: give a new or an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    lock = Lock(folder / ".lock", what=f"--output_dir {folder}", remedy="give another --output_dir")
    for name in ("summary.json", GRAPH):
        (folder / name).unlink(missing_ok=True)
    for step in STEPS:
        if (folder / step).exists():
            shutil.rmtree(folder / step)
    return lock


def evaluate(model: Path, folder: Path, seed: int) -> None:
    """Scores of `model` on every split of the embedded questions, prompted as in training, into `folder`/summary.json."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    shown = {name: config[name] for name in ("task_type", "context_level", "num_passages")}
    length = config["max_completion_length"]
    settings = ",".join(SETTINGS)
    run_entry(
        "evaluate_jsonl",
        model=model,
        data=EVAL,
        output_dir=folder,
        seed=seed,
        settings=settings,
        max_new_tokens=length,
        **shown,
    )


def make_graph(path: Path) -> None:
    """Writes the graph of the embedded training questions, which the curriculum propagates difficulty over."""
    run("open_r1_kivqa.cli", "graph", data_file_paths=TRAIN, knowledge_base=KNOWLEDGE, output=path)


def train(folder: Path, graph: Path, seed: int, max_steps: int | None) -> None:
    """Reinforcement learning from the embedded checkpoint, into `folder`."""
    more = {} if max_steps is None else {"max_steps": max_steps}
    more["curriculum_graph"] = graph
    run_entry("grpo_jsonl", model=CHECKPOINT, data=TRAIN, config=CONFIG, output_dir=folder, seed=seed, **more)


def run_entry(entry: str, *, model: Path, data: Path, **flags) -> None:
    """Starts one of the package's entries on embedded data and waits for it."""
    flags |= {
        "model_name_or_path": model,
        "data_file_paths": data,
        "image_folders": IMAGES,
        "knowledge_base": KNOWLEDGE,
    }
    run(f"open_r1_kivqa.{entry}", **flags)


def run(module: str, *words: str, **flags) -> None:
    """Starts a module of the package in a process of its own and waits for it.

    Raises:
        SystemExit: it failed; with its exit code.
    """
    command = [sys.executable, "-m", module, *words]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    defaults = {
        "OMP_NUM_THREADS": "1",  # on matrices this small further threads mostly wait for each other
        "PYTHONWARNINGS": "ignore::FutureWarning",  # what torch and transformers say to each other
    }
    environment = {**defaults, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment)
    if done.returncode:
        print(
            f"kivqa demo: {module} failed with exit code {done.returncode}; its own words stand above.", file=sys.stderr
        )
        raise SystemExit(done.returncode)


def summarise(folder: Path, wall_s: float) -> dict:
    """The summary in the shape that this file opens with, from what the three steps wrote."""
    scores = {step: json.loads((folder / step / "summary.json").read_text())["splits"] for step in ("before", "after")}
    (state,) = (folder / "training").glob("checkpoint-*/trainer_state.json")  # the only checkpoint is the last step's
    log = json.loads(state.read_text())["log_history"]
    shares = [entry["frac_reward_zero_std"] for entry in log if "frac_reward_zero_std" in entry]
    return {
        "splits": {
            split: {step: {name: scores[step][split][name] for name in MEASURES} for step in scores}
            for split in scores["before"]
        },
        "zero_advantage_share": sum(shares) / len(shares),
        "wall_s": wall_s,
    }


def show(summary: dict, folder: Path) -> None:
    """The summary as a table in percent, each cell before and after."""
    table = Table(title="Before -> after reinforcement learning, in %")
    table.add_column("split")
    for name in MEASURES:
        table.add_column(name.replace("_", " "), justify="right")
    for split, steps in summary["splits"].items():
        cells = (" -> ".join(percent(steps[step][name]) for step in ("before", "after")) for name in MEASURES)
        table.add_row(split.replace("_", " "), *cells)
    console = Console()
    console.width = max(console.width, 110)  # rather broken lines than cells cut in two
    console.print(table)
    console.print(
        "accuracy: the answer is right. no image, wrong image: the same questions without a picture, or with another country's.\n"
        "pick: the quoted sentence comes from the right passage. copy: the answer is what was quoted. format: reasoning and answer tags.\n"
        f"{summary['zero_advantage_share']:.0%} of the groups taught nothing: all their completions got the same reward.\n"
        f"{summary['wall_s']:.0f} s in all. Run folder: {folder.resolve()}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"kivqa demo: {error}", file=sys.stderr)
        sys.exit(2)
