"""Progressive thinking suppression training: stages of longer completions and smaller groups, in one run (PTST; Vision-R1, arXiv 2503.06749, section 3.3).

A stage is so many optimizer steps with a completion length and a number of completions a prompt. The first stage's groups are the largest and size the loader; a later stage keeps some of each group's rows, the
same number on every rank. So the prompts of a step, and with them sampler, epochs, optimizer and schedule, stay as they are, and DeepSpeed, the reference model and the loader are built once.
"""

from collections import deque

from transformers import TrainerCallback

from ..schedule import Stage, stage_at


class StagesMixin:
    """For `VLMGRPOTrainer`. `stages` is empty for a run without a schedule."""

    stages: tuple[Stage, ...] = ()
    stage: int | None = None  # in force, from 0

    @property
    def prompts_per_batch(self) -> int:
        """Prompts of a generation batch, over all ranks; the same in every stage."""
        return self.args.generation_batch_size // self.args.num_generations

    def enter_stage(self, step: int) -> None:
        """Put the stage in force to which the next step belongs, `step` steps made so far. Does nothing if it is in force already."""
        number = stage_at(self.stages, step) if self.stages else None
        if number == self.stage:
            return
        self.stage = number
        stage = self.stages[number]
        self.num_generations = stage.num_generations
        self.max_completion_length = stage.max_completion_length
        if self.use_vllm:
            self.vllm_generation.max_completion_length = stage.max_completion_length
        else:
            self.generation_config.max_new_tokens = stage.max_completion_length
            self.generation_kwargs["max_new_tokens"] = stage.max_completion_length
        if self.curriculum is not None:
            self.curriculum.estimator.group_size = stage.num_generations
        if self.is_world_process_zero():
            print(f"Stage {number + 1} of {len(self.stages)}, from step {step} on: {stage}", flush=True)

    def rows_of_stage(self, inputs: list[dict]) -> list[dict]:
        """This rank's rows that the stage in force keeps: of each group, spread over as many ranks as it may be, every n-th.

        Args:
            inputs: this rank's entries of the loader's batch, in which a group's follow each other over the ranks.
        """
        if not self.stages:
            return inputs
        self.fit_table_of_completions()
        largest = self.args.num_generations
        first = self.accelerator.process_index * len(inputs)
        return [row for i, row in enumerate(inputs, first) if (i % largest) % (largest // self.num_generations) == 0]

    def fit_table_of_completions(self) -> None:
        """TRL's table of completions, for --log_completions, holds the newest so many of the loader's batch. A smaller stage's batch would stand in it beside completions of the batch before."""
        size = self.prompts_per_batch * self.num_generations
        for tables in (self._logs, self._logs["rewards"], self._logs["extra"]):
            tables |= {name: deque(kept, size) for name, kept in tables.items() if isinstance(kept, deque)}

    def stage_metrics(self) -> dict[str, float]:
        """The stage of the step that was made last, which is logged when the next one is in force already."""
        if not self.stages:
            return {}
        number = stage_at(self.stages, self.state.global_step - 1)
        return {
            "stage": number + 1,
            "stage/max_completion_length": self.stages[number].max_completion_length,
            "stage/num_generations": self.stages[number].num_generations,
        }


class StageCallback(TrainerCallback):
    """Enters each stage where the one before ends, before anything else looks at the step that was made."""

    def __init__(self, trainer: StagesMixin):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.enter_stage(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < state.max_steps:  # there is a next step
            self.trainer.enter_stage(state.global_step)
