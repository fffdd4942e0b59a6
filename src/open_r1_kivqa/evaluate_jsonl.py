"""Greedy answers of a model to jsonl rows, under several settings, scored as in training.

    python src/open_r1_kivqa/evaluate_jsonl.py --model_name_or_path outputs/grpo --data_file_paths test.jsonl \
        --image_folders images --knowledge_base wiki.jsonl --settings normal,wrong_image --output_dir outputs/evaluation
    torchrun --nproc_per_node 8 src/open_r1_kivqa/evaluate_jsonl.py ...

Writes predictions.jsonl (a record for each row and setting), summary.json and manifest.json, and prints the scores beside those of rules without a model. Started again after a stop
it goes on where it was. With --eval_data_file_paths or --val_split_ratio the held-out rows are answered, and the training rows only teach a baseline. Every flag: arguments.py.
"""

import os
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig, world_size
from open_r1_kivqa.entry import parse, run
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.arguments import IMAGE_LIMITS, EvaluatedModel, EvaluationArguments
from open_r1_kivqa.rewards.arguments import JudgeArguments

if TYPE_CHECKING:
    from open_r1_kivqa.prompting import Prompting

FLAGS = (DataArguments, EvaluatedModel, JudgeArguments, EvaluationArguments)
WEIGHT_FLAGS = ("dtype", "attn_implementation")
MODEL_FLAGS = ("model_name_or_path", "model_revision", *WEIGHT_FLAGS, *IMAGE_LIMITS)


def main(argv: list[str] | None = None) -> dict:
    """Check flags and data, then `evaluate`. Returns the summary."""
    data_args, model_args, judge_args, args = parse(FLAGS, argv)

    from open_r1_kivqa.data.checks import ensure_checked
    from open_r1_kivqa.evaluation.records import while_there_is_room

    refuse(data_args, model_args, args)
    bad_rows = ensure_checked(
        data_args,
        model_args,
        max_completion_length=args.max_new_tokens,
        needs_answer=False,
        levels=levels_of(args.settings, data_args.context_level),
        has_judge=judge_args.judge_url is not None,
    )
    with while_there_is_room(Path(args.output_dir)):
        return evaluate(data_args, model_args, judge_args, args, bad_rows)


def evaluate(
    data_args: DataArguments,
    model_args: VLMModelConfig,
    judge_args: JudgeArguments,
    args: EvaluationArguments,
    bad_rows=frozenset(),
) -> dict:
    """Answer what isn't answered yet, score, write and print. Returns the summary, on every rank."""
    from open_r1_kivqa.data.jsonl import split_paths
    from open_r1_kivqa.data.launch import once_per_launch
    from open_r1_kivqa.evaluation import rollouts
    from open_r1_kivqa.evaluation.official import refuse_shared_ids
    from open_r1_kivqa.evaluation.published import Conditions, of_a_draw, read_conditions, refuse_contradictions
    from open_r1_kivqa.evaluation.records import ROLLOUTS, claim, jobs_of, read_finished, refuse_older, runs
    from open_r1_kivqa.evaluation.report import conclude
    from open_r1_kivqa.evaluation.settings import apply_setting, parse_settings, pictures_of
    from open_r1_kivqa.recipe import at_most, judge_before_the_model, load_rows, prompting_of

    settings = parse_settings(args.settings)
    conditions = read_conditions(args.conditions) if args.conditions else (Conditions(), {})
    training, rows = load_rows(data_args, bad_rows, args.seed)
    if rows is None:
        training, rows = None, training
    rows = rows_of_splits(rows, args.splits)
    pictures = pictures_of(rows) if "wrong_image" in settings else None
    refuse_shared_ids(rows)
    whole = len(rows)
    rows = at_most(rows, args.limit, args.seed)
    if len(rows) < whole:
        conditions = (of_a_draw(conditions[0], len(rows)), conditions[1])
    if pictures is not None:
        for sample in rows:  # refuses a row without a wrong picture now, not after the model has answered others
            apply_setting("wrong_image", sample, pictures)
    prompting = prompting_of(data_args, args.seed)
    if args.conditions:
        refuse_contradictions(rows, None if prompting.kb is None else len(prompting.kb), *conditions)
    folder = Path(args.output_dir)
    jobs = [(setting, id) for setting in settings for id in rows.ids]
    sampled = [(rollouts.SETTING, id) for id in rows.ids] if args.rollouts > 1 else []
    server = server_before_the_rows(rows, model_args, args) if args.server_url else None

    def start() -> dict:
        claim(
            folder,
            lambda place: write_manifest(place, data_args, model_args, judge_args, args, prompting.template),
            overwrite=args.overwrite,
        )
        finished, finished_rollouts = read_finished(folder), read_finished(folder, ROLLOUTS)
        refuse_older(finished)
        kept = [*finished.items(), *finished_rollouts.items()]
        compare_kept(rows, kept, data_args, model_args, args, prompting, pictures)
        return {"pending": runs(jobs, finished), "sampled": runs(sampled, finished_rollouts)}

    judge = judge_before_the_model(judge_args)
    warn_of_judge(model_args, judge_args, args)
    left = once_per_launch("start of evaluation", start)
    if left["pending"] or left["sampled"]:
        pending = jobs_of(jobs, left["pending"]), jobs_of(sampled, left["sampled"])
        answer(rows, *pending, data_args, model_args, args, prompting, pictures, judge, server)

    folders = split_paths(data_args.image_folders) + split_paths(data_args.eval_image_folders or "")

    def end() -> dict:
        return conclude(
            folder,
            rows,
            jobs,
            sampled,
            prompting,
            temperature=args.temperature,
            training=training,
            image_folders=folders,
            conditions=conditions,
            judge=judge,
        )

    with all_ranks_here():
        return once_per_launch("end of evaluation", end)


def compare_kept(
    rows,
    finished: list,
    data_args: DataArguments,
    model_args: VLMModelConfig,
    args: EvaluationArguments,
    prompting: "Prompting",
    pictures: dict | None,
) -> None:
    """InputError if answers of an earlier run are to other prompts than would be asked now. Prints how many were compared where it isn't all.

    Args:
        finished: jobs and records. prompting, pictures: as for `answer`.
    """
    if not finished:
        return
    from open_r1_kivqa.evaluation.kept import refuse_changed_prompts
    from open_r1_kivqa.recipe import passage_options, processor_of

    counts = data_args.max_passage_tokens is not None
    tokenizer = processor_of(model_args, args.adapter_name_or_path).tokenizer if counts else None
    options = passage_options(data_args, tokenizer)
    kept = [(job, record["prompt_hash"]) for job, record in finished]
    compared, number = refuse_changed_prompts(
        Path(args.output_dir), kept, rows, replace(prompting, **options), pictures
    )
    if compared < number:
        print(f"{compared:,} of {number:,} answers kept were drawn: their prompts are those asked now.", flush=True)


def answer(
    rows,
    pending: list[tuple[str, str]],
    sampled: list[tuple[str, str]],
    data_args: DataArguments,
    model_args: VLMModelConfig,
    args: EvaluationArguments,
    prompting: "Prompting",
    pictures: dict | None,
    judge,
    server,
) -> None:
    """Answer this rank's share of both kinds of jobs, every n-th, and write each few batches' records to its files.

    Args:
        prompting, pictures: as for `evaluation.shown.show`, the former still without `passage_options`. server: a `ServedModel`, or None to load the model here.

    Raises:
        InputError: the server failed on some; what it answered is written.
    """
    from rich.progress import Progress

    from open_r1_kivqa.evaluation.predict import predict
    from open_r1_kivqa.evaluation.records import ROLLOUTS, RankFile
    from open_r1_kivqa.evaluation.rollouts import roll_out
    from open_r1_kivqa.recipe import passage_options

    if server is None:
        greedy, sample_texts, box_scale, tokenizer = load(model_args, args)
    else:
        greedy, sample_texts = server.greedy, server.sampled
        box_scale, tokenizer = processor_beside_server(model_args)
    prompting = replace(prompting, **passage_options(data_args, tokenizer))
    scoring = {"box_scale": box_scale, "judge": judge}
    rank = int(os.environ.get("RANK", "0"))
    # Prompts a call: `greedy` sorts them by length, a server has so many open. A stop loses no more than these.
    size = 4 * max(args.batch_size, args.server_concurrency if server is not None else 0)
    pending, sampled = pending[rank :: world_size()], sampled[rank :: world_size()]

    def samples_of(jobs: list[tuple[str, str]], number: int):
        ids = [id for _, id in jobs]
        for start in range(0, len(ids), number):
            yield [rows[rows.index_of(id)] for id in ids[start : start + number]]
            if server is not None and server.given_up:
                return

    folder = Path(args.output_dir)
    with Progress(disable=rank > 0) as progress:
        bar = progress.add_task("answering", total=len(pending) + len(sampled) * args.rollouts)
        file = RankFile(folder, rank)
        for setting in dict.fromkeys(setting for setting, _ in pending):
            for samples in samples_of([job for job in pending if job[0] == setting], size):
                file.append(predict(samples, setting, prompting, generate=greedy, pictures=pictures, **scoring))
                progress.advance(bar, len(samples))
        file.close()
        file = RankFile(folder, rank, ROLLOUTS)
        for samples in samples_of(sampled, max(1, size // args.rollouts)):
            file.append(roll_out(samples, args.rollouts, prompting, sample_texts=sample_texts, **scoring))
            progress.advance(bar, len(samples) * args.rollouts)
        file.close()
    if server is not None:
        server.close()
        server.refuse_failures()


def load(model_args: VLMModelConfig, args: EvaluationArguments):
    """The model on this rank's device, as what gives greedy answers and what gives sampled ones; what its boxes mean, and its tokenizer."""
    import torch

    from open_r1_kivqa.evaluation.generate import greedy, sampled
    from open_r1_kivqa.recipe import load_model_and_processor
    from open_r1_kivqa.vlm_modules.boxes import BoxScale

    model, module, processor = load_model_and_processor(model_args, adapter=args.adapter_name_or_path)
    if args.adapter_name_or_path:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, args.adapter_name_or_path).merge_and_unload()
    if torch.cuda.is_available():
        model = model.to(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    size = {"max_new_tokens": args.max_new_tokens, "batch_size": args.batch_size}

    def most_likely(prompts):
        return greedy(model, processor, prompts, **size)

    def drawn(prompts, seeds):
        return sampled(model, processor, prompts, seeds=seeds, temperature=args.temperature, **size)

    return most_likely, drawn, BoxScale(module, processor), processor.tokenizer


def processor_beside_server(model_args: VLMModelConfig):
    """What the boxes of a model behind a server mean, and its tokenizer, by the processor in --model_name_or_path; None and None without it."""
    from open_r1_kivqa.recipe import processor_of
    from open_r1_kivqa.vlm_modules import module_for
    from open_r1_kivqa.vlm_modules.boxes import BoxScale
    from open_r1_kivqa.vlm_modules.loading import load_config

    path = model_args.model_name_or_path
    if not path:
        return None, None
    processor = processor_of(model_args)
    return BoxScale(module_for(load_config(path, revision=model_args.model_revision)), processor), processor.tokenizer


def server_before_the_rows(rows, model_args: VLMModelConfig, args: EvaluationArguments):
    """The `ServedModel` of --server_url, after one request to it. Raises InputError where it gives no reply, or where rows of boxes need a processor that isn't there."""
    from open_r1_kivqa.data.launch import once_per_launch
    from open_r1_kivqa.evaluation.server import ServedModel
    from open_r1_kivqa.rewards.methods import BOX_METHODS

    if not model_args.model_name_or_path:
        boxes = next((sample for sample in rows if sample.reward_method in BOX_METHODS), None)
        if boxes is not None:
            raise InputError(
                f"{boxes.source} is scored by its boxes, and what the coordinates of a model behind --server_url mean depends on its processor: add --model_name_or_path with the folder of the model that is served (its weights are not loaded)."
            )
    server = ServedModel(args)

    def check() -> dict:
        server.check(with_picture=any(sample.images for sample in rows))
        return {}

    once_per_launch("server", check)
    return server


def warn_of_judge(model_args: VLMModelConfig, judge_args: JudgeArguments, args: EvaluationArguments) -> None:
    """Prints, on rank 0, what may make the judge's verdicts too good."""
    from open_r1_kivqa.rewards.judge import warn_of_shared_judge

    warnings = []
    judged_by = (judge_args.judge_url, judge_args.judge_model)
    if args.server_url and (args.server_url, args.server_model) == judged_by:
        warnings.append(f"{args.server_model!r} judges its own answers: name another judge before quoting the figure.")
    trained = args.adapter_name_or_path or model_args.model_name_or_path
    shared = warn_of_shared_judge(trained, judge_args) if trained else None
    warnings += [shared] if shared else []
    if os.environ.get("RANK", "0") == "0":
        for warning in warnings:
            print(f"WARNING: {warning}", flush=True)


def write_manifest(place: str, data_args, model_args, judge_args, args: EvaluationArguments, template) -> None:
    """manifest.json into the folder `place`, with the hashes of the adapter, whose content decides the answers as the model's does."""
    from open_r1_kivqa.data.aside import write_json
    from open_r1_kivqa.manifest import file_hash, read_manifest
    from open_r1_kivqa.recipe import write_run_manifest

    placed = replace(args, output_dir=place)
    write_run_manifest("evaluate_jsonl", (data_args, model_args, judge_args, placed), template)
    if args.adapter_name_or_path:
        manifest = read_manifest(place)
        files = sorted(Path(args.adapter_name_or_path).glob("adapter_*"))
        manifest["adapter"] = {file.name: file_hash(file) for file in files}
        write_json(Path(place) / "manifest.json", manifest)


@contextmanager
def all_ranks_here():
    """Begins when every rank is here, and ends so. Over gloo, also on GPUs: ranks share nothing but the folder."""
    if world_size() == 1:
        yield
        return
    from torch import distributed

    from open_r1_kivqa.data.launch import LONGEST

    distributed.init_process_group("gloo", timeout=LONGEST)
    distributed.barrier()
    yield
    distributed.barrier()
    distributed.destroy_process_group()


def rows_of_splits(rows, splits: str):
    """The rows whose split is among the names in `splits`, separated by ','; all rows for ""."""
    wanted = {name.strip() for name in splits.split(",") if name.strip()}
    if not wanted:
        return rows
    found = [sample.split for sample in rows]
    if not wanted <= set(found):
        unknown = ", ".join(sorted(wanted - set(found)))
        raise InputError(
            f"--splits {splits!r}: no row is of the split {unknown}; the rows' splits are {', '.join(sorted(set(found) - {''})) or 'not named'}."
        )
    return rows.subset([i for i, split in enumerate(found) if split in wanted])


def levels_of(settings: str, context_level: str) -> tuple[str, ...]:
    """The context levels that prompts are built at, so that the checks look at all that they show."""
    from open_r1_kivqa.evaluation.settings import SETTINGS, parse_settings
    from open_r1_kivqa.knowledge.context import WHOLE_ARTICLE

    chosen = [SETTINGS[name] for name in parse_settings(settings)]
    levels = [WHOLE_ARTICLE if setting.whole_article else setting.level or context_level for setting in chosen]
    return tuple(dict.fromkeys(levels))


def refuse(data_args: DataArguments, model_args: VLMModelConfig, args: EvaluationArguments) -> None:
    """InputError for what evaluation cannot use: flags of training, flags of a model that isn't loaded here, an adapter that isn't there, settings that take away what there is not."""
    from open_r1_kivqa.evaluation.settings import SETTINGS, parse_settings

    for field in fields(model_args):
        if field.name not in MODEL_FLAGS and getattr(model_args, field.name) != field.default:
            raise InputError(f"--{field.name} has no effect in evaluation: leave it out.")
    if not model_args.model_name_or_path and not args.server_url:
        raise InputError(
            "--model_name_or_path is missing: give the folder or the hub name of a vision-language model, or --server_url with a server that has one."
        )
    if args.server_url:
        refuse_beside_server(data_args, model_args)
    if args.adapter_name_or_path and not (Path(args.adapter_name_or_path) / "adapter_config.json").is_file():
        raise InputError(
            f"--adapter_name_or_path {args.adapter_name_or_path} has no adapter_config.json: give the folder of a LoRA adapter."
        )
    for setting in parse_settings(args.settings):
        if SETTINGS[setting].of_passages and not data_args.knowledge_base:
            raise InputError(
                f"--settings {setting} chooses among passages, and without --knowledge_base there are none: leave it out, or name the knowledge base."
            )


def refuse_beside_server(data_args: DataArguments, model_args: VLMModelConfig) -> None:
    """InputError for flags of the model that don't act where a server has it, and for what needs a tokenizer that isn't there."""
    has_folder = bool(model_args.model_name_or_path)
    for field in fields(model_args):
        acts = field.name not in WEIGHT_FLAGS and (has_folder or field.name not in MODEL_FLAGS)
        if not acts and getattr(model_args, field.name) != field.default:
            reason = "the server decides it" if has_folder else "without --model_name_or_path"
            raise InputError(f"--{field.name} has no effect with --server_url: {reason}. Leave it out.")
    if data_args.max_passage_tokens is not None and not has_folder:
        raise InputError(
            "--max_passage_tokens counts by the model's tokenizer: add --model_name_or_path with the folder of the model that --server_url serves (its weights are not loaded)."
        )


if __name__ == "__main__":
    run(main)
