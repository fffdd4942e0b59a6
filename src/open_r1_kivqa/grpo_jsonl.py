"""GRPO on jsonl rows of knowledge-based visual questions.

    torchrun --nproc_per_node 8 src/open_r1_kivqa/grpo_jsonl.py --config configs/kivqa.yaml \
        --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --deepspeed local_scripts/zero3.json \
        --data_file_paths a.jsonl:b.jsonl --image_folders images_a:images_b --knowledge_base wiki.jsonl

Every flag: arguments.py, curriculum/arguments.py, rewards/arguments.py, and TRL's GRPOConfig. Bad input ends the run with one message and exit code 2 before a model is loaded.
"""

from dataclasses import replace
from pathlib import Path

from open_r1_kivqa.arguments import DataArguments, VLMGRPOConfig, VLMModelConfig
from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.data.checks import ensure_checked
from open_r1_kivqa.entry import parse, parse_some, refuse_deepspeed_without_ranks, run, start_deepspeed
from open_r1_kivqa.node_ties import watched
from open_r1_kivqa.nodes import compare_nodes
from open_r1_kivqa.rewards.arguments import RewardArguments
from open_r1_kivqa.schedule import longest_completion, parse_stages

SHARED_JUDGE = "WARNING: the judge that rewards rows of method llm also scores the held-out ones: their accuracy may rise because the model learns to please it. Evaluate the end with another judge."
FLAGS = (DataArguments, VLMModelConfig, CurriculumArguments, RewardArguments, VLMGRPOConfig)


def main(argv: list[str] | None = None):
    """Check the data, load the model, train, save. Returns the trainer."""
    # The process group starts when TrainingArguments is built, so the checks, which may take long on rank 0, come before.
    data_args, model_args, curriculum_args, reward_args, flags = parse_some(FLAGS, FLAGS[:4], argv)
    refuse_deepspeed_without_ranks(flags.deepspeed)
    compare_nodes(flags)
    bad_rows = ensure_checked(
        data_args,
        model_args,
        max_completion_length=longest_completion(parse_stages(flags.ptst))
        if flags.ptst
        else flags.max_completion_length,
        levels=curriculum_args.levels(data_args.context_level).names if curriculum_args.curriculum else None,
        has_judge=reward_args.judge_url is not None,
        max_length=flags.vllm_max_model_length if flags.use_vllm else None,
    )
    start_deepspeed(flags.deepspeed)
    return train(*parse(FLAGS, argv), bad_rows)


def train(
    data_args: DataArguments,
    model_args: VLMModelConfig,
    curriculum_args: CurriculumArguments,
    reward_args: RewardArguments,
    args: VLMGRPOConfig,
    bad_rows=frozenset(),
):
    """Train on checked data: what `main` does once the flags are parsed."""
    from open_r1_kivqa.recipe import (
        at_most,
        before_the_model,
        curriculum_before_the_model,
        judge_before_the_model,
        load_model_and_processor,
        write_run_manifest,
    )
    from open_r1_kivqa.rewards.loading import customised, load_reward_functions
    from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
    from open_r1_kivqa.trainer.progress import add_progress
    from open_r1_kivqa.trainer.rollout import Rollout
    from open_r1_kivqa.trainer.validation import GreedyValidation
    from open_r1_kivqa.vlm_modules.boxes import BoxScale
    from open_r1_kivqa.vlm_modules.parts import assert_lora_respects, frozen_parts, lora_config, parameter_report

    if args.is_reward_customized_from_vlm_module:
        args.reward_funcs = customised(args.reward_funcs, data_args.task_type)
    reward_args.refuse_idle(args.reward_funcs)
    judge = judge_before_the_model(reward_args)
    rewards = load_reward_functions(args.reward_funcs, args.answer_extraction, settings=reward_args, judge=judge)
    checkpoint, rows, held_out, prompting = before_the_model(data_args, model_args, args, bad_rows)
    curriculum = curriculum_before_the_model(curriculum_args, data_args, args, rows, rewards, checkpoint)
    if curriculum is not None:
        prompting = replace(prompting, level=curriculum.levels.names[-1])  # what evaluation shows
    if judge is not None and args.eval_strategy != "no" and args.process_index == 0:
        print(SHARED_JUDGE, flush=True)

    model, module, processor = load_model_and_processor(model_args, args.model_init_kwargs)
    box_scale = BoxScale(module, processor)
    if args.beta and model_args.model_revision != "main":  # TRL loads the reference by these
        args.model_init_kwargs = {**(args.model_init_kwargs or {}), "revision": model_args.model_revision}
    validation = None
    if args.eval_strategy != "no":
        if args.metric_for_best_model is None:
            args.metric_for_best_model, args.greater_is_better = "eval_accuracy", True
        validation = GreedyValidation(
            at_most(held_out, args.eval_max_rows, args.seed),
            prompting,
            folder=Path(args.output_dir) / "evaluation",
            max_new_tokens=args.max_completion_length,
            batch_size=args.eval_batch_size_greedy,
            box_scale=box_scale,
            judge=judge,
        )
    trainer = VLMGRPOTrainer(
        model,
        rewards,
        args,
        rollout=Rollout(rows, prompting, box_scale),
        curriculum=curriculum,
        validation=validation,
        processing_class=processor,
        peft_config=lora_config(model, module, model_args),
    )
    assert_lora_respects(trainer.model, module, frozen_parts(model_args))
    add_progress(trainer, trainer.phases, parameter_report(trainer.model, module))
    if trainer.is_world_process_zero():
        write_run_manifest(
            "grpo_jsonl", (data_args, model_args, curriculum_args, reward_args, args), prompting.template, checkpoint
        )

    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(args.output_dir)
    return trainer


if __name__ == "__main__":
    run(watched(main))
