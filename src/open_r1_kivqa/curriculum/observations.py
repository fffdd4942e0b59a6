"""observations.jsonl: one line for each group that was generated, for whoever wants to judge the curriculum afterwards."""

import json
from pathlib import Path

import numpy as np

from ..data.aside import written_aside
from ..errors import InputError


class ObservationLog:
    """Appends to a file; after a resume the lines of steps that will be made again are dropped."""

    def __init__(self, path: Path):
        self.path = path

    def begin(self, step: int) -> None:
        """Keep the lines of steps before `step`, of which so many are made; not the last line if the run was killed in it. `InputError` for any other line that is not of this log."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.is_file():
            return
        with open(self.path, encoding="utf-8") as old, written_aside(self.path) as new:
            for number, line in enumerate(old, 1):
                if line.endswith("\n") and self._step_of(line, number) < step:
                    new.write(line)

    def _step_of(self, line: str, number: int) -> int:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            raise InputError(
                f"{self.path}:{number} is no observation of a group: move the file away, or delete the line."
            )
        return entry["step"]

    def write(self, step: int, batch, ids: list[str], values: np.ndarray, hit: np.ndarray) -> None:
        """One line for each of the P groups of a draw.

        Args:
            step: optimizer steps made. ids: (P,) of the rows. values: (P, G) the signal, NaN where there was none. hit: (P,).
        """
        lines = []
        for place, row in enumerate(batch.rows.tolist()):
            group = [None if value != value else round(value, 6) for value in values[place].tolist()]
            entry = {
                "step": step,
                "draw": batch.number,
                "row": row,
                "id": ids[place],
                "level": batch.level,
                "exploration": bool(batch.exploration[place]),
                "importance": round(float(batch.importance[place]), 6),
                "forecast": round(float(batch.forecast[place]), 6),
                "hit": bool(hit[place]),
                "values": group,
            }
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(lines)
