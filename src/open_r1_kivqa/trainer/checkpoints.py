"""Checkpoints that can be trusted: weights that really load, a marker written last, a save on SIGTERM.

Both trainers of this library take `ResumeMixin`.
"""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate.utils import gather_object
from peft import PeftModel
from safetensors import SafetensorError
from transformers import TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from ..data.aside import write_json
from ..errors import NO_ROOM, InputError
from ..manifest import refuse_unusable_folder
from ..vlm_modules.loading import load_model
from .resumed_optimizer import ResumedOptimizerMixin

MARKER = "complete.json"
NOT_RESUMABLE = "was saved inside a generation batch, or without the optimizer (--save_only_model), from where a run can't go on exactly"


class ResumeMixin(ResumedOptimizerMixin):
    """Overrides of `Trainer` for saving and resuming. Put it before the trainer in the bases."""

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Load weights as `from_pretrained` does, or fail.

        Checkpoints hold the hub's parameter names, which differ from the names in memory for Qwen2-VL, Qwen2.5-VL and InternVL. The stock method loads them with `strict=False`: nothing matches, nothing is
        loaded, and training goes on from the base weights after a warning. Can go when `Trainer` maps names itself. DeepSpeed, FSDP and adapters load exactly in the stock way.
        """
        model = self.model if model is None else model
        try:
            if self.loads_exactly(model):
                super()._load_from_checkpoint(resume_from_checkpoint, model)
            else:
                model.load_state_dict(load_model(resume_from_checkpoint, dtype=model.dtype).state_dict())
        except (RuntimeError, ValueError) as error:
            if not re.match(r"Error\(s\) in loading state_dict|Can't find a valid checkpoint", str(error)):
                raise
            told = " ".join(str(error).split())[:300]
            raise InputError(
                f"--resume_from_checkpoint {resume_from_checkpoint} is of another model ({told}): give the model and the LoRA flags of its run, or start anew."
            ) from error

    def _load_best_model(self):
        """For --load_best_model_at_end; the stock method would load nothing, for the same reason."""
        if self.loads_exactly(self.model):
            super()._load_best_model()
        else:
            self._load_from_checkpoint(self.state.best_model_checkpoint)

    def loads_exactly(self, model) -> bool:
        """Whether the stock methods load a checkpoint as it was saved."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled or isinstance(model, PeftModel)

    def _load_optimizer_and_scheduler(self, checkpoint):
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:
            if not str(error).startswith("loaded state dict"):
                raise
            raise InputError(
                f"--resume_from_checkpoint {checkpoint} trained other parameters ({error}): resume with the --freeze_ and LoRA flags of its run, or start anew."
            ) from error

    def _save_checkpoint(self, model, trial):
        """Stock save, then our own state, then the marker: a checkpoint without it was interrupted and is never resumed from.

        Older checkpoints go (--save_total_limit) once this one is whole and can be resumed from; the stock method lets them go before. One that is written anew loses its marker first.
        """
        run_dir = self._get_output_dir(trial=trial)
        folder = Path(run_dir) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / MARKER).unlink(missing_ok=True)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with full_disk_told(folder):
                super()._save_checkpoint(model, trial)
                self.save_own_state(folder)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_json(
                folder / MARKER,
                {
                    "global_step": self.state.global_step,
                    "resumable": self.at_boundary() and not self.args.save_only_model,
                },
            )
            if self.at_boundary():
                rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        with full_disk_told(output_dir or self.args.output_dir):
            super().save_model(output_dir, _internal_call)

    def save_own_state(self, folder: Path) -> None:
        """Hook: what a subclass wants in the checkpoint. Called on all ranks; `args.should_save` tells which one writes."""

    def at_boundary(self) -> bool:
        """Hook: whether a run resumed from here goes on exactly as the unbroken one."""
        return True


@contextmanager
def full_disk_told(folder: str | Path) -> Iterator[None]:
    """Within it a disk that is full ends the run with an InputError; each library has words of its own for it, and torch hardly any."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        full = getattr(error, "errno", None) in NO_ROOM or re.search("No space left|inline_container", str(error))
        if not full:
            raise
        raise InputError(
            f"{folder} cannot be written to its end, as on a full disk ({str(error).splitlines()[0]}). Make room, and go on with --resume_from_checkpoint true from the newest complete checkpoint."
        ) from error


def read_marker(folder: Path) -> dict | None:
    """The marker's content; None if there is none, or half of one."""
    path = folder / MARKER
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError:
        return None


def refuse_unfit_checkpoint(checkpoint: str | None, *, max_steps: int, use_peft: bool) -> None:
    """InputError for a checkpoint that has all steps already (transformers would make one more), or of the other kind of training."""
    if checkpoint is None:
        return
    step = read_marker(Path(checkpoint))["global_step"]
    if 0 < max_steps <= step:
        raise InputError(
            f"{checkpoint} is of step {step}, so with --max_steps {max_steps} nothing is left to train: raise --max_steps, or use the checkpoint as it is."
        )
    has_adapter = (Path(checkpoint) / "adapter_config.json").is_file()
    if has_adapter != use_peft:
        kinds = ("a LoRA adapter", "without") if has_adapter else ("a whole model", "with")
        raise InputError(
            f"{checkpoint} holds {kinds[0]}, and this run is {kinds[1]} --use_peft: resume as the run began."
        )


def find_checkpoint(resume_from_checkpoint: str | None, output_dir: str) -> str | None:
    """The checkpoint that `--resume_from_checkpoint` names.

    Args:
        resume_from_checkpoint: None or "false" for a fresh start, "true" for the newest complete checkpoint of `output_dir`, or a checkpoint's folder.

    Raises:
        InputError: nothing complete to resume from, or a checkpoint that lacks what a run needs to go on exactly.
    """
    if resume_from_checkpoint is None or str(resume_from_checkpoint).lower() in ("false", "none", ""):
        return None
    if str(resume_from_checkpoint).lower() != "true":
        folder = Path(resume_from_checkpoint)
        if not folder.is_dir():
            raise InputError(
                f"--resume_from_checkpoint {folder}: there is no such folder. Give a checkpoint's folder, or true for the newest one of --output_dir."
            )
        marker = read_marker(folder)
        if marker is None:
            raise InputError(
                f"--resume_from_checkpoint {folder}: {MARKER} is missing, so its saving was interrupted. Give an older checkpoint, or true for the newest complete one."
            )
        if not marker["resumable"]:
            raise InputError(
                f"--resume_from_checkpoint {folder}: it {NOT_RESUMABLE}. Give an older checkpoint, or start anew with it as --model_name_or_path and another --output_dir."
            )
        return str(folder)
    found, whole = [], 0
    for folder in Path(output_dir).glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
        marker = read_marker(folder) if number else None
        whole += marker is not None
        if marker is not None and marker["resumable"]:
            found.append((int(number.group(1)), folder))
    if not found and whole:
        raise InputError(
            f"--resume_from_checkpoint true: each checkpoint of {output_dir} {NOT_RESUMABLE}. Start anew with one of them as --model_name_or_path and another --output_dir."
        )
    if not found:
        raise InputError(
            f"--resume_from_checkpoint true: {output_dir} holds no complete checkpoint. Leave the flag out to start anew."
        )
    return str(max(found)[1])


def refuse_to_overwrite(output_dir: str, resume_from_checkpoint: str | None) -> None:
    """A fresh start in a folder that holds checkpoints would mix two runs. Refuses what can't be a folder, too."""
    refuse_unusable_folder(output_dir)
    if resume_from_checkpoint is None and any(Path(output_dir).glob("checkpoint-*")):
        raise InputError(
            f"--output_dir {output_dir} holds checkpoints of an earlier run. Go on with it by --resume_from_checkpoint true, or give another folder."
        )


class SaveOnSigterm(TrainerCallback):
    """On SIGTERM (Slurm's time limit, a preempted node): finish the step, save at the next boundary, stop.

    All ranks must save together, so each step they tell each other whether any of them got the signal.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.received = False
        self.saving = False
        self.previous = None

    def _on_signal(self, number, frame):
        self.received = True

    def on_train_begin(self, args, state, control, **kwargs):
        self.previous = signal.signal(signal.SIGTERM, self._on_signal)

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self.previous or signal.SIG_DFL)

    def on_step_end(self, args, state, control, **kwargs):
        self.saving = self.saving or any(gather_object([self.received]))
        if self.saving and self.trainer.at_boundary():
            print(
                f"SIGTERM: saving checkpoint-{state.global_step} and stopping. Go on with --resume_from_checkpoint true.",
                flush=True,
            )
            control.should_save = True
            control.should_training_stop = True
        return control


class WaitForBoundary(TrainerCallback):
    """Evaluation and checkpoints that fall inside a generation batch come at its end, from where a run can be resumed exactly.

    `VLMGRPOConfig` refuses such --save_steps. But where generation batches and --gradient_accumulation_steps don't divide each other, an epoch may end with a step of fewer micro-batches, and later ones lie elsewhere.
    Put it after transformers' own callbacks, which ask for both. What the end of training asks for is done there.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.owed = {"should_evaluate": False, "should_save": False}
        self.told = False

    def on_step_end(self, args, state, control, **kwargs):
        ready = self.trainer.at_boundary() or state.global_step >= state.max_steps
        for name, owed in self.owed.items():
            wanted = owed or getattr(control, name)
            setattr(control, name, wanted and ready)
            self.owed[name] = wanted and not ready
            if self.owed[name] and not self.told and state.is_world_process_zero:
                self.told = True
                print(
                    f"Step {state.global_step} lies inside a generation batch, since an epoch ended with fewer micro-batches than --gradient_accumulation_steps. "
                    "Evaluations and checkpoints wait for its end, so that the run can be resumed exactly.",
                    flush=True,
                )
        return control


class KeepBest(TrainerCallback):
    """Save a checkpoint whenever the evaluation finds the best value so far, so that the best one exists whatever `save_steps` is. transformers' rotation then keeps it."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        value = metrics.get(args.metric_for_best_model)
        if value is not None and (
            state.best_metric is None or (value > state.best_metric) == bool(args.greater_is_better)
        ):
            control.should_save = True
        return control
