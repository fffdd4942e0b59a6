"""The schedule of --ptst: stages of longer completions and smaller groups, read and checked. `trainer/stages.py` follows it."""

from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Stage:
    """steps: optimizer steps. max_completion_length: tokens of a completion. num_generations: completions a prompt."""

    steps: int
    max_completion_length: int
    num_generations: int

    def __str__(self):
        return f"{self.steps} steps with completions of up to {self.max_completion_length:,} tokens, {self.num_generations} a prompt"


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages of `steps:tokens:generations,…`, as "100:4096:16,100:8192:8,100:16384:4".

    Raises:
        InputError: another form, a number below 1 (2 for generations), generations that grow or do not divide the first stage's.
    """
    stages = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) != 3 or not all(number.strip().isascii() and number.strip().isdigit() for number in numbers):
            raise InputError(
                f"--ptst: {part.strip()!r} is no stage: write steps:tokens:generations, as 100:4096:16,100:8192:8,100:16384:4 (in a yaml file in quotes)."
            )
        stages.append(Stage(*map(int, numbers)))
    largest = stages[0].num_generations
    for number, stage in enumerate(stages, 1):
        if stage.steps < 1 or stage.max_completion_length < 1 or stage.num_generations < 2:
            raise InputError(
                f"--ptst: stage {number} has {stage}: at least 1 step, 1 token and 2 completions are wanted."
            )
        if stage.num_generations > stages[max(0, number - 2)].num_generations:
            raise InputError(
                f"--ptst: stage {number} has {stage.num_generations} completions a prompt, more than the stage before: they may only shrink, since the first stage's size the loader."
            )
        if largest % stage.num_generations:
            raise InputError(
                f"--ptst: stage {number} has {stage.num_generations} completions a prompt, which does not divide the first stage's {largest}, of which it keeps a share."
            )
    return tuple(stages)


def stage_at(stages: tuple[Stage, ...], step: int) -> int:
    """Which stage, from 0, the optimizer step after `step` steps belongs to; the last one after the end."""
    for number, stage in enumerate(stages):
        if step < stage.steps:
            return number
        step -= stage.steps
    return len(stages) - 1


def total_steps(stages: tuple[Stage, ...]) -> int:
    return sum(stage.steps for stage in stages)


def longest_completion(stages: tuple[Stage, ...]) -> int:
    return max(stage.max_completion_length for stage in stages)


def refuse_unfit_stages(stages: tuple[Stage, ...], *, per_device: int, steps_per_generation_batch: int) -> None:
    """InputError for a schedule that the batch cannot follow.

    Args:
        per_device: rows of a micro-batch, of which every stage keeps its share. steps_per_generation_batch: optimizer steps that one generation batch feeds; a stage ends with one.
    """
    largest = stages[0].num_generations
    for number, stage in enumerate(stages, 1):
        ratio = largest // stage.num_generations
        if per_device % ratio:
            raise InputError(
                f"--ptst: stage {number} keeps {stage.num_generations} of {largest} rows, and --per_device_train_batch_size {per_device} is no multiple of {ratio}: make it one."
            )
        if stage.steps % steps_per_generation_batch:
            raise InputError(
                f"--ptst: stage {number} has {stage.steps} steps, and one generation batch feeds {steps_per_generation_batch} steps here "
                "(steps_per_generation x num_iterations / gradient_accumulation_steps), so it would end inside of one: give a multiple."
            )
