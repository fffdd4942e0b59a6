"""The optimizer's flags in a run that goes on from a checkpoint.

torch keeps learning rate, weight decay and the like in the optimizer's state and the schedule's, so the stock method brings back the checkpoint's: a run resumed with another --learning_rate would go on with the old one.
"""

from ..errors import InputError


class ResumedOptimizerMixin:
    """For a `Trainer`. Flags that are as they were change nothing, to the bit."""

    flagged: list[
        dict
    ] = []  # the optimizer's groups as the flags make them; in place of their weights how many these are

    def create_optimizer(self, model=None):
        made = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if made and hasattr(optimizer, "param_groups"):
            self.flagged = [group | {"params": len(group["params"])} for group in optimizer.param_groups]
        return optimizer

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.flagged:
            apply_flags(
                self.optimizer.param_groups, self.flagged, getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
            )


def apply_flags(groups: list[dict], flagged: list[dict], schedule) -> None:
    """Gives the optimizer's groups, as a checkpoint has them, what the flags say.

    Args:
        groups: of the optimizer; changed in place. flagged: the same as they were when it was made. schedule: its learning rate schedule, at the checkpoint's step.

    Raises:
        InputError: the checkpoint is of another kind of optimizer.
    """
    if len(groups) != len(
        flagged
    ):  # ZeRO-3 leaves out those without weights: under LoRA nothing goes without weight decay
        flagged = [wanted for wanted in flagged if wanted["params"]]
    if len(groups) != len(flagged) or any(
        not wanted.keys() <= group.keys() for group, wanted in zip(groups, flagged, strict=True)
    ):
        raise InputError(
            "--resume_from_checkpoint: the checkpoint's optimizer is of another kind than --optim, so its state is of no use to this one: resume with the --optim of its run, or start anew from its weights."
        )
    for number, (group, wanted) in enumerate(zip(groups, flagged, strict=True)):
        group |= {name: wanted[name] for name in ("weight_decay", "betas", "eps", "momentum") if name in wanted}
        rate = wanted["lr"]
        # A schedule that comes down by what it measures (reduce_lr_on_plateau) has no first rate; it goes on from where it is.
        if group.get("initial_lr", rate) == rate or not hasattr(schedule, "lr_lambdas"):
            continue
        group["initial_lr"] = schedule.base_lrs[number] = rate
        group["lr"] = schedule._last_lr[number] = rate * schedule.lr_lambdas[number](schedule.last_epoch)
