"""The curriculum's share of a training step, at 40,000 rows: `python bench/curriculum_overhead.py [--rows 40000] [--steps 12]`.

Trains the demo's tiny model on the embedded questions, repeated under new ids until there are as many rows as wanted, with their graph of 100 neighbours a row. A step is that of configs/demo.yaml, 64 completions of
8 prompts; on real models a step takes longer and the curriculum as long as here. The last line is one JSON object:
  rows, neighbours     of the graph, neighbours a row
  step_s               seconds a step, after the first two
  curriculum_s         of these, seconds in the curriculum: drawing, handing rewards back, estimating and weighing anew
  share_of_step        curriculum_s / step_s
  observed_rows        that had rewards by the end
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WARM = 2  # steps before measuring: the first ones compile the kernels and the first has nothing to propagate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=12, help="measured steps")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), arguments.rows, arguments.steps)))


def measure(folder: Path, number: int, steps: int) -> dict:
    from demo_trainer import build
    from transformers import TrainerCallback

    from open_r1_kivqa import demo
    from open_r1_kivqa.curriculum.graph import SampleGraph

    data, graph = folder / "rows.jsonl", folder / "graph.npz"
    repeat_rows(Path(demo.TRAIN), data, number)
    words = ["--data_file_paths", data, "--knowledge_base", demo.KNOWLEDGE, "--output", graph]
    subprocess.run([sys.executable, "-m", "open_r1_kivqa.cli", "graph", *map(str, words)], check=True)

    flags = {"data_file_paths": data, "curriculum_graph": graph, "output_dir": folder / "run"}
    parts = build(flags | {"max_steps": WARM + steps, "disable_tqdm": True})
    trainer, rows = parts.trainer, parts.rows

    class Measure(TrainerCallback):  # the curriculum's own callback runs before this one
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == WARM:
                trainer.phases.start()
                self.began = time.perf_counter()
            elif state.global_step == WARM + steps:
                self.wall = time.perf_counter() - self.began

    measured = Measure()
    trainer.add_callback(measured)
    trainer.train()
    curriculum_s = trainer.phases.seconds["curriculum"] / steps
    step_s = measured.wall / steps
    edges = len(SampleGraph.load(graph).indices)
    return {
        "rows": len(rows),
        "neighbours": round(edges / len(rows), 1),
        "step_s": round(step_s, 3),
        "curriculum_s": round(curriculum_s, 4),
        "share_of_step": round(curriculum_s / step_s, 4),
        "observed_rows": int(np.count_nonzero(trainer.curriculum.difficulty.observed)),
    }


def repeat_rows(source: Path, target: Path, number: int) -> None:
    """`number` rows: those of `source` again and again, each under an id of its own."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with open(target, "w", encoding="utf-8") as file:
        for i in range(number):
            row = lines[i % len(lines)]
            file.write(json.dumps(row | {"id": f"{row['id']}-{i}"}) + "\n")


if __name__ == "__main__":
    main()
