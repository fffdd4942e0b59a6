"""The steps that both training entries share, from flags to a model that is ready to train."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from trl import get_quantization_config

from .arguments import DataArguments, VLMModelConfig
from .data.jsonl import Rows, split_paths
from .data.launch import once_per_launch
from .data.splits import train_validation_split
from .errors import InputError
from .knowledge.base import KnowledgeBase
from .knowledge.budget import PassageBudget
from .knowledge.pictures import PassagePictures
from .manifest import differences, read_manifest, write_manifest
from .prompting import Prompting
from .prompts import load_template
from .rewards.judge import Judge
from .trainer.checkpoints import find_checkpoint, refuse_to_overwrite, refuse_unfit_checkpoint
from .vllm_flags import refuse_model_for_vllm, wait_for_server
from .vlm_modules import module_for
from .vlm_modules.loading import has_processor, load_model, load_processor
from .vlm_modules.parts import freeze_parts, frozen_parts

UNTOLD = ("flags.resume_from_checkpoint", "git.", "devices")  # what may change in a resumed run without a word


def load_rows(data_args: DataArguments, bad_rows: frozenset[int], seed: int) -> tuple[Rows, Rows | None]:
    """Training rows without the bad ones, and held-out rows or None."""
    methods = split_paths(data_args.reward_method or "")
    rows = Rows.open(
        split_paths(data_args.data_file_paths),
        split_paths(data_args.image_folders),
        methods or None,
    )
    if bad_rows:
        rows = rows.subset([i for i in range(len(rows)) if i not in bad_rows])
    if data_args.eval_data_file_paths:
        folders = data_args.eval_image_folders or data_args.image_folders
        method = data_args.held_out_method
        files = split_paths(data_args.eval_data_file_paths)
        return rows, Rows.open(files, split_paths(folders), [method] if method else None)
    if data_args.val_split_ratio > 0:
        train, held_out = train_validation_split(rows, data_args.val_split_ratio, seed)
        return rows.subset(train), rows.subset(held_out)
    return rows, None


def at_most(rows: Rows, number: int | None, seed: int) -> Rows:
    """`number` of the rows, drawn once and in their order; all of them for None."""
    if number is None or number >= len(rows):
        return rows
    return rows.subset(np.sort(np.random.default_rng(seed).choice(len(rows), number, replace=False)))


def prompting_of(data_args: DataArguments, seed: int) -> Prompting:
    """How the flags say that prompts are made, but for `passage_options`, which may take a tokenizer."""
    return Prompting(
        load_template(data_args.task_type),
        seed=seed,
        kb=KnowledgeBase.open(data_args.knowledge_base) if data_args.knowledge_base else None,
        system_prompt=data_args.system_prompt,
        level=data_args.context_level,
        num_passages=data_args.num_passages,
    )


def passage_options(data_args: DataArguments, tokenizer) -> dict:
    """How passages are shown: `budget` (--max_passage_tokens) and `passage_pictures` (--passage_images) of a `Prompting`, each None without its flag.

    Args:
        tokenizer: the model's, which counts for the budget; may be None without one.
    """
    folders = [*split_paths(data_args.image_folders), *split_paths(data_args.eval_image_folders or "")]
    return {
        "budget": PassageBudget.of(tokenizer, data_args.max_passage_tokens),
        "passage_pictures": PassagePictures.of(data_args.passage_images, folders),
    }


def refuse_unsafe_training(model_args: VLMModelConfig, training_args) -> None:
    """What would only fail after the model is loaded, or go wrong unseen.

    Full fine-tuning of bf16 weights needs fp32 masters, which DeepSpeed's bf16 mode keeps and a plain AdamW does not.

    At lr 1e-6 an update is smaller than half the spacing of bf16 numbers near the weight, so it is rounded away and the model never learns.
    """
    if model_args.use_peft and getattr(training_args, "sync_ref_model", False):
        raise InputError(
            "--sync_ref_model has no reference model to move under LoRA, where the reference is the model without its adapter: leave the flag out."
        )
    if getattr(training_args, "reuse_image_features", None) and not model_args.use_peft:  # LoRA may keep off by itself
        if not {"vision", "projector"} <= frozen_parts(model_args):
            raise InputError(
                "--reuse_image_features true needs a vision tower and a projector that don't train: add --freeze_vision_modules true and --freeze_projector true, or leave the flag out."
            )
    half = model_args.dtype in ("bfloat16", "float16", "auto")
    if half and not model_args.use_peft and training_args.deepspeed is None:
        raise InputError(
            f"--dtype {model_args.dtype} with full fine-tuning keeps no fp32 master weights, so small updates are rounded away. Use --dtype float32 (with --bf16 true for the "
            "arithmetic), or --deepspeed local_scripts/zero3.json, or --use_peft."
        )
    if half and not model_args.use_peft and not (training_args.bf16 or training_args.fp16):
        raise InputError(
            f"--dtype {model_args.dtype} under DeepSpeed without --bf16 true keeps no fp32 master weights, so small updates are rounded away. Add --bf16 true."
        )


def before_the_model(data_args: DataArguments, model_args: VLMModelConfig, args, bad_rows: frozenset[int]):
    """All that can be refused before a model is loaded.

    Returns:
        The checkpoint to go on from or None; training rows; held-out rows or None; and how prompts are made.
    """
    refuse_unsafe_training(model_args, args)
    if getattr(args, "use_vllm", False):  # SFT's flags have none
        refuse_model_for_vllm(model_args, args)
    checkpoint = find_checkpoint(args.resume_from_checkpoint, args.output_dir)
    refuse_to_overwrite(args.output_dir, checkpoint)
    refuse_unfit_checkpoint(checkpoint, max_steps=args.max_steps, use_peft=model_args.use_peft)
    rows, held_out = load_rows(data_args, bad_rows, args.seed)
    if args.eval_strategy != "no" and held_out is None:
        raise InputError("--eval_steps needs held-out rows: add --val_split_ratio 0.05 or --eval_data_file_paths.")
    refuse_too_few_rows(rows, args)
    if getattr(args, "use_vllm", False) and args.vllm_mode == "server":
        once_per_launch("vllm server", lambda: wait_for_server(args) or {})
    tokenizer = None if data_args.max_passage_tokens is None else processor_of(model_args).tokenizer
    prompting = replace(prompting_of(data_args, args.seed), **passage_options(data_args, tokenizer))
    return checkpoint, rows, held_out, prompting


def load_model_and_processor(
    model_args: VLMModelConfig, model_init_kwargs: dict | None = None, adapter: str | None = None
):
    """The model with its frozen parts frozen, its family's module, and the processor with the image limits set.

    Args:
        adapter: folder of a LoRA adapter, whose own processor is taken if it has one, since its image limits are those of its training. The adapter itself isn't loaded.
    """
    processor = processor_of(model_args, adapter)
    model = load_model(
        model_args.model_name_or_path,
        dtype=model_args.dtype if model_args.dtype == "auto" else getattr(torch, model_args.dtype),
        attn_implementation=model_args.attn_implementation,
        revision=model_args.model_revision,
        quantization_config=get_quantization_config(model_args),
        **(model_init_kwargs or {}),
    )
    module = module_for(model.config)
    freeze_parts(model, module, **dict.fromkeys(frozen_parts(model_args), True))
    return model, module, processor


def processor_of(model_args: VLMModelConfig, adapter: str | None = None):
    """The processor of the model that the flags name, without the model; `adapter` as for `load_model_and_processor`."""
    return load_processor(
        adapter if adapter and has_processor(adapter) else model_args.model_name_or_path,
        config_of=model_args.model_name_or_path,
        min_pixels=model_args.min_pixels,
        max_pixels=model_args.max_pixels,
        max_anyres_num=model_args.max_anyres_num,
        revision=model_args.model_revision,
    )


def refuse_too_few_rows(rows: Rows, training_args) -> None:
    """InputError where TRL would train on nothing: it drops the rows that don't fill a generation batch."""
    if hasattr(training_args, "generation_batch_size"):
        wanted = training_args.generation_batch_size // training_args.num_generations
        lower = "--per_device_train_batch_size or --steps_per_generation"
    else:
        whole = training_args.per_device_train_batch_size * training_args.world_size
        wanted = whole if training_args.dataloader_drop_last else 1
        lower = "--per_device_train_batch_size, or leave --dataloader_drop_last out"
    if len(rows) < wanted:
        raise InputError(
            f"There are {len(rows)} rows to train on, and one batch takes {wanted} different ones, so no step could be made: give more rows or lower {lower}."
        )


def curriculum_before_the_model(curriculum_args, data_args: DataArguments, args, rows: Rows, rewards, checkpoint):
    """The curriculum that the flags ask for, with the checkpoint's state; None if they ask for none.

    Args:
        rewards: the reward functions. checkpoint: what the run goes on from, or None.
    """
    if not curriculum_args.curriculum:
        return None
    from .curriculum.build import build_curriculum, refuse_unfit_flags, restore

    refuse_unfit_flags(curriculum_args, args, [reward.__name__ for reward in rewards], checkpoint)

    def build(leads: bool):
        curriculum = build_curriculum(
            curriculum_args,
            rows,
            context_level=data_args.context_level,
            num_passages=data_args.num_passages,
            has_knowledge_base=bool(data_args.knowledge_base),
            group_size=args.num_generations,
            seed=args.sampling_seed,
            leads=leads,
        )
        if checkpoint and not curriculum_args.curriculum_reset:
            restore(curriculum, checkpoint)
        return curriculum

    # Rank 0 alone reads the graph. Where it refuses something, the others must not go on to load a model and wait for it.
    built = []

    def lead() -> dict:
        built.append(build(leads=True))
        return {}

    once_per_launch("curriculum", lead)
    return built[0] if built else build(leads=False)


def judge_before_the_model(judge_args) -> Judge | None:
    """The judge that --judge_url names, after one question to it; None without the flag. Raises InputError where it gives no verdict."""
    if judge_args.judge_url is None:
        return None
    judge = Judge.from_flags(judge_args)

    def check() -> dict:
        judge.check()
        return {}

    once_per_launch("judge", check)
    return judge


def write_run_manifest(
    entry: str,
    arguments: tuple,
    template,
    checkpoint: str | None = None,
):
    """manifest.json in the run's folder: what it was made of. Main process only.

    Args:
        arguments: all dataclasses of flags: the data's first, the model's second, the trainer's last.
        checkpoint: what the run goes on from. Prints in what it differs from the run that saved it.
    """
    saved_by = Path(checkpoint).parent / "manifest.json" if checkpoint else None
    before = read_manifest(saved_by) if saved_by and saved_by.is_file() else None
    data_args, model_args, *_, training_args = arguments
    flags = {}
    for one in arguments:
        flags |= one.to_dict() if hasattr(one, "to_dict") else asdict(one)
    files = split_paths(data_args.data_file_paths) + split_paths(data_args.eval_data_file_paths or "")
    write_manifest(
        training_args.output_dir,
        entry=entry,
        flags=flags,
        model=model_args.model_name_or_path,
        data_files=files,
        image_folders=split_paths(data_args.image_folders),
        knowledge_base=data_args.knowledge_base,
        template=template,
    )
    if before is not None:
        found = differences(before, read_manifest(training_args.output_dir))
        changed = [f"{name}: {old} -> {new}" for name, old, new in found if not name.startswith(UNTOLD)]
        if changed:
            print("The run goes on, but not as it began:\n  " + "\n  ".join(changed), flush=True)
