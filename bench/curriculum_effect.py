"""What the curriculum is worth on the embedded questions: seven ways to choose samples and contexts under the same budget of generated tokens.

    python bench/curriculum_effect.py --output_dir outputs/effect [--seeds 42 1 2] [--budget 30000] [--jobs 2]

The tiny checkpoint of the demo is trained as in configs/demo.yaml, at a constant learning rate, once for each arm and seed, until the completions made (discarded ones included) have so many tokens in all:
  uniform      every sample equally often, contexts as retrieved
  mixture      every sample equally often, each batch at a level drawn from the shares of levels that `levels` trained on
  levels       every sample equally often, contexts from easy to hard
  sampling     samples by their estimate from their own rollouts alone, contexts as retrieved
  propagation  the same, with the graph
  both         levels and propagation
  redraw       every sample equally often, batches filled with groups that teach (DAPO), contexts as retrieved
Each tenth of the budget the held-out questions (split unseen_question) are answered greedily with contexts as retrieved; the last time also with another country's picture.

A run that is done is kept (OUTPUT_DIR/ARM-SEED.json) and not made again, so the bench can be stopped and goes on. The last line is one JSON object, by arm, each figure a mean over seeds with its 95 % interval
(Student's t over the seeds' differences to `uniform`, which share their seed, for those that are differences):
  seeds                 whose runs are there
  accuracy              at the start and at each tenth of the budget; means alone
  last_accuracy         the last of them
  mean_accuracy         mean over the budget, the area under that curve
  mean_over_uniform     its difference to `uniform`
  tokens_to_uniform     share of the budget after which `uniform`'s last accuracy was reached (interpolated); null if it never was in one of the seeds
  tokens_to_nearly      the same for nine tenths of it
  tokens_to_uniform_by_seed, tokens_to_nearly_by_seed   of each seed
  zero_advantage        share of the generated groups that had no advantage
  zero_advantage_trained   of those trained on
  gain                  last accuracy minus that with another country's picture
  gain_over_uniform     its difference to `uniform`
  steps                 optimizer steps that the budget allowed; a mean alone
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ARMS = {
    "uniform": {"curriculum_levels": "", "curriculum_weighting": "uniform"},
    "levels": {"curriculum_weighting": "uniform"},
    "mixture": {"curriculum_weighting": "uniform"},  # after `levels`, whose shares it takes
    "sampling": {"curriculum_levels": "", "curriculum_graph": None},
    "propagation": {"curriculum_levels": ""},
    "both": {},
    "redraw": {"curriculum_levels": "", "curriculum_weighting": "uniform", "dynamic_sampling_rounds": 10},
}
TENTHS = 10
SPLIT = "unseen_question"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/curriculum_effect"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--budget", type=int, default=30_000, help="tokens of generated completions in each run")
    parser.add_argument("--eval_rows", type=int, default=150, help="held-out questions, of 301")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--run", nargs=2, metavar=("ARM", "SEED"), help="make this one run, in this process")
    parser.add_argument(
        "--plot", type=Path, help="write accuracy over tokens there (.svg or .png; needs matplotlib, the extra `plots`)"
    )
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    if arguments.run:
        arm, seed = arguments.run[0], int(arguments.run[1])
        from open_r1_kivqa.data.aside import write_json

        result = train(arm, seed, arguments.output_dir, arguments.budget, arguments.eval_rows)
        write_json(arguments.output_dir / f"{arm}-{seed}.json", result, indent=None)
        return
    make_graph(arguments.output_dir)
    make_runs(arguments)
    report = summarise(arguments.output_dir, arguments.arms, arguments.seeds)
    if arguments.plot:
        plot(report, arguments.budget, arguments.plot)
    print(json.dumps(report))


# ---------------------------------------------------------------------------------------------------------- the runs


def make_runs(arguments) -> None:
    """All runs that are not there yet, `jobs` at a time, seed by seed; a `mixture` waits for its `levels`."""
    waiting = [(arm, seed) for seed in arguments.seeds for arm in arguments.arms]
    waiting = [one for one in waiting if not result_path(arguments.output_dir, *one).is_file()]
    running: dict[tuple[str, int], subprocess.Popen] = {}
    while waiting or running:
        ready = [
            one
            for one in waiting
            if one[0] != "mixture" or result_path(arguments.output_dir, "levels", one[1]).is_file()
        ]
        while ready and len(running) < arguments.jobs:
            one = ready.pop(0)
            waiting.remove(one)
            running[one] = start(one, arguments)
        if not running:
            raise SystemExit("mixture takes its shares from levels: add it to --arms.")
        for one, process in list(running.items()):
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            del running[one]
            if process.returncode:
                raise SystemExit(f"{one[0]}, seed {one[1]} failed; see {log_path(arguments.output_dir, *one)}")
            print(f"{one[0]}, seed {one[1]}: done", flush=True)


def start(one: tuple[str, int], arguments) -> subprocess.Popen:
    flags = ["--output_dir", arguments.output_dir, "--budget", arguments.budget, "--eval_rows", arguments.eval_rows]
    command = [sys.executable, __file__, "--run", *one, *flags]
    environment = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1"}
    with open(log_path(arguments.output_dir, *one), "w") as log:
        return subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log)


def result_path(folder: Path, arm: str, seed: int) -> Path:
    return folder / f"{arm}-{seed}.json"


def log_path(folder: Path, arm: str, seed: int) -> Path:
    return folder / f"{arm}-{seed}.log"


def make_graph(folder: Path) -> None:
    from open_r1_kivqa.demo.run import make_graph as build

    if not (folder / "graph.npz").is_file():
        build(folder / "graph.npz")


def train(arm: str, seed: int, folder: Path, budget: int, eval_rows: int) -> dict:
    """One run: accuracy at each tenth of the budget, the gain at its end, and what the groups were like."""
    import yaml
    from demo_trainer import CONFIG, build
    from transformers import TrainerCallback

    from open_r1_kivqa import demo
    from open_r1_kivqa.evaluation.summary import summarise as score_records
    from open_r1_kivqa.recipe import at_most
    from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
    from open_r1_kivqa.trainer.progress import add_progress
    from open_r1_kivqa.trainer.validation import GreedyValidation

    class Counting(VLMGRPOTrainer):
        generated = 0

        def _generate(self, prompts):
            made = self.prepared is None
            output = super()._generate(prompts)
            self.generated += made * sum(map(len, output[1]))
            return output

    run = folder / f"{arm}-{seed}"
    shutil.rmtree(run, ignore_errors=True)  # of a run that was stopped
    config = yaml.safe_load(CONFIG.read_text())
    flags = {"curriculum_graph": folder / "graph.npz", **ARMS[arm]}
    flags |= {
        "eval_data_file_paths": demo.EVAL,
        "output_dir": run,
        "seed": seed,
        "max_steps": 10_000,  # the budget ends it
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
    }
    parts = build(flags, Counting)
    trainer, curriculum, held_out = parts.trainer, parts.trainer.curriculum, parts.held_out
    if arm == "mixture":
        mix_levels(curriculum, level_shares(folder / f"levels-{seed}", curriculum.levels.names), seed)
    held_out = held_out.subset([i for i, sample in enumerate(held_out) if sample.split == SPLIT])
    held_out = at_most(held_out, eval_rows, 0)
    add_progress(trainer, trainer.phases)
    answer = GreedyValidation(
        held_out,
        replace(parts.prompting, level=config["context_level"]),
        folder=run / "evaluation",
        max_new_tokens=trainer.args.max_completion_length,
        batch_size=trainer.args.eval_batch_size_greedy,
    )
    accuracy = [answer(trainer)["eval_accuracy"]]

    class Budget(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            while trainer.generated >= budget * len(accuracy) / TENTHS and len(accuracy) <= TENTHS:
                accuracy.append(answer(trainer)["eval_accuracy"])
            control.should_training_stop = len(accuracy) > TENTHS

    trainer.add_callback(Budget())
    trainer.train()
    history = trainer.state.log_history
    (wrong,) = score_records(answer.records(trainer, "wrong_image"))["splits"].values()
    groups = [json.loads(line) for line in (run / "curriculum" / "observations.jsonl").read_text().splitlines()]
    flat = [max(group["values"]) == min(group["values"]) for group in groups]
    return {
        "accuracy": accuracy,
        "wrong_image": wrong["wrong_image"],
        "zero_advantage": float(np.mean(flat)),
        "zero_advantage_trained": float(
            np.mean([e["frac_reward_zero_std"] for e in history if "frac_reward_zero_std" in e])
        ),
        "steps": trainer.state.global_step,
        "tokens": trainer.generated,
        "level_shares": level_shares(run, curriculum.levels.names) if len(curriculum.levels.names) > 1 else None,
        "levels": list(curriculum.levels.names),
    }


def level_shares(run: Path, names: tuple[str, ...]) -> list[float]:
    """Share of the prompts of a run that were shown at each level."""
    lines = (run / "curriculum" / "observations.jsonl").read_text().splitlines()
    shown = [json.loads(line)["level"] for line in lines]
    return [shown.count(name) / len(shown) for name in names]


def mix_levels(curriculum, shares: list[float], seed: int) -> None:
    """Each batch's level is drawn from `shares`, whatever the window says."""
    draw = curriculum.draw

    def drawn(count, without):
        generator = np.random.default_rng([seed, curriculum.drawer.number, 1])
        curriculum.levels.index = int(generator.choice(len(shares), p=shares))
        return draw(count, without)

    curriculum.draw = drawn
    curriculum.levels.window = 10**9  # never full: no promotion


# -------------------------------------------------------------------------------------------------------- the report


def summarise(folder: Path, arms: list[str], seeds: list[int]) -> dict:
    """The figures that the module's docstring names, from the runs that are there."""
    runs = {
        (arm, seed): json.loads(result_path(folder, arm, seed).read_text())
        for arm in arms
        for seed in seeds
        if result_path(folder, arm, seed).is_file()
    }
    report = {}
    for arm in arms:
        own = [seed for seed in seeds if (arm, seed) in runs]
        if not own:
            continue
        of = [runs[arm, seed] for seed in own]
        gains = {seed: runs[arm, seed]["accuracy"][-1] - runs[arm, seed]["wrong_image"] for seed in own}
        paired = [seed for seed in own if ("uniform", seed) in runs]
        base = {seed: runs["uniform", seed] for seed in paired}
        areas = {seed: float(np.trapezoid(runs[arm, seed]["accuracy"], dx=1 / TENTHS)) for seed in own}
        base_areas = {seed: float(np.trapezoid(base[seed]["accuracy"], dx=1 / TENTHS)) for seed in paired}
        reached = [reach(runs[arm, seed]["accuracy"], base[seed]["accuracy"][-1]) for seed in paired]
        nearly = [reach(runs[arm, seed]["accuracy"], 0.9 * base[seed]["accuracy"][-1]) for seed in paired]
        report[arm] = {
            "seeds": own,
            "accuracy": np.mean([run["accuracy"] for run in of], axis=0).round(4).tolist(),
            "last_accuracy": mean_interval([run["accuracy"][-1] for run in of]),
            "mean_accuracy": mean_interval(list(areas.values())),
            "mean_over_uniform": mean_interval([areas[seed] - base_areas[seed] for seed in paired]),
            "tokens_to_uniform": mean_interval(reached) if reached and None not in reached else None,
            "tokens_to_uniform_by_seed": reached,
            "tokens_to_nearly": mean_interval(nearly) if nearly and None not in nearly else None,
            "tokens_to_nearly_by_seed": nearly,
            "zero_advantage": mean_interval([run["zero_advantage"] for run in of]),
            "zero_advantage_trained": mean_interval([run["zero_advantage_trained"] for run in of]),
            "gain": mean_interval(list(gains.values())),
            "gain_over_uniform": mean_interval(
                [gains[seed] - (base[seed]["accuracy"][-1] - base[seed]["wrong_image"]) for seed in paired]
            ),
            "steps": float(np.mean([run["steps"] for run in of])),
        }
    return report


def reach(accuracy: list[float], wanted: float) -> float | None:
    """Share of the budget after which `wanted` was first reached, between tenths by a straight line; None if never."""
    for tenth in range(1, len(accuracy)):
        before, after = accuracy[tenth - 1], accuracy[tenth]
        if after >= wanted:
            part = 1.0 if before >= wanted or after == before else (wanted - before) / (after - before)
            return round((tenth - 1 + part) / TENTHS, 3)
    return None


def mean_interval(values: list[float]) -> list[float] | None:
    """[mean, low, high] by Student's t; low and high equal the mean for a single value."""
    if not values:
        return None
    from scipy.stats import t

    mean, n = float(np.mean(values)), len(values)
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return [round(mean, 4), round(mean - half, 4), round(mean + half, 4)]


def plot(report: dict, budget: int, path: Path) -> None:
    """Accuracy over generated tokens, a line for each arm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for arm, figures in report.items():
        tokens = np.linspace(0, budget, len(figures["accuracy"])) / 1000
        axes.plot(tokens, 100 * np.array(figures["accuracy"]), label=arm, marker="o", markersize=3)
    axes.set_xlabel("thousand generated tokens")
    axes.set_ylabel("right at the last level, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
