"""Builds a trainer on the small data set, for the tests of this folder."""

from pathlib import Path

import numpy as np

from open_r1_kivqa.arguments import VLMGRPOConfig, VLMModelConfig
from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.curriculum.build import build_curriculum
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.recipe import load_model_and_processor
from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
from open_r1_kivqa.trainer.rollout import Rollout
from open_r1_kivqa.vlm_modules.parts import lora_config


def vowels(prompts, completions, **kwargs):
    """A reward that a random model gets in varying amounts."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(text.count(vowel) for vowel in "aeiou") / 20 for text in texts]


def config(output_dir: Path | str, **options) -> VLMGRPOConfig:
    defaults = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "max_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 7,
    }
    return VLMGRPOConfig(**{**defaults, **options})


def make_trainer(
    model_path: str,
    flags: dict[str, str],
    args: VLMGRPOConfig,
    model_flags: dict | None = None,
    curriculum: dict | None = None,
    **options,
) -> VLMGRPOTrainer:
    """A trainer as grpo_jsonl.py builds it, with the reward above unless `reward_funcs` says otherwise.

    Args:
        curriculum: fields of `CurriculumArguments`; None for none.
    """
    model_args = VLMModelConfig(model_name_or_path=model_path, **(model_flags or {}))
    model, module, processor = load_model_and_processor(model_args)
    rollout = Rollout(
        Rows.open([flags["data_file_paths"]], [flags["image_folders"]], None),
        Prompting(
            load_template("kivqa"),
            seed=args.seed,
            kb=KnowledgeBase.open(flags["knowledge_base"]),
            system_prompt="",
            num_passages=2,
        ),
    )
    if curriculum is not None:
        options["curriculum"] = build_curriculum(
            CurriculumArguments(curriculum=True, **{"curriculum_window": 4, **curriculum}),
            rollout.rows,
            context_level="retrieved",
            num_passages=2,
            has_knowledge_base=True,
            group_size=args.num_generations,
            seed=args.seed,
            leads=args.process_index == 0,
        )
    return VLMGRPOTrainer(
        model,
        options.pop("reward_funcs", [vowels]),
        args,
        rollout=rollout,
        processing_class=processor,
        peft_config=lora_config(model, module, model_args),
        **options,
    )


def write_ring(flags: dict[str, str], path: Path) -> str:
    """A graph of the rows in which each is similar to the one before and the one after it."""
    rows = Rows.open([flags["data_file_paths"]], [flags["image_folders"]], None)
    places = np.arange(len(rows))
    edges = np.concatenate([places, places]), np.concatenate([np.roll(places, 1), np.roll(places, -1)])
    weights = np.linspace(0.2, 1, 2 * len(rows))
    SampleGraph.from_edges(np.array(rows.ids), rows.hashes, *edges, weights, {"kind": "ring"}).save(path)
    return str(path)


def record_completions(trainer: VLMGRPOTrainer) -> None:
    """Replace sampling: a completion depends on its place in the global batch and on the step, on no random generator."""
    encode = trainer.processing_class.tokenizer.encode
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"

    def text(place: int, step: int) -> str:
        return "".join(letters[(7 * place + 3 * i + step) % 36] for i in range(2 + place % 3))

    def recorded(prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        first = trainer.accelerator.process_index * len(prompt_ids)
        places = range(first, first + len(prompt_ids))
        step = trainer.state.global_step
        return [[*encode(text(place, step)), trainer.eos_token_ids[0]] for place in places], None

    trainer._generate_single_turn = recorded


def letters_reward(prompts, completions, **kwargs):
    """A reward of recorded completions: their letters' codes, modulo 17, in [0, 1)."""
    texts = [completion[0]["content"] for completion in completions]
    return [(sum(map(ord, text)) % 17) / 17 for text in texts]


def losses(trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer) -> dict:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
