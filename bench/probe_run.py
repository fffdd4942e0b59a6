"""A training run whose forecasts can be judged fairly: `python bench/probe_run.py --output_dir outputs/probe [--samples 300] [--rollouts 16]`.

Trains the tiny checkpoint of the demo as configs/demo.yaml says, and at four points of the run has the model answer the same training questions, drawn uniformly once, several times each, at the level of that moment.
These probes are not trained on and the curriculum does not see them. They go into OUTPUT_DIR/curriculum/observations.jsonl, marked "probe": true, where bench/estimators.py finds them. The last line is one JSON object:
  observations, graph, data_file_paths   the files that it wants
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

CHUNK = 64  # completions generated at a time
POINTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    print(json.dumps(run(arguments)))


def run(arguments) -> dict:
    import torch
    from demo_trainer import build
    from transformers import TrainerCallback

    from open_r1_kivqa import demo
    from open_r1_kivqa.demo.run import make_graph
    from open_r1_kivqa.trainer.progress import add_progress
    from open_r1_kivqa.trainer.rollout import Rollout

    folder = arguments.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder / "graph.npz"
    make_graph(graph)
    flags = {"curriculum_graph": graph, "output_dir": folder, "max_steps": arguments.steps, "seed": arguments.seed}
    parts = build(flags)
    trainer, rows, curriculum = parts.trainer, parts.rows, parts.trainer.curriculum
    add_progress(trainer, trainer.phases)
    drawn = np.random.default_rng(arguments.seed).choice(len(rows), arguments.samples, replace=False).tolist()

    class Probe(TrainerCallback):  # after the curriculum's own callback: forecasts are those of the next draw
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % (arguments.steps // POINTS) or state.global_step == arguments.steps:
                return
            self.probe(state.global_step)

        def on_train_begin(self, args, state, control, **kwargs):
            self.probe(0)

        def probe(self, step: int) -> None:
            asked = Rollout(rows, replace(parts.prompting, level=curriculum.level))  # with its own count of draws
            lines = []
            with torch.random.fork_rng([]):  # what training samples does not change
                for first in range(0, len(drawn), CHUNK // arguments.rollouts):
                    chosen = drawn[first : first + CHUNK // arguments.rollouts]
                    inputs = [{"row": row} for row in chosen for _ in range(arguments.rollouts)]
                    built = asked.build(inputs, chosen)
                    prompts = [one["prompt"] for one in built]
                    completions = trainer._generate(prompts)[3]
                    samples = [one["sample"] for one in built]
                    values = np.array(parts.rewards[0](prompts, completions, sample=samples)).reshape(len(chosen), -1)
                    lines += [self.line(step, row, group) for row, group in zip(chosen, values, strict=True)]
            with open(trainer.observations.path, "a", encoding="utf-8") as file:
                file.writelines(lines)

        def line(self, step: int, row: int, values: np.ndarray) -> str:
            forecast = float(curriculum.estimate.mean[row])
            entry = {"step": step, "draw": -1, "row": row, "id": curriculum.ids[row], "level": curriculum.level}
            entry |= {"exploration": True, "importance": 1.0, "forecast": round(forecast, 6), "hit": True}
            return json.dumps(entry | {"values": values.tolist(), "probe": True}) + "\n"

    trainer.add_callback(Probe())
    trainer.train()
    found = {"observations": trainer.observations.path, "graph": graph, "data_file_paths": demo.TRAIN}
    return {name: str(path) for name, path in found.items()}


if __name__ == "__main__":
    main()
