"""TRL's GRPOTrainer for vision-language models on jsonl rows.

Departures from the stock trainer, each a small override:
- prompts are built from row numbers when a generation batch is made (`_generate_and_score_completions`), and a curriculum draws the rows at that moment (`CurriculumMixin`, `DynamicSamplingMixin`);
- images are decoded the same way as in evaluation and in the checks (`_tokenize_prompts`), and each is preprocessed once (`_generate_and_score_completions`);
- batches may mix rows with and without images, also under ZeRO-3 (`_generate`, `_get_per_token_logps_and_entropies`);
- a prompt is computed once for all of its completions, in a micro-batch and in generation (`SharedPrefixMixin`, `SharedPrefillMixin`), and a frozen vision tower sees a picture once a generation batch (`ImageFeaturesMixin`);
- an epoch's order depends on (seed, epoch) alone, checkpoints hold all that the next step needs, and resuming loads the weights (`_get_train_sampler`, `ResumeMixin`);
- evaluation is greedy accuracy on held-out rows instead of the loss of sampled completions (`evaluate`);
- completions come from vLLM with --use_vllm, right with images (`VLLMRolloutMixin`), and hold no token of an image (`VisionTokensMixin`);
- a schedule of stages changes completion length and group size on the way (`StagesMixin`);
- a reward that some completions of a group lack counts for nothing there, instead of as 0, and the table of completions names the row, its images and its level, with prompts as texts (`_calculate_rewards`, `log`).

Without a `rollout` none of this acts, and a seeded run equals the stock trainer's bit for bit.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..curriculum.callback import CurriculumCallback
from ..curriculum.curriculum import STATE_FILE, Curriculum
from ..curriculum.observations import ObservationLog
from ..errors import InputError
from ..prompts import as_text, decode_images
from ..schedule import parse_stages
from ..vlm_modules import module_for
from .checkpoints import KeepBest, ResumeMixin, SaveOnSigterm, WaitForBoundary, read_marker
from .curriculum_rows import CurriculumMixin
from .dynamic_sampling import DynamicSamplingMixin
from .image_features import ImageFeaturesMixin
from .pictures_once import once_per_picture
from .progress import PhaseTimer
from .reference import load_reference, save_reference
from .rollout import ROW, Rollout, row_dataset
from .sampler import EpochRepeatSampler
from .shared_prefill import SharedPrefillMixin
from .shared_prefix import SharedPrefixMixin
from .stages import StageCallback, StagesMixin
from .vision_rows import DummyRowMixin, slice_vision
from .vision_tokens import VisionTokensMixin
from .vllm_rollout import VLLMRolloutMixin

ROLLOUT_STATE = "rollout.npz"


class VLMGRPOTrainer(
    StagesMixin,
    CurriculumMixin,
    DynamicSamplingMixin,
    ImageFeaturesMixin,
    SharedPrefixMixin,
    DummyRowMixin,
    SharedPrefillMixin,
    VisionTokensMixin,
    VLLMRolloutMixin,
    ResumeMixin,
    GRPOTrainer,
):
    """GRPO on rows of images, questions and passages.

    Args:
        rollout: turns row numbers into prompts; None to train on a `train_dataset` as TRL does.
        curriculum: draws the rows; None to go through them in shuffled epochs. Over the rollout's rows.
        validation: called at each evaluation with this trainer, on every rank; returns metrics whose names start with "eval_". None for TRL's evaluation.

    The other arguments are `GRPOTrainer`'s.
    """

    def __init__(
        self,
        model,
        reward_funcs,
        args: GRPOConfig,
        *,
        rollout: Rollout | None = None,
        curriculum: Curriculum | None = None,
        validation: Callable[["VLMGRPOTrainer"], dict[str, float]] | None = None,
        **kwargs,
    ):
        self.rollout = rollout
        self.curriculum = curriculum
        self.validation = validation
        self.phases = PhaseTimer()
        if rollout is not None:
            if args.cast_lm_head_to_fp32 and model.config.tie_word_embeddings:
                raise InputError(
                    "--cast_lm_head_to_fp32 needs an output head of its own, and this model's is its embedding of tokens (tie_word_embeddings): leave the flag out."
                )
            kwargs["train_dataset"] = row_dataset(rollout.rows)
        if validation is not None:
            kwargs["eval_dataset"] = Dataset.from_dict({ROW: [0]})  # transformers wants one to be there
        super().__init__(model, reward_funcs, args, **kwargs)
        if rollout is not None:
            self.module = module_for(self.model.config)
            if self.use_vllm:
                self.prepare_vllm()
            self.forbid_vision_tokens()
            self.keeps_groups = args.keep_groups
            if args.shared_prefill:
                self.prepare_shared_prefill()
            if args.shared_prefix:
                self.prepare_shared_prefix()
            self.prepare_image_features()
            self.add_callback(WaitForBoundary(self))
            self.add_callback(SaveOnSigterm(self))
        if validation is not None:
            self.add_callback(KeepBest())
        if rollout is not None and args.ptst:
            self.stages = parse_stages(args.ptst)
            self.add_callback(StageCallback(self))  # before the curriculum's, which weighs by the group's size
        if curriculum is not None:
            self.signal_columns = curriculum.settings.signal_columns(self.reward_func_names)
            self.observations = ObservationLog(Path(self.args.output_dir) / "curriculum" / "observations.jsonl")
            self.add_callback(CurriculumCallback(curriculum, self.observations, self.phases.phase))

    # Rows and their order

    def _get_train_sampler(self, dataset=None):
        if self.rollout is None:
            return super()._get_train_sampler(dataset)
        return EpochRepeatSampler(
            self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.args.num_generations,
            batch_size=self.prompts_per_batch,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset and self.curriculum is None,  # a curriculum reads places from the numbers
            seed=self.args.sampling_seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    def _generate_and_score_completions(self, inputs):
        self.forget_features()
        with once_per_picture(self.processing_class):
            if self.rollout is not None and ROW in inputs[0]:
                inputs = self._rows_of(self.rows_of_stage(inputs))
            with self.phases.phase("images and advantages"):  # what is left of it when the phases below are taken out
                return super()._generate_and_score_completions(inputs)

    def _rows_of(self, inputs: list[dict]) -> list[dict]:
        """The rows, prompts included, that this rank's entries of the dataset stand for."""
        if self.curriculum is None:
            with self.phases.phase("prompts"):
                return self.rollout.build(inputs, gather_object([entry[ROW] for entry in inputs]))
        rounds = self.curriculum.settings.dynamic_sampling_rounds
        places = self.places_of(inputs)
        return self.draw_rows(places) if rounds == 1 else self.teaching_rows(places, rounds)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self.prepared is not None:
            (_, rewards), self.prepared = self.prepared, None
            return rewards
        if self.rollout is not None:
            for column in ("sample_id", "image_path", "passages", "level"):
                self._log_completion_extra(column, [row[column] for row in inputs])
        with self.phases.phase("rewards"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.rollout is not None and self.model.training:
            rewards = fill_missing(rewards, self.num_generations)
        if self.batch is not None and self.model.training:
            with self.phases.phase("curriculum"):
                self.observe(rewards, inputs, completion_ids_list)
        return rewards

    # Rows with and without images

    def _tokenize_prompts(self, prompts):
        return super()._tokenize_prompts(prompts if self.rollout is None else decode_images(prompts))

    def _generate(self, prompts):
        if self.prepared is not None:
            return self.prepared[0]
        with self.phases.phase("generation"), self.features_reused(self.model):
            *rest, images, tool_images = super()._generate(prompts)
        self.phases.add_tokens(sum(len(ids) for ids in rest[1]))
        if images is not None:  # the processor takes an empty list for a row without images, not None
            images = [row_images or [] for row_images in images]
        return *rest, images, tool_images

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.phases.phase("loss"):
            return super().training_step(model, inputs, num_items_in_batch)

    def _get_per_token_logps_and_entropies(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size=None,
        compute_entropy=False,
        compute_aux_loss=False,
        **vision,
    ):
        phase = "loss" if torch.is_grad_enabled() else "reference and old log-probs"
        with self.phases.phase(phase), self.features_reused(model):
            if self.shares_prefix:
                return self._logps_of_shared_prompts(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, vision
                )
            return self._logps_of_mixed_rows(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **vision,
            )

    def _logps_of_mixed_rows(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size,
        *,
        compute_entropy,
        compute_aux_loss,
        **vision,
    ):
        """Log-probs and entropies, (batch, logits_to_keep) each, for any mix of rows with and without images."""
        stock = super()._get_per_token_logps_and_entropies
        num_images = vision.get("num_images") or [0] * len(input_ids)
        size = batch_size or len(input_ids)
        starts = range(0, len(input_ids), size)
        imageless = [sum(num_images[start : start + size]) == 0 for start in starts]
        text_only = vision.get("num_images") is None
        if not any(imageless) or (text_only and not self.needs_dummy_row()):
            return stock(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **vision,
            )
        parts = []
        for start, without_image in zip(starts, imageless, strict=True):
            end = min(start + size, len(input_ids))
            tokens = {"input_ids": input_ids[start:end], "attention_mask": attention_mask[start:end]}
            inputs = {**tokens, **slice_vision(vision, start, end)}
            if without_image and self.needs_dummy_row():
                inputs = {**self.with_dummy_row(tokens), "num_images": [0] * (end - start) + [1]}
            logps, entropies, aux_loss = stock(
                model,
                logits_to_keep=logits_to_keep,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **inputs,
            )
            parts.append((logps[: end - start], entropies[: end - start] if compute_entropy else None, aux_loss))
        logps, entropies, aux_losses = zip(*parts, strict=True)
        return (
            torch.cat(logps),
            torch.cat(entropies) if compute_entropy else None,
            torch.stack(aux_losses).mean() if compute_aux_loss else None,
        )

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs = logs | self.stage_metrics()
        if self.curriculum is not None and "loss" in logs and self.accelerator.is_main_process:
            logs = logs | self.curriculum.metrics()
        with_table = self.log_completions
        if with_table and self.rollout is not None:
            # Not once more with the figures of an evaluation or of the whole run.
            self.log_completions = "loss" in logs
            # wandb takes no table whose messages hold blocks of different kinds, and ends the run there.
            for column in ("prompt", "completion"):
                self._logs[column] = deque(map(as_text, self._logs[column]), self._logs[column].maxlen)
        super().log(logs, start_time)
        self.log_completions = with_table

    # Evaluation

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        if self.validation is None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        with self.phases.phase("evaluation"):
            metrics = self.validation(self)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints

    def at_boundary(self) -> bool:
        """Whether all completions generated so far were trained on (`_step` counts micro-batches)."""
        return self._step % (self.args.steps_per_generation * self.num_iterations) == 0

    def save_own_state(self, folder: Path) -> None:
        if self.args.sync_ref_model:
            save_reference(self.reference_weights(), folder, writes=self.args.should_save)
        if self.rollout is not None and self.args.should_save:
            np.savez_compressed(folder / ROLLOUT_STATE, **self.rollout.state_dict())
        if self.curriculum is not None and self.args.should_save:
            self.curriculum.save(folder / STATE_FILE)

    def reference_weights(self) -> dict[str, torch.nn.Parameter]:
        """Of the reference, which --sync_ref_model moves, by their names."""
        return dict(self.accelerator.unwrap_model(self.ref_model).named_parameters())

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.rollout is not None:
            with np.load(Path(checkpoint) / ROLLOUT_STATE, allow_pickle=False) as state:
                self.rollout.load_state_dict(dict(state))
            if self.ref_model is not None:
                load_reference(self.reference_weights(), Path(checkpoint))
            if self.stages:
                self.enter_stage(read_marker(Path(checkpoint))["global_step"])
        if checkpoint is not None and self.curriculum is not None and not self.curriculum.settings.curriculum_reset:
            self.curriculum.load(Path(checkpoint) / STATE_FILE)


def fill_missing(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """The rewards with each NaN replaced by the mean of the same reward over the rest of its group; NaN stays where the whole group has none.

    TRL counts a NaN as 0, so a completion whose reward could not be had (a judge that didn't answer) would fall behind its group for nothing. Like this that reward makes it neither better nor worse.

    Args:
        rewards: (prompts · group, rewards), gathered.
    """
    grouped = rewards.view(-1, group, rewards.size(1))
    return torch.where(grouped.isnan(), grouped.nanmean(dim=1, keepdim=True), grouped).view_as(rewards)
