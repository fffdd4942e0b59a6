"""From flags to a curriculum; all that can be refused before a model is loaded."""

from pathlib import Path

from ..data.jsonl import Rows
from ..errors import InputError
from .arguments import CurriculumArguments
from .curriculum import STATE_FILE, Curriculum
from .graph import SampleGraph
from .shown import look, unread


def build_curriculum(
    settings: CurriculumArguments,
    rows: Rows,
    *,
    context_level: str,
    num_passages: int,
    has_knowledge_base: bool,
    group_size: int,
    seed: int,
    leads: bool = True,
) -> Curriculum:
    """The curriculum that the flags ask for, over the training rows.

    Args:
        context_level, num_passages: what prompts show where the flags name no levels, and how many candidates "retrieved" shows.
        group_size: completions a prompt.
        leads: whether this is rank 0, which alone needs the graph and looks at the rows.

    Raises:
        InputError: levels without a knowledge base, a window larger than the data, a graph of other rows, weights that are all zero.
    """
    levels = settings.levels(context_level)
    if settings.curriculum_levels.strip() and not has_knowledge_base:
        raise InputError(
            f"--curriculum_levels {settings.curriculum_levels} shows passages, and there is no --knowledge_base: give it, or --curriculum_levels '' to choose samples alone."
        )
    shown = (
        look(rows, levels.names, num_passages, has_knowledge_base) if leads else unread(len(rows), len(levels.names))
    )
    graph = None
    if settings.curriculum_graph and leads:
        path = settings.curriculum_graph
        graph = SampleGraph.load(path).for_rows(rows.ids, rows.hashes, path)
    return Curriculum(
        rows.ids,
        rows.hashes,
        shown,
        levels,
        settings,
        group_size=group_size,
        seed=seed,
        graph=graph,
        leads=leads,
    )


def restore(curriculum: Curriculum, checkpoint: str) -> None:
    """Take the checkpoint's state over, and say what is new in the data. The trainer loads it again when it resumes; here it can be refused before a model is loaded.

    Raises:
        InputError: the checkpoint has no such state, or one of other data.
    """
    told = curriculum.load(Path(checkpoint) / STATE_FILE)
    if told and curriculum.leads:
        print(told, flush=True)


def refuse_unfit_flags(settings: CurriculumArguments, args, rewards: list[str], checkpoint: str | None = None) -> None:
    """InputError for flags that don't go together with the trainer's.

    Args:
        args: the trainer's `VLMGRPOConfig`. rewards: names of its rewards. checkpoint: what the run goes on from.
    """
    settings.signal_columns(rewards)
    if not args.shuffle_dataset:
        raise InputError(
            "--shuffle_dataset false has nothing to act on: the curriculum draws the rows. Leave the flag out."
        )
    local = args.per_device_train_batch_size * args.steps_per_generation
    if settings.dynamic_sampling_rounds > 1 and local % args.num_generations:
        raise InputError(
            f"--dynamic_sampling_rounds {settings.dynamic_sampling_rounds} chooses whole groups, and a process generates {local} completions (--per_device_train_batch_size x --steps_per_generation), "
            f"which is no multiple of --num_generations {args.num_generations}: make it one."
        )
    if args.save_on_each_node:
        raise InputError(
            "--save_on_each_node writes checkpoints on nodes that know nothing of the curriculum, which rank 0 alone keeps: leave it out, and give an --output_dir that all nodes share."
        )
    if settings.curriculum_reset and checkpoint is None:
        raise InputError(
            "--curriculum_reset goes with --resume_from_checkpoint, which is missing: a fresh run has a fresh curriculum."
        )
