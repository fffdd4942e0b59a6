"""What a person sees of a training run: the batch in words, a bar (or plain lines in a log file), and where the time goes.

self.phases = PhaseTimer()                                       # in the trainer's __init__
add_progress(self, self.phases, parameter_report(model, module))
...
with self.phases.phase("generation"):                            # in its overrides
    completion_ids = ...
self.phases.add_tokens(sum(map(len, completion_ids)))
"""

import atexit
import resource
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import PrinterCallback, TrainerCallback
from transformers import ProgressCallback as StockProgressCallback
from trl import GRPOConfig

LOSS_NEAR_0 = "A loss near 0 is as it should be: the advantages of a group cancel. What is learnt shows in the reward."
MEASURED_STEPS = 4  # at least so many, from the second on: the first one warms up and would spoil the estimate


def add_progress(trainer, timer: "PhaseTimer", header: str = "") -> None:
    """Puts the callbacks below in place of transformers' bar and printed dicts. `header` is printed before the first step."""
    trainer.remove_callback(StockProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ProgressCallback(header))
    trainer.add_callback(PhaseReport(timer))


# ----------------------------------------------------------------------------------------------------- header and bar


class ProgressCallback(TrainerCallback):
    """Header before the first step; then reward, accuracy, seconds a step and time left.

    On a terminal a bar shows them; elsewhere, or with --disable_tqdm, one line each time the trainer logs.
    """

    def __init__(self, header: str = "", console: Console | None = None):
        self.header = header
        self.console = console or Console()
        self.bar = None
        self.shown = ""  # newest reward and accuracy
        self.step_seconds = deque(maxlen=10)

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        self.since = time.perf_counter()
        if not state.is_world_process_zero:
            return
        self._print(self.header)
        self._print(batch_report(args, args.world_size, len(train_dataloader), state.max_steps))
        if self.console.is_terminal and not args.disable_tqdm:
            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, console=self.console, expand=True)
            self.bar.add_task("", total=state.max_steps, completed=state.global_step)
            self.bar.start()
            atexit.register(self.bar.stop)  # a run that fails gives the cursor back

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.step_seconds.append(now - self.since)
        self.since = now
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=state.global_step, description=self._status(state))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero:
            return
        if evaluated := evaluation_words(logs):
            self._print(f"step {state.global_step}: evaluation  {evaluated}")
        self.shown = training_words(logs) or self.shown
        if self.bar:
            self.bar.update(self.bar.task_ids[0], description=self._status(state))
        elif training_words(logs):
            self._print(f"step {state.global_step}/{state.max_steps}  {self._status(state)}")

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar:
            self.bar.stop()
            atexit.unregister(self.bar.stop)
            self.bar = None

    def _status(self, state) -> str:
        if not self.step_seconds:
            return self.shown
        a_step = sum(self.step_seconds) / len(self.step_seconds)
        return f"{self.shown}  {a_step:.2g} s a step  {duration((state.max_steps - state.global_step) * a_step)} left"

    def _print(self, text: str) -> None:
        if text:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def batch_report(args, world_size: int, batches_per_epoch: int, max_steps: int) -> str:
    """How many prompts and completions an optimizer step takes, and how many steps there are.

    Args:
        args: the trainer's arguments; with TRL's `GRPOConfig` a batch counts completions, else rows.
        world_size: number of processes.
        batches_per_epoch: length of the training dataloader, in micro-batches of one process.
        max_steps: optimizer steps of the whole run.
    """
    per_device, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    in_step = per_device * world_size * accumulated
    product = f"{per_device} per device x {world_size} {'process' if world_size == 1 else 'processes'} x {accumulated} accumulated"
    steps_per_epoch = max(1, -(-batches_per_epoch // accumulated))
    steps = f"{steps_per_epoch} steps an epoch, {max_steps} steps in all"
    if not isinstance(args, GRPOConfig):
        return f"{in_step} rows a step ({product}); {steps}"
    group = args.num_generations
    generated = per_device * world_size * args.steps_per_generation
    return (
        f"{in_step} completions a step = {in_step / group:g} prompts x {group} ({product}); {steps}\n"
        f"{generated} completions = {generated / group:g} prompts x {group} generated at a time, "
        f"each used {args.num_iterations} {'time' if args.num_iterations == 1 else 'times'}\n"
        f"{LOSS_NEAR_0}"
    )


def training_words(logs: dict) -> str:
    """`reward 0.612  accuracy 0.401` of a GRPO log, `loss 1.23  token accuracy 0.72` of an SFT log, "" of any other."""
    names = {"reward": "reward"} if "reward" in logs else {"loss": "loss", "mean_token_accuracy": "token accuracy"}
    if "reward" in logs:
        names |= {key: "accuracy" for key in logs if key.startswith("rewards/accuracy") and key.endswith("/mean")}
    return "  ".join(f"{word} {logs[key]:.3f}" for key, word in names.items() if logs.get(key) is not None)


def evaluation_words(logs: dict) -> str:
    """Every `eval_` figure of a log but its running times."""
    skipped = ("_runtime", "_per_second")
    shown = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_") and not k.endswith(skipped)}
    return "  ".join(f"{name} {value:.3f}" for name, value in shown.items() if isinstance(value, float))


def duration(seconds: float) -> str:
    """40 -> `40 s`, 200 -> `3 min`, 9000 -> `2 h 30 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


# -------------------------------------------------------------------------------------------------- where the time goes


class PhaseTimer:
    """Seconds by phase on this process. Phases may nest: time belongs to the innermost one.

    A GPU runs behind Python, so each border of a phase waits for it. That costs speed, hence the timer is on only
    between `start` and `stop`.
    """

    def __init__(self):
        self.on = False
        self.seconds: Counter[str] = Counter()
        self.tokens = 0
        self.open: list[str] = []  # the phases we are in, outermost first

    def start(self) -> None:
        """Forgets what was measured and measures from now on. Call it outside of any phase."""
        self.seconds.clear()
        self.tokens = 0
        self.on = True
        self.since = self._now()

    def stop(self) -> None:
        self.on = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside the `with` block for `name`."""
        if not self.on:
            yield
            return
        self._pass_time()
        self.open.append(name)
        try:
            yield
        finally:
            self._pass_time()
            self.open.pop()

    def add_tokens(self, count: int) -> None:
        """Counts completion tokens generated by this process."""
        self.tokens += count if self.on else 0

    def _pass_time(self) -> None:
        now = self._now()
        if self.open:
            self.seconds[self.open[-1]] += now - self.since
        self.since = now

    def _now(self) -> float:
        if self.on and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


class PhaseReport(TrainerCallback):
    """After five steps (more if a generation batch feeds more) prints seconds by phase, tokens a second, memory peak and time left."""

    def __init__(self, timer: PhaseTimer, console: Console | None = None):
        self.timer = timer
        self.console = console or Console()
        self.first_step = None  # the step after which measuring began
        self.done = False

    def on_train_begin(self, args, state, control, **kwargs):
        # A whole number of generation batches, or the phases' shares would depend on where the window falls.
        every = args.steps_per_generation_batch if isinstance(args, GRPOConfig) else 1
        self.window = -(-MEASURED_STEPS // every) * every

    def on_step_end(self, args, state, control, **kwargs):
        if self.done:
            return
        if self.first_step is None:
            self.first_step = state.global_step
            self.began = time.perf_counter()
            self.timer.start()
        elif state.global_step - self.first_step >= self.window:
            self._report(state)

    def on_train_end(self, args, state, control, **kwargs):
        if not self.done and self.first_step is not None and state.global_step > self.first_step:
            self._report(state)

    def _report(self, state) -> None:
        self.done = True
        wall = time.perf_counter() - self.began
        self.timer.stop()
        if state.is_world_process_zero:
            steps = state.global_step - self.first_step
            left = (state.max_steps - state.global_step) * wall / steps
            text = phase_report(self.timer.seconds, self.timer.tokens, wall, steps, left)
            self.console.print(f"{text}; {memory_peak()}", markup=False, highlight=False, soft_wrap=True)


def phase_report(seconds: dict[str, float], tokens: int, wall: float, steps: int, left: float) -> str:
    """The report in words.

    Args:
        seconds: by phase, over all measured steps.
        tokens: completion tokens generated in them by this process.
        wall: seconds that the steps took in all; what no phase counted is called `rest`.
        steps: how many steps were measured.
        left: seconds until the end of the run.
    """
    shares = {**seconds, "rest": max(0.0, wall - sum(seconds.values()))} if seconds else {}
    words = ", ".join(f"{name} {spent / steps:.2g} s ({spent / wall:.0%})" for name, spent in shares.items())
    speed = f"{tokens / seconds['generation']:.0f} generated tokens a second on each process; " if tokens else ""
    return f"{wall / steps:.2g} s a step{': ' if words else ''}{words}\n{speed}{duration(left)} left"


def memory_peak() -> str:
    """Most memory this process has held so far: on its GPU (allocated by torch) if it has one, else resident in RAM."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return f"memory peak {torch.cuda.max_memory_allocated() / 2**30:.1f} of {whole / 2**30:.0f} GiB on this GPU"
    return f"memory peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB of RAM"
