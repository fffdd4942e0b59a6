"""Builds a supervised trainer on the small data set, for the tests of several folders."""

import json
from pathlib import Path

from open_r1_kivqa.arguments import VLMModelConfig, VLMSFTConfig
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.recipe import load_model_and_processor
from open_r1_kivqa.trainer.sft_trainer import PromptCompletions, VLMSFTTrainer
from open_r1_kivqa.vlm_modules.parts import lora_config


def with_responses(flags: dict[str, str]) -> dict[str, str]:
    """Give each row of `training_rows.write_data` a response of its own, with tags."""
    rewrite_responses(flags, lambda number: f"<think>flag {number}</think><answer>{number + 7}</answer>")
    return flags


def rewrite_responses(flags: dict[str, str], response) -> None:
    """Row number -> `response(number)` as its last turn."""
    path = Path(flags["data_file_paths"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["conversations"][1]["value"] = response(number)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def config(output_dir: Path | str, **options) -> VLMSFTConfig:
    defaults = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "max_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
    }
    return VLMSFTConfig(**{**defaults, **options})


def examples(flags: dict[str, str], level: str = "2") -> PromptCompletions:
    rows = Rows.open([flags["data_file_paths"]], [flags["image_folders"]], None)
    kb = KnowledgeBase.open(flags["knowledge_base"])
    return PromptCompletions(rows, Prompting(load_template("kivqa"), seed=7, kb=kb, system_prompt="", level=level))


def make_trainer(
    model_path: str, flags: dict[str, str], args: VLMSFTConfig, model_flags: dict | None = None, **options
) -> VLMSFTTrainer:
    """A trainer as sft_jsonl.py builds it."""
    model_args = VLMModelConfig(model_name_or_path=model_path, **(model_flags or {}))
    model, module, processor = load_model_and_processor(model_args)
    return VLMSFTTrainer(
        model,
        args,
        examples=options.pop("examples", None) or examples(flags),
        processing_class=processor,
        peft_config=lora_config(model, module, model_args),
        **options,
    )
