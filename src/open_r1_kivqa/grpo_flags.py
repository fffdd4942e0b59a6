"""Flags of TRL's GRPO and of transformers that nothing would read here, or that only a traceback in the first step would refuse.

Called from `VLMGRPOConfig`, before and after TRL's own checks.
"""

import dataclasses
import math
from difflib import get_close_matches

from .errors import InputError
from .flags import default_of, refuse_below

GREEDY = "evaluation is greedy and measures rewards, no loss"
NO_LABELS = "the loss of GRPO has no labels"
IDLE = {
    "per_device_eval_batch_size": "evaluation is greedy: say --eval_batch_size_greedy",
    "eval_accumulation_steps": GREEDY,
    "eval_do_concat_batches": GREEDY,
    "eval_use_gather_object": GREEDY,
    "prediction_loss_only": GREEDY,
    "include_for_metrics": GREEDY,
    "batch_eval_metrics": GREEDY,
    "bf16_full_eval": GREEDY,
    "fp16_full_eval": GREEDY,
    "label_smoothing_factor": NO_LABELS,
    "label_names": NO_LABELS,
    "train_sampling_strategy": "GRPO's batches are whole groups in an order of their own (--shuffle_dataset, --curriculum)",
    "length_column_name": "GRPO's batches are whole groups in an order of their own",
    "max_tool_calling_iterations": "completions call no tools",
    "use_transformers_continuous_batching": "it takes no images: say --use_vllm",
    "use_transformers_paged": "it takes no images: say --use_vllm",
    "transformers_continuous_batching_config": "that way to generate takes no images: say --use_vllm",
}
EVALUATES = (
    lambda args: args.eval_steps is not None or str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no",
    "--eval_steps and held-out rows (--val_split_ratio or --eval_data_file_paths)",
)
# A flag's first words: what it acts with, as a test and as a flag.
ACTS_WITH = {
    "eval_max_rows": EVALUATES,
    "eval_batch_size_greedy": EVALUATES,
    "eval_delay": EVALUATES,
    "vllm_": (lambda args: args.use_vllm, "--use_vllm true"),
    "ref_model_": (lambda args: args.sync_ref_model, "--sync_ref_model true"),
    "sapo_": (lambda args: args.loss_type == "sapo", "--loss_type sapo"),
    "vespo_": (lambda args: args.loss_type == "vespo", "--loss_type vespo"),
    "entropy_coef_": (lambda args: args.use_adaptive_entropy, "--use_adaptive_entropy true"),
    "entropy_target": (lambda args: args.use_adaptive_entropy, "--use_adaptive_entropy true"),
    "delta": (
        lambda args: args.loss_type not in ("cispo", "sapo", "vespo"),
        "a loss that clips (--loss_type grpo, bnpo, dr_grpo, dapo or luspo)",
    ),
}
CHOICES = {
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
# Of generate: what has a flag, and what makes of it something that TRL can't read.
OWN_FLAGS = {
    name: f"--{name}"
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")
} | {"max_new_tokens": "--max_completion_length", "max_tokens": "--max_completion_length"}
UNFIT = (
    *("num_return_sequences", "return_dict_in_generate", "stop_strings", "guidance_scale", "prompt_lookup_num_tokens"),
    *("dola_layers", "penalty_alpha", "constraints", "force_words_ids", "num_beam_groups", "low_memory"),
)


def refuse_unread_flags(args) -> None:
    """InputError for a flag of a `VLMGRPOConfig` that is set and has nothing to act on, or that can't act beside another. Before TRL's checks, which fill some of them in."""
    defaults = {one.name: default_of(one) for one in dataclasses.fields(args)}
    given = [name for name, default in defaults.items() if getattr(args, name) != default]
    for name in given:
        if name in IDLE:
            raise InputError(f"--{name} has nothing to act on: {IDLE[name]}. Leave the flag out.")
        for start, (acts, wanted) in ACTS_WITH.items():
            if name.startswith(start) and not acts(args):
                raise InputError(f"--{name} acts only with {wanted}: add that, or leave it out.")
    if args.sync_ref_model and args.fsdp:
        raise InputError(
            "--sync_ref_model with --fsdp: the reference that moves can't be put into checkpoints. Use DeepSpeed, or leave one of them out."
        )


def refuse_unfit_numbers(args) -> None:
    """InputError for a value of a `VLMGRPOConfig` that TRL takes and that fails, or means nothing, once a batch is there."""
    words = str(args.scale_rewards).lower()  # TRL takes truth values, but not as the command line writes them
    args.scale_rewards = {"true": "group", "false": "none"}.get(words, words)
    for name, known in CHOICES.items():
        if getattr(args, name) not in known:
            raise InputError(f"--{name} {getattr(args, name)!r} is unknown: give one of {', '.join(known)}.")
    ranges = {
        "top_p": (0 < args.top_p <= 1, "above 0 and at most 1"),
        "min_p": (args.min_p is None or 0 <= args.min_p <= 1, "from 0 to 1"),
        "top_entropy_quantile": (0 <= args.top_entropy_quantile <= 1, "from 0 to 1"),
        "ref_model_mixup_alpha": (0 <= args.ref_model_mixup_alpha <= 1, "from 0 to 1"),
        "repetition_penalty": (0 < args.repetition_penalty < math.inf, "above 0"),
    }
    for name, (good, wanted) in ranges.items():
        if not good:
            raise InputError(f"--{name} {getattr(args, name)}: a number {wanted} is wanted.")
    refuse_below(args, 0, "top_k", "epsilon", "epsilon_high", "delta", "off_policy_mask_threshold")
    refuse_below(args, 1, "ref_model_sync_steps")
    if args.loss_type == "cispo" and (args.epsilon_high is None or args.epsilon_high < 1):
        value = args.epsilon if args.epsilon_high is None else args.epsilon_high
        raise InputError(
            f"--loss_type cispo cuts the ratio itself to --epsilon_high, here {value}, so every gradient would be multiplied by it: give --epsilon_high 5 (TRL's advice), or another number above 1."
        )


def refuse_unfit_weights(args) -> None:
    """InputError for --reward_weights that are no finite number for each reward."""
    weights = args.reward_weights
    if weights is None:
        return
    if len(weights) != len(args.reward_funcs):
        raise InputError(
            f"--reward_weights has {len(weights)} numbers for the {len(args.reward_funcs)} rewards {', '.join(args.reward_funcs)}: give one for each."
        )
    if not all(math.isfinite(weight) for weight in weights):
        raise InputError(f"--reward_weights {' '.join(map(str, weights))}: finite numbers are wanted.")


def refuse_unfit_generation(args) -> None:
    """InputError for --generation_kwargs, a dict by now, that go round a flag, that `generate` doesn't know, or whose outcome TRL can't read."""
    from transformers import GenerationConfig

    known = vars(GenerationConfig())
    for name in args.generation_kwargs or {}:
        if name in OWN_FLAGS:
            raise InputError(
                f"--generation_kwargs: {name} has a flag of its own, which log-probs and checks go by: say {OWN_FLAGS[name]}."
            )
        if args.use_vllm:
            continue
        if name in UNFIT:
            raise InputError(
                f"--generation_kwargs: {name} gives no plain batch of completions, one for each row: leave it out."
            )
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise InputError(f"--generation_kwargs: generate has no setting {name}{hint}")
