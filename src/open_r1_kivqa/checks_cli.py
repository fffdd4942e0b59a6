"""`kivqa check`: all that is wrong with data, images and knowledge base, and how long the prompts are, before a run.

Exit code 0 if nothing is wrong, 1 if something is, 2 if a flag cannot be used.
"""

import argparse
import contextlib
import json
import sys

PIXEL_LIMIT = 178_956_970  # data/verdicts.py's, which is not imported before it is needed
MAX_COMPLETION_LENGTH = 512  # TRL's


def parser() -> argparse.ArgumentParser:
    """The command's flags; names and defaults are those of training (arguments.py)."""
    flags = argparse.ArgumentParser(prog="kivqa check", description=__doc__.partition("\n")[0], allow_abbrev=False)
    data = flags.add_argument_group("data")
    data.add_argument("--data_file_paths", required=True, help="jsonl files, separated by ':'")
    data.add_argument(
        "--image_folders", default="", help="one for each data file, separated by ':', or a single one for all"
    )
    data.add_argument(
        "--reward_method",
        help="one for each data file, separated by ':', or a single one for all (default: by --task_type, as in training)",
    )
    data.add_argument("--knowledge_base", help="jsonl file of articles that candidates and evidence must name")
    data.add_argument(
        "--passage_images",
        type=int,
        default=0,
        help="look at the pictures of articles too, of the first so many passages that prompts show (default: %(default)s)",
    )
    data.add_argument(
        "--pixel_limit",
        type=int,
        default=PIXEL_LIMIT,
        help="refuse an image with more pixels (default: %(default)s, where Pillow refuses it)",
    )
    data.add_argument(
        "--needs_response", action="store_true", help="every row must end with a gpt turn, as for supervised training"
    )
    data.add_argument(
        "--answers_optional",
        action="store_true",
        help="rows may lack a reference answer, as those of a test split; evaluate_jsonl.py answers them without a score",
    )
    tokens = flags.add_argument_group("tokens, counted if a model is given")
    tokens.add_argument("--model_name_or_path", help="model whose processor counts; its weights are not loaded")
    tokens.add_argument(
        "--model_revision", default="main", help="branch, tag or commit on the hub (default: %(default)s)"
    )
    tokens.add_argument("--min_pixels", type=int, help="smallest image area after resizing (Qwen)")
    tokens.add_argument("--max_pixels", type=int, help="largest image area after resizing (Qwen)")
    tokens.add_argument("--max_anyres_num", type=int, help="largest number of tiles (InternVL)")
    tokens.add_argument(
        "--max_completion_length",
        type=int,
        default=MAX_COMPLETION_LENGTH,
        help="tokens that a prompt must leave free (default: %(default)s, as TRL)",
    )
    tokens.add_argument(
        "--task_type",
        help="prompt template, which decides the reward method as well (default: kivqa with a knowledge base, else default)",
    )
    tokens.add_argument("--system_prompt", help="in place of the template's; '' for none")
    tokens.add_argument(
        "--context_level", default="retrieved", help="which passages prompts show (default: %(default)s)"
    )
    tokens.add_argument("--num_passages", type=int, default=5, help="how many of them (default: %(default)s)")
    tokens.add_argument("--max_passage_tokens", type=int, help="cut each passage to so many tokens, as in training")
    against = flags.add_argument_group("comparison with test rows")
    against.add_argument(
        "--against",
        default="",
        help="jsonl files, separated by ':', that should share no id, image or question with the data",
    )
    against.add_argument("--against_image_folders", default="", help="their image folders (default: --image_folders)")
    output = flags.add_argument_group("output")
    output.add_argument("--all", action="store_true", help="list every problem instead of some examples of each kind")
    output.add_argument("--json", action="store_true", help="print one JSON object; it holds every problem")
    return flags


def main(argv: list[str]) -> int:
    """Runs the check, prints its report and gives the exit code. Raises InputError for a flag that cannot be used."""
    flags = parser().parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # libraries greet on stdout, which belongs to the report
        report = _check(flags)
    if flags.json:
        print(json.dumps(report.to_json()))
    else:
        print("\n".join(report.lines() if not flags.all else report.lines(examples=None)))
    return 1 if report.problems else 0


def _check(flags: argparse.Namespace):
    # Imported here: these take seconds, and --help should not.
    from .data.checks import open_inputs
    from .data.jsonl import split_paths
    from .data.report import ProgressLine
    from .data.shared import compare
    from .data.sources import open_sources, pair_sources
    from .knowledge.context import check_level
    from .prompts import load_template
    from .rewards.methods import TASK_METHODS

    check_level(flags.context_level)
    if flags.task_type is not None:
        load_template(flags.task_type)  # also where no model is there to count its tokens
    if flags.reward_method is None:
        flags.reward_method = TASK_METHODS.get(flags.task_type)
    flags.eval_image_folders = None  # a flag of training
    inputs = open_inputs(
        flags,
        flags,
        data_file_paths=flags.data_file_paths,
        image_folders=flags.image_folders,
        max_completion_length=flags.max_completion_length,
        needs_response=flags.needs_response,
        needs_answer=not flags.answers_optional,
    )
    report = inputs.run(ProgressLine())
    if flags.against:
        folders = flags.against_image_folders or flags.image_folders
        test, problems = open_sources(pair_sources(split_paths(flags.against), split_paths(folders), []))
        training, _ = open_sources(inputs.sources)
        shared, report.shared = compare(training, test)
        report.problems += problems + shared
    return report
