"""Build the embedded task sets: small, free, sound data in VLM-R1's row shape for each task beside knowledge-based questions.

    python -m open_r1_kivqa.demo.build_tasks

rec     one thing that a phrase describes, and its box
ovd     boxes for all things of the kinds asked for, or None
math    a problem of which the picture holds a part, and its exact result
gui     two screenshots, before and after a click
choice  questions with options, and yes or no: the rows name their methods

Pictures are drawn here; flags are those of the knowledge base. The same command writes the same bytes with the same Pillow.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from . import TASKS, task_problems, task_scenes, task_windows
from .task_pictures import Made, save

ROUNDS = {"train": 12, "test": 3}  # rows of each kind; the sets have four kinds each


KINDS: dict[str, dict[str, Callable[[Random, int], Made | None]]] = {
    "rec": {
        "attribute": task_scenes.rec_attribute,
        "size": task_scenes.rec_size,
        "place": task_scenes.rec_place,
        "flag": task_scenes.rec_flag,
    },
    "ovd": {
        "one": task_scenes.ovd_one_kind,
        "several": task_scenes.ovd_several_kinds,
        "flags": task_scenes.ovd_flags,
        "none": task_scenes.ovd_none_or_one,
    },
    "math": {
        "expression": task_problems.math_expression,
        "equation": task_problems.math_equation,
        "count": task_problems.math_count,
        "figure": task_problems.math_figure,
    },
    "gui": {
        "click": task_windows.gui_click,
        "fault": task_windows.gui_fault,
        "difference": task_windows.gui_difference,
        "move": task_windows.gui_move,
    },
    "choice": {
        "flag": task_scenes.choice_flag,
        "missing": task_scenes.choice_missing,
        "there": task_scenes.choice_there,
        "larger": task_scenes.choice_larger,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=TASKS, help="folder to write; replaced")
    build(parser.parse_args().output)


def build(folder: Path) -> None:
    """Writes {rec,ovd,math,gui,choice}.jsonl and images/ to `folder`, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    for task, kinds in KINDS.items():
        rows = []
        for split, rounds in ROUNDS.items():
            for turn in range(rounds):
                for kind in kinds:
                    rows.append(make_row(folder / "images", task, kind, split, turn, len(rows)))
        with open(folder / f"{task}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def make_row(images: Path, task: str, kind: str, split: str, turn: int, number: int) -> dict:
    """One row; its pictures are written below `images`. `turn` counts the rows of its kind and split, for answers that take turns."""
    rng = Random(f"{task}/{split}/{kind}/{turn}")
    made = None
    while made is None:  # chance can leave no room for a thing, or no single answer
        made = KINDS[task][kind](rng, turn)
    drawn, question, answer, more = made
    names = [f"{task}/{number:03d}{'ab'[i] if len(drawn) > 1 else ''}.png" for i in range(len(drawn))]
    for picture, name in zip(drawn, names, strict=True):
        save(picture, images / name)
    return {
        "id": f"{task}-{number:03d}",
        "image": names if len(names) > 1 else names[0],
        "conversations": [
            {"from": "human", "value": "<image>" * len(names) + "\n" + question},
            {"from": "gpt", "value": f"<answer>{answer}</answer>"},
        ],
        "question_type": kind,
        "split": split,
        **more,
    }


if __name__ == "__main__":
    main()
