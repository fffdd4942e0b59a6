"""The demo's trainer, for the benches that train it: the tiny checkpoint on the embedded questions, as configs/demo.yaml says and with further flags. It is made by the steps of `grpo_jsonl`, and each part is at hand."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from open_r1_kivqa import demo
from open_r1_kivqa.demo.run import CONFIG

if TYPE_CHECKING:
    from open_r1_kivqa.data.jsonl import Rows
    from open_r1_kivqa.prompting import Prompting
    from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer

FLAGS = {
    "config": CONFIG,
    "model_name_or_path": demo.CHECKPOINT,
    "data_file_paths": demo.TRAIN,
    "image_folders": demo.IMAGES,
    "knowledge_base": demo.KNOWLEDGE,
    "save_strategy": "no",
    "report_to": "none",
}


@dataclass
class Parts:
    """A trainer that is ready to train, with a curriculum, and what it was made of. Without --eval_data_file_paths `held_out` is None."""

    trainer: "VLMGRPOTrainer"
    rows: "Rows"
    held_out: "Rows | None"
    prompting: "Prompting"
    rewards: list


def build(flags: dict, trainer_class: type | None = None) -> Parts:
    """The trainer that `flags` ask for.

    Args:
        flags: of `grpo_jsonl`, beside FLAGS and in their place; None leaves one out.
        trainer_class: `VLMGRPOTrainer`, or one derived from it.
    """
    from open_r1_kivqa import grpo_jsonl, recipe
    from open_r1_kivqa.entry import parse
    from open_r1_kivqa.rewards import load_reward_functions
    from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
    from open_r1_kivqa.trainer.rollout import Rollout

    words = [word for name, value in (FLAGS | flags).items() if value is not None for word in (f"--{name}", str(value))]
    data_args, model_args, curriculum_args, _, args = parse(grpo_jsonl.FLAGS, words)
    rewards = load_reward_functions(args.reward_funcs, answer_extraction=args.answer_extraction)
    _, rows, held_out, prompting = recipe.before_the_model(data_args, model_args, args, frozenset())
    curriculum = recipe.curriculum_before_the_model(curriculum_args, data_args, args, rows, rewards, None)
    model, _, processor = recipe.load_model_and_processor(model_args, args.model_init_kwargs)
    trainer = (trainer_class or VLMGRPOTrainer)(
        model,
        rewards,
        args,
        rollout=Rollout(rows, prompting),
        curriculum=curriculum,
        processing_class=processor,
    )
    return Parts(trainer, rows, held_out, prompting, rewards)
