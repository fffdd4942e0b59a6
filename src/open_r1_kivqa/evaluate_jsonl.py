"""Greedy answers of a model to jsonl rows, under several settings, scored as in training.

    python src/open_r1_kivqa/evaluate_jsonl.py --model_name_or_path outputs/grpo --data_file_paths test.jsonl \
        --image_folders images --knowledge_base wiki.jsonl --settings normal,wrong_image --output_dir outputs/evaluation
    torchrun --nproc_per_node 8 src/open_r1_kivqa/evaluate_jsonl.py ...

Writes predictions.jsonl (a record for each row and setting), summary.json and manifest.json, and prints the scores beside those of rules without a model. Started again after a stop
it goes on where it was. With --eval_data_file_paths or --val_split_ratio the held-out rows are answered, and the training rows only teach a baseline. Every flag: arguments.py.
"""

import dataclasses
import os
from contextlib import contextmanager
from pathlib import Path

from open_r1_kivqa.arguments import DataArguments, VLMModelConfig, world_size
from open_r1_kivqa.entry import parse, run
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.arguments import EvaluatedModel, EvaluationArguments
from open_r1_kivqa.rewards.arguments import JudgeArguments

FLAGS = (DataArguments, EvaluatedModel, JudgeArguments, EvaluationArguments)
MODEL_FLAGS = ("model_name_or_path", "model_revision", "dtype", "attn_implementation")
MODEL_FLAGS += ("min_pixels", "max_pixels", "max_anyres_num")


def main(argv: list[str] | None = None) -> dict:
    """Check flags and data, then `evaluate`. Returns the summary."""
    data_args, model_args, judge_args, args = parse(FLAGS, argv)

    from open_r1_kivqa.data.checks import ensure_checked

    refuse(data_args, model_args, args)
    bad_rows = ensure_checked(data_args, model_args, has_judge=judge_args.judge_url is not None)
    return evaluate(data_args, model_args, judge_args, args, bad_rows)


def evaluate(
    data_args: DataArguments,
    model_args: VLMModelConfig,
    judge_args: JudgeArguments,
    args: EvaluationArguments,
    bad_rows=frozenset(),
) -> dict:
    """Answer what isn't answered yet, score, write and print. Returns the summary, on every rank."""
    from rich.console import Console

    from open_r1_kivqa.data.jsonl import split_paths
    from open_r1_kivqa.data.launch import once_per_launch
    from open_r1_kivqa.evaluation.baselines import baselines
    from open_r1_kivqa.evaluation.predict import judge_again
    from open_r1_kivqa.evaluation.records import PREDICTIONS, claim, merge, read_finished, refuse_older, write_records
    from open_r1_kivqa.evaluation.settings import apply_setting, parse_settings, pictures_of
    from open_r1_kivqa.evaluation.summary import score_table, summarise
    from open_r1_kivqa.manifest import file_hash, read_manifest
    from open_r1_kivqa.prompts import load_template
    from open_r1_kivqa.recipe import at_most, judge_before_the_model, load_rows, open_knowledge, write_run_manifest
    from open_r1_kivqa.rewards.judge import warn_of_shared_judge
    from open_r1_kivqa.trainer.checkpoints import write_json

    settings = parse_settings(args.settings)
    training, rows = load_rows(data_args, bad_rows, args.seed)
    if rows is None:
        training, rows = None, training
    rows = rows_of_splits(rows, args.splits)
    pictures = pictures_of(rows) if "wrong_image" in settings else None
    rows = at_most(rows, args.limit, args.seed)
    if pictures is not None:
        for sample in rows:  # refuses a row without a wrong picture now, not after the model has answered others
            apply_setting("wrong_image", sample, pictures)
    shown = {
        "kb": open_knowledge(data_args),
        "level": data_args.context_level,
        "num_passages": data_args.num_passages,
        "seed": args.seed,
    }
    template = load_template(data_args.task_type)
    folder = Path(args.output_dir)

    def write_manifest(place: str) -> None:
        placed = dataclasses.replace(args, output_dir=place)
        write_run_manifest("evaluate_jsonl", (data_args, model_args, judge_args, placed), template)
        if args.adapter_name_or_path:  # its content decides the answers as the model's does
            manifest = read_manifest(place)
            files = sorted(Path(args.adapter_name_or_path).glob("adapter_*"))
            manifest["adapter"] = {file.name: file_hash(file) for file in files}
            write_json(Path(place) / "manifest.json", manifest)

    jobs = [(setting, id) for setting in settings for id in rows.ids]

    def start() -> dict:
        claim(folder, write_manifest, overwrite=args.overwrite)
        finished = read_finished(folder)
        refuse_older(finished)
        return {"pending": [job for job in jobs if job not in finished]}

    judge = judge_before_the_model(judge_args)
    shared = warn_of_shared_judge(args.adapter_name_or_path or model_args.model_name_or_path, judge_args)
    if shared and os.environ.get("RANK", "0") == "0":
        print(f"WARNING: {shared}", flush=True)
    pending = once_per_launch("start of evaluation", start)["pending"]
    if pending:
        prompting = shown | {"template": template, "system_prompt": data_args.system_prompt, "pictures": pictures}
        prompting["judge"] = judge
        answer(rows, pending, model_args, args, prompting)

    def conclude() -> dict:
        records = merge(folder, jobs)
        if judge is not None:
            without = judge_again(records, [rows[rows.index_of(id)] for _, id in jobs], judge)
            write_records(folder / PREDICTIONS, records)
            if without:
                print(
                    f"WARNING: the judge gave no verdict on {without:,} of {len(records):,} answers ({dict(judge.failures)}); they count as not scored. Start the same command again to ask once more.",
                    flush=True,
                )
        summary = summarise(records, seed=args.seed)
        folders = split_paths(data_args.image_folders) + split_paths(data_args.eval_image_folders or "")
        for split, scores in baselines(rows, training=training, image_folders=folders, **shown).items():
            summary["splits"][split]["baselines"] = scores
        write_json(folder / "summary.json", summary)
        console = Console()
        console.width = max(console.width, 120)  # rather broken lines than cut figures
        console.print(score_table(summary), markup=False)
        return summary

    with all_ranks_here():
        return once_per_launch("end of evaluation", conclude)


def answer(rows, jobs: list[tuple[str, str]], model_args, args: EvaluationArguments, prompting: dict) -> None:
    """Answer this rank's share of the jobs, every n-th, and write each few batches' records to its file."""
    import torch
    from rich.progress import Progress

    from open_r1_kivqa.evaluation.generate import greedy
    from open_r1_kivqa.evaluation.predict import predict
    from open_r1_kivqa.evaluation.records import RankFile
    from open_r1_kivqa.recipe import load_model_and_processor
    from open_r1_kivqa.vlm_modules.boxes import BoxScale

    model, module, processor = load_model_and_processor(model_args, adapter=args.adapter_name_or_path)
    prompting = prompting | {"box_scale": BoxScale(module, processor)}
    if args.adapter_name_or_path:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, args.adapter_name_or_path).merge_and_unload()
    if torch.cuda.is_available():
        model = model.to(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")

    def generate(prompts):
        return greedy(model, processor, prompts, max_new_tokens=args.max_new_tokens, batch_size=args.batch_size)

    rank = int(os.environ.get("RANK", "0"))
    share = jobs[rank :: world_size()]
    size = 4 * args.batch_size  # `greedy` sorts these by length; a stop loses no more than these
    file = RankFile(Path(args.output_dir), rank)
    with Progress(disable=rank > 0) as progress:
        bar = progress.add_task("answering", total=len(share))
        for setting in dict.fromkeys(setting for setting, _ in share):
            ids = [id for its_setting, id in share if its_setting == setting]
            for start in range(0, len(ids), size):
                samples = [rows[rows.index_of(id)] for id in ids[start : start + size]]
                file.append(predict(samples, setting, generate=generate, **prompting))
                progress.advance(bar, len(samples))
    file.close()


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


def refuse(data_args: DataArguments, model_args: VLMModelConfig, args: EvaluationArguments) -> None:
    """InputError for what evaluation cannot use: flags of training, an adapter that isn't there, settings that take away what there is not."""
    from open_r1_kivqa.evaluation.settings import SETTINGS, parse_settings

    for field in dataclasses.fields(model_args):
        if field.name not in MODEL_FLAGS and getattr(model_args, field.name) != field.default:
            raise InputError(f"--{field.name} has no effect in evaluation: leave it out.")
    if args.adapter_name_or_path and not (Path(args.adapter_name_or_path) / "adapter_config.json").is_file():
        raise InputError(
            f"--adapter_name_or_path {args.adapter_name_or_path} has no adapter_config.json: give the folder of a LoRA adapter."
        )
    for setting in parse_settings(args.settings):
        if SETTINGS[setting].level is not None and not data_args.knowledge_base:
            raise InputError(
                f"--settings {setting} chooses among passages, and without --knowledge_base there are none: leave it out, or name the knowledge base."
            )


if __name__ == "__main__":
    run(main)
