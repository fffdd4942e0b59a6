"""`kivqa bridge`: cold-start data by modality bridging, from questions about pictures to reasoning and answers.

Exit code 0: the rows are written; 1: too many rows failed at the endpoints, or none was kept, and nothing is written (answers are kept, run it again); 2: something given cannot be used.
"""

import argparse
import asyncio
import os
import sys
import time
from types import SimpleNamespace

from ..errors import InputError

PIXEL_LIMIT = 178_956_970  # data/verdicts.py's, which is not imported before it is needed
MLLM_REQUEST = {"temperature": 0.2, "max_tokens": 2048}
REASONER_REQUEST = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 8192}


def parser() -> argparse.ArgumentParser:
    """The command's flags; those of the data have the names and defaults of training (arguments.py)."""
    flags = argparse.ArgumentParser(prog="kivqa bridge", description=__doc__.partition("\n")[0], allow_abbrev=False)
    data = flags.add_argument_group("data")
    data.add_argument("--data_file_paths", required=True, help="jsonl files, separated by ':'")
    data.add_argument("--image_folders", default="", help="one for each data file, separated by ':', or one for all")
    data.add_argument("--reward_method", help="how answers are scored: one for each data file, or one for all")
    data.add_argument(
        "--task_type", choices=("rec", "ovd", "math", "gui"), help="scores answers as training with this task does"
    )
    data.add_argument("--knowledge_base", help="jsonl file of articles; both models see a row's passages")
    data.add_argument(
        "--context_level", default="retrieved", help="which passages, as in training (default: %(default)s)"
    )
    data.add_argument("--num_passages", type=int, default=5, help="how many of them (default: %(default)s)")
    data.add_argument(
        "--max_passage_tokens",
        type=int,
        help="cut each passage to so many tokens of --model_name_or_path, as in training",
    )
    data.add_argument("--model_name_or_path", help="the model to be trained, whose tokenizer counts them")
    data.add_argument(
        "--passage_images",
        type=int,
        default=0,
        help="show the multimodal model the article's picture before each of the first so many passages (default: %(default)s)",
    )
    data.add_argument("--pixel_limit", type=int, default=PIXEL_LIMIT, help="refuse an image with more pixels")
    data.add_argument("--skip_bad_rows", action="store_true", help="leave out rows that the checks refuse")
    data.add_argument("--limit", type=int, help="only so many rows, drawn with --seed, for a try")
    data.add_argument(
        "--seed", type=int, default=42, help="draws --limit, and is sent with each request (default: %(default)s)"
    )
    models = flags.add_argument_group("models, at endpoints that speak OpenAI's chat completions")
    models.add_argument("--mllm_url", required=True, help="base URL, as http://localhost:8000/v1")
    models.add_argument("--mllm_model", required=True, help="multimodal model: writes captions and descriptions")
    models.add_argument("--mllm_api_key_env", help="NAME of the environment variable with its key (default: no key)")
    models.add_argument("--mllm_request", help=f"more fields of a request, as JSON; null takes one out. {MLLM_REQUEST}")
    models.add_argument("--reasoner_url", help="default: --mllm_url")
    models.add_argument("--reasoner_model", help="reasoning model, sees texts only; default: --mllm_model")
    models.add_argument("--reasoner_api_key_env", help="default: the multimodal model's, if the URL is the same")
    models.add_argument("--reasoner_request", help=f"likewise. {REASONER_REQUEST}")
    models.add_argument(
        "--concurrency",
        type=int,
        default=16,
        help="most requests open at the same time at each address (default: %(default)s)",
    )
    models.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one try, all of it (default: %(default)s)"
    )
    models.add_argument("--retries", type=int, default=5, help="more tries after a failed one (default: %(default)s)")
    models.add_argument(
        "--max_image_pixels", type=int, default=1_003_520, help="larger pictures are scaled down (default: %(default)s)"
    )
    keep = flags.add_argument_group("what is asked and kept")
    keep.add_argument("--prompts", help="folder of text files in place of the package's (docs/bridging.md)")
    keep.add_argument(
        "--attempts", type=int, default=1, help="ask for the reasoning until it is right (default: %(default)s)"
    )
    keep.add_argument(
        "--min_score", type=float, default=1.0, help="lowest score that counts as right (default: %(default)s)"
    )
    keep.add_argument(
        "--box_frame",
        choices=("sent", "1000"),
        default="sent",
        help="what the models' boxes count: pixels of the picture as sent, or thousandths of its edges (default: %(default)s)",
    )
    judge = flags.add_argument_group("judge, for rows of method llm")
    judge.add_argument("--judge_url")
    judge.add_argument("--judge_model")
    judge.add_argument("--judge_api_key_env")
    judge.add_argument("--judge_request", help="more fields of a request, as JSON")
    output = flags.add_argument_group("output")
    output.add_argument(
        "--output", required=True, help="jsonl file to write; the report lies beside it as NAME.report.json"
    )
    output.add_argument("--cache", help="folder of all answers (default: NAME.answers beside the output)")
    output.add_argument(
        "--max_failed_share",
        type=float,
        default=0.05,
        help="most rows that may fail at the endpoints, as a share, for the output to be written (default: %(default)s)",
    )
    return flags


def main(argv: list[str]) -> int:
    """Runs the pipeline, prints its report and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    _check(flags)
    try:
        return _main(flags)
    except KeyboardInterrupt:
        print(f"\nStopped. Answers are kept in {flags.cache}; the same command goes on from there.", file=sys.stderr)
        return 130


def _main(flags: argparse.Namespace) -> int:
    # Imported here: these take seconds, and --help should not.
    from ..data.jsonl import Rows, split_paths
    from ..knowledge.base import KnowledgeBase
    from .answers import AnswerFiles
    from .bridge import Bridge, Settings
    from .pictures import Pictures
    from .prompt_files import load_prompts
    from .run import RowWriter, bridge_rows, common_folder
    from .scoring import Scorer
    from .tally import Tally

    started = time.monotonic()
    options = _passage_options(flags)
    prompts, answers, judge = load_prompts(flags.prompts), AnswerFiles(flags.cache), _judge(flags)
    pictures = Pictures(flags.max_image_pixels)
    mllm, reasoner, first = _models(flags, answers, pictures)
    if not len(answers):  # nothing was asked before, so the endpoints will be needed: better known before long checks
        asyncio.run(_alone(first, mllm, reasoner))
    bad_rows = _checked_rows(flags, has_judge=judge is not None)

    folders, methods = split_paths(flags.image_folders), split_paths(flags.reward_method or "")
    rows = Rows.open(split_paths(flags.data_file_paths), folders, methods or None)
    numbers = _chosen([i for i in range(len(rows)) if i not in bad_rows], flags.limit, flags.seed)
    base = None if flags.knowledge_base is None else KnowledgeBase.open(flags.knowledge_base)
    settings = Settings(
        flags.context_level, flags.num_passages, flags.seed, flags.attempts, flags.min_score, flags.box_frame
    )
    scorer, tally = Scorer(judge), Tally()
    bridge = Bridge(mllm, reasoner, prompts, scorer, pictures, settings, base, **options)
    writer = RowWriter(flags.output, common_folder(folders))

    async def run():
        from .progress import RowProgress

        mllm.before_first = reasoner.before_first = first
        with RowProgress(len(numbers)) as progress:

            def take(sample, outcome):
                tally.add(sample, outcome)
                if outcome.row is not None:
                    writer.write(outcome.row, sample.images)

            try:
                await bridge_rows(rows, numbers, bridge, 2 * flags.concurrency, take=take, step=progress.step)
            finally:
                await mllm.endpoint.close()
                await reasoner.endpoint.close()

    try:
        asyncio.run(run())
        problem = _problem(flags, tally)
        if problem is None:
            writer.put_in_place()
    finally:
        writer.close()
        scorer.close()
        answers.close()
    requests = {"mllm": mllm.counts, "reasoner": reasoner.counts}
    return _report(flags, tally, requests, problem, time.monotonic() - started, writer.image_folder)


def _passage_options(flags: argparse.Namespace) -> dict:
    """`budget` and `passage_pictures`, as `choose_passages` takes them."""
    from ..data.jsonl import split_paths
    from ..knowledge.budget import PassageBudget
    from ..knowledge.pictures import PassagePictures

    tokenizer = None
    if flags.max_passage_tokens is not None:
        from ..vlm_modules.loading import load_processor

        tokenizer = load_processor(flags.model_name_or_path).tokenizer
    return {
        "budget": PassageBudget.of(tokenizer, flags.max_passage_tokens),
        "passage_pictures": PassagePictures.of(flags.passage_images, split_paths(flags.image_folders)),
    }


def _report(flags, tally, requests, problem: str | None, seconds: float, image_folder: str | None) -> int:
    from ..data.cache import content_hash
    from ..data.jsonl import split_paths
    from .tally import token_lines, write_report

    path = f"{flags.output.removesuffix('.jsonl')}.report.json"
    report = {
        "written": flags.output if problem is None else None,
        "problem": problem,
        **tally.to_json(),
        "requests": requests,
        "seconds": round(seconds, 1),
        "image_folders": image_folder or flags.image_folders,
        "data": [{"path": path, "sha256": content_hash(path)} for path in split_paths(flags.data_file_paths)],
        "flags": vars(flags),
    }
    write_report(path, report)
    print("\n".join([*tally.lines(), *token_lines(requests)]))
    if tally.failed_rows:
        named = ", ".join(tally.failed_rows[:5]) + (", …" if len(tally.failed_rows) > 5 else "")
        print(f"{len(tally.failed_rows):,} rows failed at the endpoints and are asked again by the next run: {named}")
    if problem is not None:
        print(f"kivqa bridge: {problem}", file=sys.stderr)
        return 1
    print(f"{flags.output}: {tally.counts['kept']:,} rows; report: {path}")
    if image_folder is not None:
        print(f"Its images are named from {image_folder}: give that as --image_folders.")
    return 0


def _problem(flags: argparse.Namespace, tally) -> str | None:
    """Why the output is not put in place; None if it is."""
    failed = tally.share("endpoint_failed")
    if failed > flags.max_failed_share:
        return (
            f"{failed:.1%} of the rows failed at the endpoints, more than --max_failed_share {flags.max_failed_share:g}, so {flags.output} was not written. "
            f"All answers are kept in {flags.cache}: run the same command again to ask for the rest."
        )
    if not tally.counts["kept"]:
        return f"none of {tally.rows:,} rows was kept, so {flags.output} was not written; the report says why."
    return None


async def _alone(first, *models) -> None:
    await first()
    for model in models:
        await model.endpoint.close()


def _models(flags: argparse.Namespace, answers, pictures):
    """Both models, and what checks their endpoints: once, however often and from wherever it is awaited."""
    from ..endpoint import Endpoint, Gate
    from ..remote import key_named, request_fields
    from .bridge import Asking

    gates = {url: Gate(flags.concurrency) for url in (flags.mllm_url, flags.reasoner_url)}
    models = []
    for name, defaults in (("mllm", MLLM_REQUEST), ("reasoner", REASONER_REQUEST)):
        url, model, variable = (getattr(flags, f"{name}_{part}") for part in ("url", "model", "api_key_env"))
        key = key_named(f"{name}_api_key_env", variable)
        given = getattr(flags, f"{name}_request")
        fields = request_fields(f"{name}_request", given, {**defaults, "seed": flags.seed})
        endpoint = Endpoint(name, url, model, key=key, timeout=flags.timeout, retries=flags.retries, gate=gates[url])
        models.append(Asking(endpoint, fields, answers, pictures))
    mllm, reasoner = models
    if flags.attempts > 1 and reasoner.fields.get("temperature") == 0:
        raise InputError(
            f"--attempts {flags.attempts} would ask the same again at temperature 0: set another in --reasoner_request, or leave --attempts out."
        )
    same = (flags.mllm_url, flags.mllm_model) == (flags.reasoner_url, flags.reasoner_model)
    done = None

    async def check():
        await mllm.check(with_picture=True)
        if not same:
            await reasoner.check(with_picture=False)

    async def first():
        nonlocal done
        if done is None:
            done = asyncio.ensure_future(check())
        if not done.done():
            await asyncio.wait([done])
        done.result()

    return mllm, reasoner, first


def _judge(flags: argparse.Namespace):
    """The judge of rows of method llm, with its verdicts beside the answers; None without --judge_url."""
    from ..remote import key_named, read_request
    from ..rewards.judge import Judge

    if flags.judge_url is None:
        return None
    judge = Judge(
        flags.judge_url,
        flags.judge_model,
        key=key_named("judge_api_key_env", flags.judge_api_key_env),
        concurrency=flags.concurrency,
        cache=flags.cache,
        request=read_request("judge_request", flags.judge_request),
    )
    judge.check()
    return judge


def _checked_rows(flags: argparse.Namespace, *, has_judge: bool) -> frozenset[int]:
    """Places of the rows to leave out. The checks are training's own; InputError with a summary if something is wrong."""
    from ..data.checks import ensure_checked

    data = SimpleNamespace(**vars(flags), system_prompt=None, eval_data_file_paths=None, eval_image_folders=None)
    return ensure_checked(data, SimpleNamespace(model_name_or_path=None), has_judge=has_judge)


def _chosen(numbers: list[int], limit: int | None, seed: int) -> list[int]:
    import random

    return numbers if limit is None or limit >= len(numbers) else sorted(random.Random(seed).sample(numbers, limit))


def _check(flags: argparse.Namespace) -> None:
    """InputError for flags that cannot be used, before anything is read; fills in what others decide."""
    from ..flags import refuse_below, refuse_unfit_passages
    from ..knowledge.context import check_level
    from ..remote import MOST_OPEN, check_url
    from ..rewards.methods import TASK_METHODS

    refuse_below(flags, 1, "concurrency", "attempts", "max_image_pixels", "num_passages", "limit")
    refuse_below(flags, 0, "retries")
    if flags.concurrency > MOST_OPEN:
        raise InputError(f"--concurrency {flags.concurrency}: at most {MOST_OPEN} are possible.")
    if not 0 < flags.timeout <= 86_400:
        raise InputError(f"--timeout {flags.timeout:g}: seconds above 0, at most a day, are wanted.")
    for name in ("min_score", "max_failed_share"):
        value, lowest = getattr(flags, name), 0.0
        if not lowest <= value <= 1 or (name == "min_score" and value == 0):
            raise InputError(f"--{name} {value:g}: a number between 0 and 1 is wanted.")
    check_level(flags.context_level, "--context_level")
    refuse_unfit_passages(flags)
    if (flags.max_passage_tokens is None) != (flags.model_name_or_path is None):
        raise InputError("--max_passage_tokens and --model_name_or_path belong together: give both, or none.")
    if flags.reasoner_url is None:
        flags.reasoner_url = flags.mllm_url
    elif flags.reasoner_model is None and flags.reasoner_url != flags.mllm_url:
        raise InputError("--reasoner_model is missing: name the model that --reasoner_url serves.")
    if flags.reasoner_url == flags.mllm_url and flags.reasoner_api_key_env is None:
        flags.reasoner_api_key_env = flags.mllm_api_key_env
    flags.reasoner_model = flags.reasoner_model or flags.mllm_model
    if (flags.judge_url is None) != (flags.judge_model is None):
        raise InputError("--judge_url and --judge_model belong together: give both, or none.")
    for name in ("mllm_url", "reasoner_url", "judge_url"):
        if getattr(flags, name) is not None:
            check_url(name, getattr(flags, name))
    if flags.reward_method is None and flags.task_type is not None:
        flags.reward_method = TASK_METHODS[flags.task_type]
    _check_output(flags)


def _check_output(flags: argparse.Namespace) -> None:
    folder = os.path.dirname(os.path.abspath(flags.output))
    if not flags.output.endswith(".jsonl") or os.path.isdir(flags.output):
        raise InputError(f"--output {flags.output} is no name of a file that ends with .jsonl; give one.")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--output {flags.output}: the folder {folder} does not exist or cannot be written to.")
    inputs = [path.strip() for path in flags.data_file_paths.split(":")]
    if any(os.path.realpath(path) == os.path.realpath(flags.output) for path in inputs if path):
        raise InputError(f"--output {flags.output} is one of the data files; name another file.")
    flags.cache = flags.cache or f"{flags.output.removesuffix('.jsonl')}.answers"
