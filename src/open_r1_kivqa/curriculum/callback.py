"""Ties the curriculum to TRL's training loop."""

from pathlib import Path

from transformers import TrainerCallback

from .curriculum import Curriculum
from .observations import ObservationLog


class CurriculumCallback(TrainerCallback):
    """After each optimizer step: promotion, new weights, a snapshot when it is due. Says on rank 0 what the run begins with and each move of the level.

    Args:
        curriculum: of this rank.
        log: of the groups, begun when training begins.
        phase: context manager that counts the time spent here, given a name.
    """

    def __init__(self, curriculum: Curriculum, log: ObservationLog, phase):
        self.curriculum, self.log, self.phase = curriculum, log, phase
        self.warned = False

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self.log.begin(state.global_step)
            print(self.curriculum.describe(), flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        before = self.curriculum.level
        with self.phase("curriculum"):
            moved = self.curriculum.end_step(state.global_step)
        if not state.is_world_process_zero:
            return
        if moved:
            word = "promoted" if moved > 0 else "demoted"
            print(f"step {state.global_step}: {word} from level {before} to {self.curriculum.level}", flush=True)
        warning = None if self.warned else self.curriculum.warning()
        if warning:
            self.warned = True
            print(warning, flush=True)
        every = self.curriculum.settings.curriculum_snapshot_steps
        if every and state.global_step % every == 0:
            folder = Path(args.output_dir) / "curriculum"
            folder.mkdir(parents=True, exist_ok=True)
            self.curriculum.save(folder / f"step-{state.global_step}.npz")
