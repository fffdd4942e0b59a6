"""Everything that can be wrong with the data of a run, found before the run: rows, images, passages, answers, lengths.

A row passes if `parse_row` takes it, its images decode, its passages are in the knowledge base, its own answer scores 1 under its reward method, and its prompt leaves room for a completion.
This module, `row_checks` and `tokens` are the only ones of `data` that look up to other packages, and no module of those imports them.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.budget import PassageBudget
from ..knowledge.pictures import PassagePictures
from ..prompting import Prompting
from ..prompts import load_template
from ..rewards.boxes import box_problem
from ..rewards.methods import check_methods
from .cache import content_hash
from .jsonl import split_paths
from .launch import once_per_launch
from .report import Problem, ProgressLine, Report
from .row_checks import Limits, RowJudge, ShownPictures, has_boxes
from .sources import Row, Source, open_sources, pair_sources, read_rows, split_remedy
from .stamp import read_stamp, stamp_path, write_stamp
from .tokens import TokenCounter, percentiles
from .verdicts import PIXEL_LIMIT, Verdict, check_images, files_digest

VERSION = 3  # of what a check looks for; raise it, and no older result counts
BATCH = 1000  # rows whose texts are tokenized together

Progress = Callable[[str, int, int], None]  # what is being looked at, how many are done, how many there are


def run_checks(
    sources: list[Source],
    *,
    kb: KnowledgeBase | None = None,
    counter: TokenCounter | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    shown: ShownPictures | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Looks at every row and image of `sources` and reports all that is wrong.

    Args:
        kb: what rows' `candidates` and `evidence` must name; None leaves them alone.
        counter: counts the prompts' tokens; None leaves lengths alone.
        shown: the pictures of articles that prompts show; None if they show none.
        progress: called now and then.
    """
    files, problems = open_sources(sources)
    total = sum(len(lines) for _, lines in files)
    judge = RowJudge(kb, limits, shown)
    bad: set[int] = set()
    places: dict[str, int] = {}  # image path -> place in `verdicts`
    any_boxes = False
    for row in read_rows(files):
        judge.look_at(row)
        problems += row.problems
        bad.update([row.number] if row.problems else [])
        any_boxes |= has_boxes(row)
        for path in (*row.images, *judge.pictures(row)):
            places.setdefault(path, len(places))
        if row.number % BATCH == 0:
            progress("rows", row.number, total)
    digest = files_digest(list(places))
    verdicts = check_images(
        list(places), pixel_limit=limits.pixels, progress=lambda done: progress("images", done, len(places))
    )
    if counter is not None:
        verdicts = [_shape_verdict(verdict, counter) for verdict in verdicts]

    lengths: list[dict[str, np.ndarray]] = []
    batch: list[tuple[Row, list[tuple[int, int]]]] = []
    again = counter is not None or any_boxes or any(verdict.kind for verdict in verdicts)
    for row in read_rows(files) if again else ():
        row.problems.clear()  # reported above
        row_verdicts = [verdicts[places[path]] for path in row.images]
        all_verdicts = [*row_verdicts, *(verdicts[places[path]] for path in judge.pictures(row))]
        for verdict in dict.fromkeys(verdict for verdict in all_verdicts if verdict.kind):
            row.add(verdict.kind, verdict.message, verdict.remedy)
        if has_boxes(row) and row.number not in bad and not row.problems:
            problem = box_problem(row.sample, [(verdict.width, verdict.height) for verdict in row_verdicts])
            if problem is not None:
                row.add("box", *problem)
        problems += row.problems
        usable = row.sample is not None and row.number not in bad and not row.problems
        if counter is not None and usable and len(row_verdicts) == len(row.sample.images):
            batch.append((row, [(verdict.width, verdict.height) for verdict in row_verdicts]))
        if len(batch) == BATCH:
            lengths.append(_measure(batch, counter, limits, problems))
            batch = []
            progress("prompts", row.number, total)
    if batch:
        lengths.append(_measure(batch, counter, limits, problems))

    problems.sort(key=lambda problem: -1 if problem.row is None else problem.row)
    report = Report(
        rows=total,
        image_paths=list(places),
        image_digest=digest,
        problems=problems,
        unanswered=judge.unanswered,
    )
    if lengths:
        report.tokens = percentiles({part: np.concatenate([one[part] for one in lengths]) for part in lengths[0]})
        report.context = limits.context
    return report


def _shape_verdict(verdict: Verdict, counter: TokenCounter) -> Verdict:
    """The verdict, or that the processor refuses an image of this shape."""
    if verdict.kind:
        return verdict
    try:
        counter.image_tokens((verdict.width, verdict.height))
    except InputError as error:
        return replace(verdict, kind="image_shape", message=str(error), remedy="")
    return verdict


def _measure(
    batch: list[tuple[Row, list[tuple[int, int]]]], counter: TokenCounter, limits: Limits, problems: list[Problem]
) -> dict[str, np.ndarray]:
    """Token counts of a batch of rows; adds a problem for each prompt that is too long."""
    rows, sizes = zip(*batch, strict=True)
    counts = counter.count([row.sample for row in rows], list(sizes))
    room = None if limits.context is None else limits.context - limits.completion
    for row, length in zip(rows, counts["prompt"].tolist(), strict=True):
        if room is not None and length > room:
            row.add(
                "prompt_too_long",
                f"its prompt has {length:,} tokens, and the model takes {limits.context:,} with {limits.completion:,} kept for the completion",
                "show fewer passages (--num_passages), lower --max_pixels, or shorten the row",
            )
            problems.append(row.problems[-1])
    return counts


@dataclass
class Inputs:
    """What a check works on, opened. `problems`: what could not be opened."""

    sources: list[Source]
    limits: Limits
    kb: KnowledgeBase | None
    counter: TokenCounter | None
    problems: list[Problem]
    shown: ShownPictures | None = None

    def run(self, progress: Progress) -> Report:
        """`run_checks`, with the problems found when opening."""
        report = run_checks(
            self.sources,
            kb=self.kb,
            counter=self.counter,
            limits=self.limits,
            shown=self.shown,
            progress=progress,
        )
        report.problems[:0] = self.problems
        return report

    def identity(self) -> dict:
        """All that a check's result depends on besides the image files, as JSON values."""
        identity = {
            "version": VERSION,
            "sources": [[asdict(source), content_hash(source.path)] for source in self.sources],
            "limits": asdict(self.limits),
            "kb": self.kb and [self.kb.path, self.kb.fingerprint],
        }
        if self.shown is not None:
            pictures = self.shown.pictures
            identity["pictures"] = [pictures.number, pictures.folders, self.shown.levels, self.shown.num_passages]
        if self.counter is not None:
            processor, prompting = self.counter.processor, self.counter.prompting
            parts = (
                processor.to_json_string(),
                str(processor.chat_template),
                processor.tokenizer.backend_tokenizer.to_str(),
            )
            identity["processor"] = [hashlib.sha256(part.encode()).hexdigest() for part in parts]
            identity["prompts"] = [
                asdict(prompting.template),
                prompting.system_prompt,
                self.counter.levels,
                prompting.num_passages,
                prompting.budget and prompting.budget.max_tokens,
            ]
        return identity


def open_inputs(
    data,
    model,
    *,
    data_file_paths: str,
    image_folders: str,
    max_completion_length: int,
    needs_response: bool,
    needs_answer: bool = True,
    levels: tuple[str, ...] | None = None,
    has_judge: bool = True,
    max_length: int | None = None,
) -> Inputs:
    """Opens what the flags name.

    Args:
        data: has DataArguments' `reward_method`, `knowledge_base`, `task_type`, `system_prompt`, `context_level`, `num_passages`, `max_passage_tokens`, `passage_images`, `pixel_limit`, and where articles' pictures may lie, `image_folders` and `eval_image_folders`.
        model: has VLMModelConfig's `model_name_or_path` (None: prompts are not measured), `model_revision`, `min_pixels`, `max_pixels`, `max_anyres_num`.
        data_file_paths, image_folders: separated by ":".
        max_completion_length, needs_response, needs_answer, has_judge: see `Limits`.
        levels: all context levels that prompts may be built at; None: `context_level` alone.
        max_length: tokens of prompt and completion, where what answers holds fewer than the model does.

    Raises:
        InputError: a flag that cannot be used, the model among them.
    """
    sources = pair_sources(
        split_paths(data_file_paths), split_paths(image_folders), split_paths(data.reward_method or "")
    )
    check_methods(source.reward_method for source in sources)
    if not 1 <= data.pixel_limit <= PIXEL_LIMIT:
        raise InputError(
            f"--pixel_limit {data.pixel_limit} is not between 1 and {PIXEL_LIMIT}, above which Pillow opens no image; give a number in between."
        )
    kb, problems = None, []
    if data.knowledge_base:
        try:
            kb = KnowledgeBase.open(data.knowledge_base)
        except InputError as error:
            problems.append(Problem("knowledge_base", *split_remedy(str(error)), file=data.knowledge_base))
    levels = levels or (data.context_level,)
    folders = [*split_paths(data.image_folders), *split_paths(data.eval_image_folders or "")]
    pictures = PassagePictures.of(data.passage_images, folders)
    counter, context = None, None
    if model.model_name_or_path:
        from ..vlm_modules import module_for
        from ..vlm_modules.loading import load_config, load_processor

        config = load_config(model.model_name_or_path, revision=model.model_revision)
        context = config.get_text_config().max_position_embeddings
        context = context if max_length is None else min(context, max_length)
        processor = load_processor(
            model.model_name_or_path,
            min_pixels=model.min_pixels,
            max_pixels=model.max_pixels,
            max_anyres_num=model.max_anyres_num,
            revision=model.model_revision,
        )
        prompting = Prompting(
            load_template(data.task_type or ("kivqa" if data.knowledge_base else "default")),
            seed=0,
            kb=kb,
            system_prompt=data.system_prompt,
            num_passages=data.num_passages,
            budget=PassageBudget.of(processor.tokenizer, data.max_passage_tokens),
            passage_pictures=pictures,
        )
        counter = TokenCounter(processor, module_for(config), prompting, levels)
    return Inputs(
        sources,
        Limits(data.pixel_limit, context, max_completion_length, needs_response, needs_answer, has_judge),
        kb,
        counter,
        problems,
        ShownPictures(pictures, levels, data.num_passages) if pictures else None,
    )


def ensure_checked(
    data_args,
    model_args,
    *,
    max_completion_length: int = 0,
    needs_response: bool = False,
    needs_answer: bool = True,
    levels: tuple[str, ...] | None = None,
    has_judge: bool = True,
    max_length: int | None = None,
) -> frozenset[int]:
    """Checks a training run's data once a launch, on rank 0; call it on every rank before there is a process group.

    What was checked before and has not been touched since costs seconds. Prints one line on rank 0.

    Args:
        data_args, model_args: DataArguments and VLMModelConfig.
        max_completion_length, needs_response, needs_answer, has_judge: see `Limits`.
        levels: all context levels that prompts may be built at; None: `context_level` alone.
        max_length: see `open_inputs`; of training rows.

    Returns:
        Places of the rows to leave out, among all rows of `data_file_paths`; empty without `skip_bad_rows`.

    Raises:
        InputError: with a summary of the problems, unless `skip_bad_rows` is set and all of them are of single training rows; or if no row is left.
    """

    def work() -> dict:
        limits = {
            "max_completion_length": max_completion_length,
            "needs_response": needs_response,
            "needs_answer": needs_answer,
            "levels": levels,
            "has_judge": has_judge,
        }
        report = _check_before_training(
            open_inputs(
                data_args,
                model_args,
                data_file_paths=data_args.data_file_paths,
                image_folders=data_args.image_folders,
                max_length=max_length,
                **limits,
            ),
            skip_bad_rows=data_args.skip_bad_rows,
        )
        if data_args.eval_data_file_paths:
            folders = data_args.eval_image_folders or data_args.image_folders
            held_out = open_inputs(
                replace(data_args, reward_method=data_args.held_out_method),
                model_args,
                data_file_paths=data_args.eval_data_file_paths,
                image_folders=folders,
                **limits,
            )
            _check_before_training(held_out, skip_bad_rows=None)
        return {"bad_rows": sorted(report.bad_rows)}

    return frozenset(once_per_launch("checks", work)["bad_rows"])


def _check_before_training(inputs: Inputs, *, skip_bad_rows: bool | None) -> Report:
    """The report, if training can start from it; `skip_bad_rows` None for held-out rows, of which none is ever left out."""
    stamp = None
    if all(os.path.isfile(source.path) for source in inputs.sources):
        with contextlib.suppress(OSError):  # a file that cannot be read: `run` reports it
            stamp = stamp_path(inputs.identity())
    report = read_stamp(stamp) if stamp is not None else None
    known = report is not None
    if not known:
        report = inputs.run(ProgressLine())
        if stamp is not None and all(problem.row is not None for problem in report.problems):
            write_stamp(stamp, report)  # a folder that is missing now may be there the next time
    if report.unanswered:
        print(report.unanswered_line(), flush=True)
    if not report.problems:
        print(report.lines()[-1] + (" (unchanged since it was last checked)" if known else ""), flush=True)
        return report
    whole = [problem for problem in report.problems if problem.row is None]
    found = "\n".join(report.problem_lines())
    if whole or not skip_bad_rows:
        hint = "" if whole or skip_bad_rows is None else ", or add --skip_bad_rows to leave these rows out"
        raise InputError(
            f"The data of {', '.join(source.path for source in inputs.sources)} cannot be used as it is:\n{found}\n{report.lines()[-1]}\nRepair it (kivqa check --all lists every problem){hint}."
        )
    if len(report.bad_rows) == report.rows:
        raise InputError(f"None of the {report.rows:,} rows can be used:\n{found}")
    print(
        f"{found}\nTraining without {len(report.bad_rows):,} of {report.rows:,} rows that the checks refuse.",
        flush=True,
    )
    return report
