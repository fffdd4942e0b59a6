"""TRL's SFTTrainer for vision-language models on jsonl rows: supervised cold-start training, with the loss on the response only.

Departures from the stock trainer:
- a row is read, its passages chosen and its prompt built when a batch wants it (`PromptCompletions`); the dataset itself holds row numbers;
- every response token of a step weighs the same, on however many ranks and micro-batches (`__init__`);
- a batch without any image also runs where ranks share the vision tower's weights or gradients (`compute_loss`);
- an epoch's order depends on (seed, epoch) alone, and checkpoints resume exactly, their weights included (`_get_train_sampler`, `ResumeMixin`).

Tokenisation and labels are TRL's own collator's.
"""

from collections.abc import Callable
from dataclasses import dataclass

from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from ..data.images import load_image
from ..data.jsonl import Rows
from ..data.samples import Sample
from ..errors import InputError
from ..prompting import Prompting
from ..prompts import build_completion, image_paths
from ..rewards.boxes import scale_boxes
from ..rewards.methods import BOX_METHODS, Scale
from .checkpoints import ResumeMixin, SaveOnSigterm
from .progress import PhaseTimer
from .rollout import ROW, row_dataset
from .sampler import EpochRepeatSampler
from .vision_rows import DummyRowMixin


@dataclass
class PromptCompletions:
    """A transform for a dataset of row numbers: {"row": [numbers]} to TRL's prompt-completion examples.

    Attributes:
        box_scale: from the model's coordinates to a row's original pixels: boxes in responses are written in the model's. None if they are the same.
        epoch: how often each row was drawn before, so that another epoch shows another order; None for held-out rows, whose passages stay the same.
    """

    rows: Rows
    prompting: Prompting
    box_scale: Callable[[Sample], Scale] | None = None
    epoch: int | None = None

    def __call__(self, batch: dict[str, list[int]]) -> dict[str, list]:
        """Columns `prompt` and `completion` (messages of blocks) and `images` (decoded, [] for none), one entry a row."""
        examples = [self.example(number) for number in batch[ROW]]
        return {column: [example[column] for example in examples] for column in ("prompt", "completion", "images")}

    def example(self, number: int) -> dict:
        sample = self.rows[number]
        prompt = self.prompting.prompt(sample, self.prompting.passages(sample, draw=self.epoch))
        images = [load_image(path) for path in image_paths(prompt)]
        # TRL's collator fills image blocks from the column `images`, in order, and wants them empty.
        for message in prompt:
            message["content"] = [
                {"type": "image"} if block["type"] == "image" else block for block in message["content"]
            ]
        return {
            "prompt": prompt,
            "completion": build_completion(sample, lambda text: self.in_model_coordinates(text, sample)),
            "images": images,
        }

    def in_model_coordinates(self, text: str, sample: Sample) -> str:
        if self.box_scale is None or sample.reward_method not in BOX_METHODS:
            return text
        x, y = self.box_scale(sample)
        return scale_boxes(text, (1 / x, 1 / y), whole=True)

    def dataset(self) -> Dataset:
        return row_dataset(self.rows).with_transform(self)


class VLMSFTTrainer(DummyRowMixin, ResumeMixin, SFTTrainer):
    """Supervised training on rows of images, questions, passages and responses.

    Args:
        examples: the training rows; held_out: the evaluation's rows, or None. Evaluation reports the loss and the share of response tokens that are the model's first choice.

    The other arguments are `SFTTrainer`'s.
    """

    def __init__(
        self,
        model,
        args: SFTConfig,
        *,
        examples: PromptCompletions,
        held_out: PromptCompletions | None = None,
        **kwargs,
    ):
        if args.dataloader_persistent_workers:
            raise InputError(
                "--dataloader_persistent_workers would show every epoch the first one's passages, since its workers never hear of the next epoch: leave the flag out."
            )
        if args.train_sampling_strategy not in ("random", "sequential"):
            raise InputError(
                f"--train_sampling_strategy {args.train_sampling_strategy} needs every row's length beforehand, while rows are read when a batch wants them: give random or sequential."
            )
        self.phases = PhaseTimer()
        examples.epoch = 0
        super().__init__(
            model,
            args,
            train_dataset=examples.dataset(),
            eval_dataset=held_out.dataset() if held_out is not None else None,
            **kwargs,
        )
        # TRL divides by the number of response tokens in the whole step, if transformers counts them. For Qwen-VL it doesn't, as the model's own loss could not use the count; then each micro-batch of each
        # rank weighs the same, however few tokens it has.
        self.model_accepts_loss_kwargs = True
        self.add_callback(_TellEpoch(examples))
        self.add_callback(SaveOnSigterm(self))

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy == "sequential":
            return super()._get_train_sampler(train_dataset)
        return EpochRepeatSampler(
            self.train_dataset if train_dataset is None else train_dataset,
            mini_repeat_count=1,
            seed=self.args.sampling_seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    def get_batch_samples(self, *args, **kwargs):
        with self.phases.phase("batches"):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        with self.phases.phase("forward and backward"):
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        if "pixel_values" not in inputs and self.needs_dummy_row():
            # It has no labels: it adds nothing to the loss or to any gradient (its few tokens count in `num_tokens`).
            inputs = self.with_dummy_row(dict(inputs), labels=-100)
        return super().compute_loss(model, inputs, *args, **kwargs)


class _TellEpoch(TrainerCallback):
    """Runs before the epoch's loader starts, so before its workers copy the dataset."""

    def __init__(self, examples: PromptCompletions):
        self.examples = examples

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.examples.epoch = int(state.epoch or 0)
