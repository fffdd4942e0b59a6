"""All flags of the library, as dataclasses for TRL's parser: the same names on the command line and in yaml.

`DataArguments` and `VLMModelConfig` serve every entry; training adds one more: `VLMGRPOConfig` (TRL's GRPOConfig) or `VLMSFTConfig` (TRL's SFTConfig), and evaluation its own (evaluation/arguments.py). What TRL and transformers offer
keeps their name, default and meaning; a flag of ours or of VLM-R1 either acts or is refused with a reason.
"""

import os
from dataclasses import dataclass, fields

from trl import GRPOConfig, ModelConfig, SFTConfig

from .data.jsonl import split_paths
from .data.samples import refuse_reserved
from .errors import InputError
from .flags import default_of, flag, refuse_below, refuse_unfit_passages
from .grpo_flags import refuse_unfit_generation, refuse_unfit_numbers, refuse_unfit_weights, refuse_unread_flags
from .knowledge.context import check_level
from .rewards.methods import TASK_METHODS
from .schedule import Stage, longest_completion, parse_stages, refuse_unfit_stages, total_steps
from .sharing import SharingArguments
from .vllm_flags import refuse_unfit_vllm

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")  # TRL's
BEST = ("eval_accuracy", "eval_accuracy_strict", "eval_format")  # what greedy evaluation measures
TRACKERS = ("tensorboard", "wandb", "trackio")
# Of --model_init_kwargs: what has a flag.
FLAGGED = {"dtype", "torch_dtype", "attn_implementation", "revision", "quantization_config", "trust_remote_code"}


@dataclass
class DataArguments:
    """Where the rows come from and how a row becomes a prompt."""

    data_file_paths: str = flag("", "jsonl files, separated by ':'. One row a line; see docs/data.md.")
    image_folders: str = flag(
        "", "Image folders, separated by ':', one for each data file, or a single one for all of them."
    )
    reward_method: str | None = flag(
        None,
        "How answers are scored: one method for each data file, separated by ':', or one for all. Of held-out files the same one, or the task's where files have different ones. A row's own accu_reward_method goes first. "
        "Default: by --task_type, rec iou, ovd od_ap, math math, gui all_match; else 'default'. All of them: docs/rewards.md.",
    )
    knowledge_base: str | None = flag(
        None, "jsonl file of articles; passages named by a row's candidates and evidence are shown in its prompt."
    )
    context_level: str = flag(
        "retrieved",
        "Which passages a prompt shows: 'retrieved' (the first candidates as they are), a number k (every gold passage plus the best others, k in all), 'gold', 'gold_removed' or 'none'.",
    )
    num_passages: int = flag(5, "How many candidates the levels 'retrieved' and 'gold_removed' show.")
    max_passage_tokens: int | None = flag(
        None,
        "Cut the text of each passage to so many tokens, at the end of a sentence; the sentence that holds the answer stays (docs/data.md). Default: whole passages.",
    )
    passage_images: int = flag(
        0,
        "Show the picture of its article before each of the first so many passages. Paths are relative to the knowledge base's folder or to an image folder.",
    )
    task_type: str | None = flag(
        None,
        "Name of the prompt template, or path of a template yaml. Default: kivqa with a knowledge base, else default.",
    )
    system_prompt: str | None = flag(None, "System prompt in place of the template's; '' for none.")
    val_split_ratio: float = flag(
        0.0, "Share of the rows held out for evaluation; no entity and no image is on both sides. Seeded by --seed."
    )
    eval_data_file_paths: str | None = flag(
        None, "Held-out jsonl files, separated by ':', in place of --val_split_ratio."
    )
    eval_image_folders: str | None = flag(None, "Their image folders; default: --image_folders.")
    skip_bad_rows: bool = flag(
        False, "Train without the rows that the checks refuse, and say how many. Default: refuse to start."
    )
    pixel_limit: int = flag(
        178_956_970, "The checks refuse an image with more pixels than this (Pillow's own limit is the default)."
    )
    arrow_cache_dir: str | None = flag(
        None, "VLM-R1's flag; refused: rows are read from the jsonl where it lies, no arrow copy is made."
    )

    def __post_init__(self):
        if not self.data_file_paths:
            raise InputError("--data_file_paths is missing: give one jsonl file, or several separated by ':'.")
        if self.arrow_cache_dir is not None:
            raise InputError(
                "--arrow_cache_dir has nothing to act on: rows are read from the jsonl where it lies. Leave the flag out."
            )
        if not 0.0 <= self.val_split_ratio < 1.0:
            raise InputError(
                f"--val_split_ratio {self.val_split_ratio} is not a share: give a number from 0 to below 1."
            )
        if self.val_split_ratio > 0 and self.eval_data_file_paths:
            raise InputError("--val_split_ratio and --eval_data_file_paths both name held-out rows: give one of them.")
        if self.eval_image_folders and not self.eval_data_file_paths:
            raise InputError("--eval_image_folders goes with --eval_data_file_paths, which is missing.")
        if self.num_passages < 1:
            raise InputError(
                f"--num_passages {self.num_passages}: at least 1 is wanted; use --context_level none to show no passage."
            )
        refuse_unfit_passages(self)
        check_level(self.context_level, "--context_level")
        for name, idle in (("context_level", ("retrieved", "none")), ("num_passages", (5,))):
            if not self.knowledge_base and getattr(self, name) not in idle:
                raise InputError(
                    f"--{name} {getattr(self, name)} acts on passages, and without --knowledge_base there are none: give one, or leave it out."
                )
        refuse_reserved(self.system_prompt or "", "--system_prompt")
        if self.task_type is None:
            self.task_type = "kivqa" if self.knowledge_base else "default"
        if self.reward_method is None:
            self.reward_method = TASK_METHODS.get(self.task_type)

    @property
    def held_out_method(self) -> str | None:
        """How rows of --eval_data_file_paths are scored that name no method: as all training files are; where these differ, as the task says. None means 'default'."""
        methods = set(split_paths(self.reward_method or ""))
        return methods.pop() if len(methods) == 1 else TASK_METHODS.get(self.task_type)


@dataclass
class VLMModelConfig(ModelConfig):
    """TRL's model flags (LoRA, dtype, attention) plus image limits and frozen parts."""

    min_pixels: int | None = flag(
        None, "Smallest image area in pixels that the processors of Qwen-VL and GLM-4.1V resize to (VLM-R1: 3136)."
    )
    max_pixels: int | None = flag(
        None, "Largest image area in pixels that the processors of Qwen-VL and GLM-4.1V resize to (VLM-R1: 12845056)."
    )
    max_anyres_num: int | None = flag(
        None, "Largest number of tiles an image is cut into by the InternVL processors (VLM-R1: 12)."
    )
    freeze_vision_modules: bool = flag(False, "Keep the vision tower as it is, under full fine-tuning and under LoRA.")
    freeze_projector: bool = flag(False, "Keep the projector between vision tower and language model as it is.")
    freeze_language_model: bool = flag(False, "Keep the language model as it is.")

    def __post_init__(self):
        super().__post_init__()
        if not self.model_name_or_path:
            raise InputError(
                "--model_name_or_path is missing: give the folder or the hub name of a vision-language model."
            )
        if self.freeze_vision_modules and self.freeze_projector and self.freeze_language_model:
            raise InputError(
                "All of --freeze_vision_modules, --freeze_projector and --freeze_language_model are set: nothing is left to train."
            )
        if self.use_peft:
            refuse_below(self, 1, "lora_r", "lora_alpha")
            if not 0 <= self.lora_dropout < 1:
                raise InputError(f"--lora_dropout {self.lora_dropout}: a number from 0 to below 1 is wanted.")
        else:
            self._refuse_lora_flags()
        if self.use_peft and self.lora_target_modules is None:
            self.lora_target_modules = "all-linear"
        if not self.use_peft and (self.load_in_4bit or self.load_in_8bit):
            raise InputError("--load_in_4bit and --load_in_8bit train only with LoRA: add --use_peft.")

    def _refuse_lora_flags(self):
        for one in fields(self):
            if one.name.startswith(("lora_", "use_rslora", "use_dora")) and getattr(self, one.name) != default_of(one):
                raise InputError(f"--{one.name} acts only with LoRA: add --use_peft true, or leave it out.")


class OursInTrainer:
    """What both training configs share: checks that stock TRL leaves to chance. Called from their `__post_init__`."""

    def _before_stock_checks(self):
        """What transformers and TRL would take silently, or only stumble over in training."""
        if self.trust_remote_code:
            raise InputError(
                "--trust_remote_code is off for good: use a checkpoint that transformers knows natively (for InternVL: one whose name ends in -hf or -HF)."
            )
        refuse_below(self, 0, "learning_rate", "weight_decay", "max_grad_norm", "seed", "dataloader_num_workers")
        refuse_below(self, 1, "per_device_train_batch_size", "per_device_eval_batch_size")
        refuse_below(self, 1, "gradient_accumulation_steps")
        for name in ("save_steps", "eval_steps", "logging_steps"):  # transformers takes 0 for another flag's value
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise InputError(f"--{name} {getattr(self, name)}: a number above 0 is wanted.")
        if self.max_steps != -1:
            refuse_below(self, 1, "max_steps")
        elif not self.num_train_epochs > 0:
            raise InputError(f"--num_train_epochs {self.num_train_epochs}: a number above 0 is wanted.")
        if self.enable_jit_checkpoint:
            raise InputError(
                "--enable_jit_checkpoint has nothing to act on: on SIGTERM each run saves, where it can be resumed from. Leave the flag out."
            )
        if self.use_liger_kernel:
            from transformers.utils import is_liger_kernel_available

            if not is_liger_kernel_available():
                raise InputError("--use_liger_kernel: pip install liger-kernel, or leave the flag out.")
        # transformers ignores --eval_steps unless the strategy is set as well.
        if self.eval_steps is not None and str(getattr(self.eval_strategy, "value", self.eval_strategy)) == "no":
            self.eval_strategy = "steps"
        if self.eval_on_start and str(getattr(self.eval_strategy, "value", self.eval_strategy)) == "no":
            raise InputError(
                "--eval_on_start needs --eval_steps and held-out rows (--val_split_ratio or --eval_data_file_paths)."
            )

    @property
    def sampling_seed(self) -> int:
        """What the order of rows is drawn from: --data_seed, or --seed without it."""
        return self.seed if self.data_seed is None else self.data_seed

    def _after_stock_checks(self):
        """`report_to` is a list by now, and what was JSON a dict."""
        doubled = FLAGGED & set(self.model_init_kwargs or {})
        if doubled:
            raise InputError(
                f"--model_init_kwargs: {', '.join(sorted(doubled))} has a flag of its own (--dtype, --attn_implementation, --model_revision, --load_in_4bit): leave it out there."
            )
        from transformers.integrations import get_available_reporting_integrations
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        for tracker in self.report_to:
            if tracker not in INTEGRATION_TO_CALLBACK:
                raise InputError(f"--report_to {tracker} is unknown: give some of {', '.join(TRACKERS)}, or none.")
            if tracker not in get_available_reporting_integrations():
                raise InputError(
                    f"--report_to {tracker} is not installed: pip install {tracker}, or leave the flag out."
                )
        if self.world_size != world_size():
            raise InputError(
                f"{world_size()} ranks were started, but on {self.device} each would train on its own, since transformers joins ranks on GPUs only unless it is told otherwise: add --use_cpu true to train on CPUs; where there are GPUs, see why torch does not find them."
            )


@dataclass
class VLMGRPOConfig(OursInTrainer, SharingArguments, GRPOConfig):
    """TRL's GRPO flags, unchanged, plus rewards by name and greedy evaluation."""

    report_to: None | str | list[str] = flag("tensorboard", "Trackers: tensorboard, wandb, trackio, or none.")
    logging_steps: float = flag(1, "Log every so many steps.")
    reward_funcs: list[str] = flag(
        ["accuracy", "format"],
        "Rewards: names of open_r1_kivqa.rewards.REWARDS, or path/to/file.py:function of your own.",
    )
    answer_extraction: str = flag(
        "strict",
        "Which part of a completion the accuracy reward reads: 'strict' (the one answer block after the one </think>) or 'lenient' (the last answer block, else the last line).",
    )
    is_reward_customized_from_vlm_module: bool = flag(
        False,
        "VLM-R1's flag: with --task_type rec the reward 'format' is 'format_rec', which also wants a box as json. Refused for other tasks, which have no such reward.",
    )
    log_multimodal: bool = flag(
        False, "Must stay off: TRL gathers images on the ranks that have some, and hangs when others have none."
    )
    eval_batch_size_greedy: int = flag(32, "Prompts per process in one greedy batch of evaluation.")
    ptst: str | None = flag(
        None,
        "Stages of one run as steps:completion tokens:completions a prompt, as 100:4096:16,100:8192:8,100:16384:4 (Vision-R1). Sets --max_steps, --num_generations and --max_completion_length.",
    )
    eval_max_rows: int | None = flag(None, "Evaluate on at most so many held-out rows, drawn once with --seed.")

    def __post_init__(self):
        stages = self._set_by_stages() if self.ptst else ()
        refuse_unread_flags(self)
        self._before_stock_checks()
        refuse_below(self, 1, "num_iterations", "steps_per_generation", "generation_batch_size")
        refuse_below(self, 1, "max_completion_length", "eval_batch_size_greedy", "eval_max_rows")
        self.check_sharing()
        refuse_below(self, 0, "beta")
        if self.sync_ref_model and self.beta == 0:
            raise InputError(
                "--sync_ref_model has no reference model to act on with --beta 0.0 (the default; VLM-R1's is 0.04): give a --beta above 0, or leave the flag out."
            )
        if not self.temperature > 0:
            raise InputError(f"--temperature {self.temperature}: a number above 0 is wanted.")
        if self.loss_type not in LOSS_TYPES:
            raise InputError(f"--loss_type {self.loss_type!r} is unknown: give one of {', '.join(LOSS_TYPES)}.")
        refuse_unfit_numbers(self)
        refuse_unfit_weights(self)
        self._check_metric_for_best_model()
        if self.answer_extraction not in ("strict", "lenient"):
            raise InputError(f"--answer_extraction {self.answer_extraction!r} is unknown: give strict or lenient.")
        if self.num_generations_eval is not None:
            raise InputError(
                "--num_generations_eval has nothing to act on: evaluation is greedy, one completion a prompt. Leave the flag out."
            )
        if self.num_generations < 2:
            raise InputError(
                f"--num_generations {self.num_generations}: a group needs at least 2 completions, or every advantage is 0."
            )
        if self.remove_unused_columns:
            raise InputError(
                "--remove_unused_columns would drop the row numbers that prompts are built from: leave the flag out."
            )
        if self.log_multimodal:
            raise InputError(
                "--log_multimodal hangs when some ranks have rows without images (TRL gathers images on the others only): leave the flag out; --log_completions records image paths."
            )
        if self.use_vllm:
            refuse_unfit_vllm(self)
        # The stock check wants the evaluation batch to hold whole groups; greedy evaluation has groups of one.
        self.num_generations_eval = 1
        super().__post_init__()
        self._after_stock_checks()
        refuse_unfit_generation(self)
        self.check_passes()
        self.refuse_checkpoints_between_generations()
        if stages:
            refuse_unfit_stages(
                stages,
                per_device=self.per_device_train_batch_size,
                steps_per_generation_batch=self.steps_per_generation_batch,
            )

    def _set_by_stages(self) -> tuple[Stage, ...]:
        """The stages of --ptst, which decide three other flags: these are left at their defaults, or say the same."""
        stages = parse_stages(self.ptst)
        decided = {
            "max_steps": total_steps(stages),
            "num_generations": stages[0].num_generations,
            "max_completion_length": longest_completion(stages),
        }
        for name, value in decided.items():
            given, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if given not in (default, value):
                raise InputError(
                    f"--{name} {given} and --ptst {self.ptst}, which makes it {value}: leave one of them out, or give --{name} {value}."
                )
            setattr(self, name, value)
        return stages

    def _check_metric_for_best_model(self):
        """transformers would look for a loss, which greedy evaluation has not."""
        metric = self.metric_for_best_model
        if metric is None and (self.load_best_model_at_end or self.lr_scheduler_type == "reduce_lr_on_plateau"):
            metric = "eval_accuracy"
        if metric is None:
            return
        metric = metric if metric.startswith("eval_") else f"eval_{metric}"
        if metric not in BEST and not metric.startswith("eval_accuracy/"):
            raise InputError(
                f"--metric_for_best_model {self.metric_for_best_model} is unknown: give one of {', '.join(BEST)}, or eval_accuracy/ and the name of a split."
            )
        self.metric_for_best_model = metric

    def refuse_checkpoints_between_generations(self):
        """A checkpoint inside a generation batch cannot be resumed exactly: the rest of its completions is not saved.

        One generation batch feeds `steps_per_generation * num_iterations` micro-batches, that is this number divided by `gradient_accumulation_steps` optimizer steps.
        """
        micro_batches = self.steps_per_generation * self.num_iterations
        every = (
            micro_batches // self.gradient_accumulation_steps
            if micro_batches % self.gradient_accumulation_steps == 0
            else micro_batches
        )
        every = max(1, every)
        if micro_batches < self.gradient_accumulation_steps and self.gradient_accumulation_steps % micro_batches == 0:
            every = 1  # several generation batches in each optimizer step
        self.steps_per_generation_batch = every
        for name, strategy in (("save_steps", self.save_strategy), ("eval_steps", self.eval_strategy)):
            steps = getattr(self, name)
            if getattr(strategy, "value", strategy) != "steps" or not steps:
                continue
            if steps != int(steps) or int(steps) % every:
                below = int(steps) // every * every
                nearest = f"{below} or {below + every}" if below > 0 else f"{every}"
                raise InputError(
                    f"--{name} {steps} falls inside a generation batch, from where a run cannot be resumed exactly: one generation batch feeds {every} optimizer steps here "
                    f"(steps_per_generation {self.steps_per_generation} x num_iterations {self.num_iterations} / gradient_accumulation_steps {self.gradient_accumulation_steps}). Use {nearest}."
                )


@dataclass
class VLMSFTConfig(OursInTrainer, SFTConfig):
    """TRL's SFT flags for cold-start training. The loss covers the response only."""

    report_to: None | str | list[str] = flag("tensorboard", "Trackers: tensorboard, wandb, trackio, or none.")
    max_length: int | None = flag(None, "Must stay unset: cutting a row would cut image tokens or the response away.")

    def __post_init__(self):
        self._before_stock_checks()
        if self.max_length is not None:
            raise InputError(
                "--max_length would cut image tokens or the response away: leave it out, and let `kivqa check` find rows that are too long."
            )
        if self.packing or self.padding_free:
            raise InputError("--packing and --padding_free don't support images in TRL's SFTTrainer: leave them out.")
        if self.completion_only_loss is False or self.assistant_only_loss:
            raise InputError(
                "Cold-start training takes the loss on the response only: leave --completion_only_loss and --assistant_only_loss out."
            )
        self.remove_unused_columns = False  # the collator reads columns that no model signature names
        super().__post_init__()
        self._after_stock_checks()


def world_size() -> int:
    """Number of ranks torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
