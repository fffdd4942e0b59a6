"""Supervised cold-start training on jsonl rows whose last turn is the response to learn.

    torchrun --nproc_per_node 8 src/open_r1_kivqa/sft_jsonl.py --config configs/sft.yaml \
        --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --deepspeed local_scripts/zero3.json \
        --data_file_paths cold_start.jsonl --image_folders images --output_dir outputs/sft

Every flag: arguments.py, and TRL's SFTConfig. Bad input ends the run with one message and exit code 2 before a model is loaded.
"""

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig, VLMSFTConfig
from open_r1_kivqa.data.checks import ensure_checked
from open_r1_kivqa.entry import parse, parse_some, refuse_deepspeed_without_ranks, run, start_deepspeed
from open_r1_kivqa.node_ties import watched
from open_r1_kivqa.nodes import compare_nodes

FLAGS = (DataArguments, VLMModelConfig, VLMSFTConfig)


def main(argv: list[str] | None = None):
    """Check the data, load the model, train, save. Returns the trainer."""
    # The process group starts when TrainingArguments is built, so the checks, which may take long on rank 0, come before.
    data_args, model_args, flags = parse_some(FLAGS, FLAGS[:2], argv)
    refuse_deepspeed_without_ranks(flags.deepspeed)
    compare_nodes(flags)
    bad_rows = ensure_checked(data_args, model_args, needs_response=True)
    start_deepspeed(flags.deepspeed)
    return train(*parse(FLAGS, argv), bad_rows)


def train(data_args: DataArguments, model_args: VLMModelConfig, args: VLMSFTConfig, bad_rows=frozenset()):
    """Train on checked data: what `main` does once the flags are parsed."""
    from open_r1_kivqa.recipe import before_the_model, load_model_and_processor, write_run_manifest
    from open_r1_kivqa.trainer.progress import add_progress
    from open_r1_kivqa.trainer.sft_trainer import PromptCompletions, VLMSFTTrainer
    from open_r1_kivqa.vlm_modules.boxes import BoxScale
    from open_r1_kivqa.vlm_modules.parts import assert_lora_respects, frozen_parts, lora_config, parameter_report

    checkpoint, rows, held_out, prompting = before_the_model(data_args, model_args, args, bad_rows)

    model, module, processor = load_model_and_processor(model_args, args.model_init_kwargs)
    box_scale = BoxScale(module, processor)
    trainer = VLMSFTTrainer(
        model,
        args,
        examples=PromptCompletions(rows, prompting, box_scale),
        held_out=PromptCompletions(held_out, prompting, box_scale) if held_out is not None else None,
        processing_class=processor,
        peft_config=lora_config(model, module, model_args),
    )
    assert_lora_respects(trainer.model, module, frozen_parts(model_args))
    add_progress(trainer, trainer.phases, parameter_report(trainer.model, module))
    if trainer.is_world_process_zero():
        write_run_manifest("sft_jsonl", (data_args, model_args, args), prompting.template, checkpoint)

    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(args.output_dir)
    return trainer


if __name__ == "__main__":
    run(watched(main))
