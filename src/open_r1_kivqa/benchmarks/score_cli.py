"""`kivqa score`: official scores of a file of predictions, by the benchmark's own rules.

Exit code 0 if there are scores, 2 if something given cannot be used.
"""

import argparse
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator

from ..errors import InputError
from . import judges

BATCH = 512  # questions whose verdicts are found at once
WHOLE_ANSWERS = ("</answer>", "</think>")  # what stands in completions, not in answers
TARGETS = {
    "infoseek": "InfoSeek: by split and question type, harmonic mean of the splits",
    "evqa": "Encyclopedic-VQA: by question type, single-hop, all",
    "viquae": "ViQuAE: exact match and F1",
    "rows": "rows of this library, each by its own method",
}
OFFICIAL_COUNTING = "as InfoSeek's official code: questions without a prediction don't count, unknown ids are passed over, repeated predictions count each"
OWN_COUNTING = "every question counts; one without a prediction is wrong"


def parser() -> argparse.ArgumentParser:
    """The flags of all targets."""
    flags = argparse.ArgumentParser(
        prog="kivqa score",
        description="Score predictions by a benchmark's official rules.",
        epilog="`kivqa score <target> --help` lists a target's flags. See docs/scores.md for what differs from the official code.",
        allow_abbrev=False,
    )
    targets = flags.add_subparsers(dest="target", required=True, metavar="<target>")
    its = {name: targets.add_parser(name, help=help, description=f"{help}.", allow_abbrev=False) for name, help in TARGETS.items()}  # fmt: skip
    its["infoseek"].add_argument("--references", required=True, help="infoseek_val.jsonl, or another of its files")
    its["infoseek"].add_argument(
        "--question_types", help="infoseek_val_qtype.jsonl; may be left out if the references have `question_type`"
    )
    its["evqa"].add_argument("--references", required=True, help="test.csv, or another of its files")
    its["viquae"].add_argument("--references", required=True, help="test.jsonl, or another of its files")
    its["rows"].add_argument("--references", required=True, help="jsonl files of rows, separated by ':'")
    its["rows"].add_argument(
        "--reward_method", help="of rows that name none: one for each file, separated by ':', or one for all"
    )
    for name, target in its.items():
        target.add_argument(
            "--predictions",
            required=True,
            help='jsonl file of {"data_id": …, "prediction": "text"}'
            + (", data_id the csv row from 0" * (name == "evqa")),
        )
        target.add_argument(
            "--official",
            action="store_true",
            help="count as InfoSeek's official code does: leave out questions without a prediction, pass over unknown ids, count repeated predictions each",
        )
        target.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        target.add_argument(
            "--per_sample", metavar="FILE", help="write each question's verdict, one JSON object a line"
        )
        if name in ("evqa", "rows"):
            judges.add_flags(target)
    return flags


def main(argv: list[str]) -> int:
    """Scores, prints and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # libraries greet on stdout, which belongs to the scores
        result = score(flags)
    if flags.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        from .score_tables import show

        show(result)
    for warning in result["warnings"]:
        print(f"WARNING: {warning}", file=sys.stderr)
    return 0


def score(flags: argparse.Namespace) -> dict:
    """Everything that is printed, as plain values: benchmark, rule, judge, counting, files with their sha256, coverage, scores, warnings.

    Raises:
        InputError: a file or a flag cannot be used, or predictions and references don't belong together.
    """
    from ..data.report import ProgressLine
    from .score_files import Matching, Predictions, Verdicts, described

    _check_output(flags)
    target = _target(flags)
    predictions = Predictions(flags.predictions, target.canonical)
    matching = Matching(predictions, target.ids, official=flags.official, several=target.several)
    if matching.has_shared_ids:
        target.refuse_mixed()
    counted, is_whole = Counter(), 0
    progress, done = ProgressLine(), 0
    with Verdicts(flags.per_sample) as file:
        for batch in _batches(target, matching):
            given = [one for one in batch if one[1] is not None]
            found = iter(target.verdicts(given))
            for question, prediction in batch:
                verdict = target.missing(question) if prediction is None else next(found)
                file.write({"data_id": question[0], **verdict})
                counted[target.counted(question, verdict)] += 1
            done += len(batch)
            progress("scored", done, len(matching.lines))
            is_whole += sum(any(mark in prediction for mark in WHOLE_ANSWERS) for _, prediction in given)
    progress.clear()
    coverage = matching.coverage()
    files = {name: [described(path) for path in paths] for name, paths in target.files.items()}
    result = {
        "benchmark": target.name,
        "rule": target.rule,
        "judge": target.judge,
        "counting": OFFICIAL_COUNTING if flags.official else OWN_COUNTING,
        "files": files | {"predictions": [described(flags.predictions)]},
        "coverage": coverage,
        "scores": target.summarise(counted),
    }
    return result | {"warnings": _warnings(result, flags.official, is_whole)}


def _target(flags: argparse.Namespace):
    from . import score_targets

    if flags.target == "infoseek":
        return score_targets.InfoSeek(flags.references, flags.question_types)
    if flags.target == "viquae":
        return score_targets.Viquae(flags.references)
    judge = judges.load_judge(flags)
    if flags.target == "evqa":
        return score_targets.Evqa(flags.references, judge)
    from .score_rows import OwnRows

    return OwnRows(flags.references, flags.reward_method, judge)


def _check_output(flags: argparse.Namespace) -> None:
    """InputError if --per_sample would take the place of something else, or can't be written."""
    path = flags.per_sample
    if path is None:
        return
    inputs = [flags.predictions, getattr(flags, "question_types", None), flags.references, *flags.references.split(":")]
    if os.path.realpath(path) in {os.path.realpath(given) for given in inputs if given}:
        raise InputError(f"--per_sample {path} is one of the files that are read; name another file.")
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"--per_sample {path} can be no file; name one in a folder that is there and can be written to."
        )


def _batches(target, matching) -> Iterator[list[tuple]]:
    """(question, prediction or None) of all that counts, some hundred at a time."""
    batch = []
    for i, question in enumerate(target.questions()):
        batch += [(question, prediction) for prediction in matching.of(i)]
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _warnings(result: dict, official: bool, is_whole: int) -> list[str]:
    from .score_files import listed

    coverage, told = result["coverage"], []
    if coverage["missing"]:
        share = 100 * coverage["missing"] / coverage["questions"]
        told.append(
            f"{coverage['missing']:,} of {coverage['questions']:,} questions ({share:.2f} %) have no prediction and {'are left out' if official else 'count as wrong'}: {listed(coverage['missing_examples'], coverage['missing'])}."
        )
    if coverage["unknown"]:
        told.append(
            f"Predictions that belong to no question, passed over: {coverage['unknown']:,} ({listed(coverage['unknown_examples'], coverage['unknown'])})."
        )
    if coverage["repeated"]:
        told.append(
            f"Further predictions of an id, which count each: {coverage['repeated']:,} ({listed(coverage['repeated_examples'], coverage['repeated'])})."
        )
    if is_whole:
        told.append(
            f"Predictions with {' or '.join(WHOLE_ANSWERS)} in them: {is_whole:,}. They are whole completions, and the rules compare answers; give the answers alone."
        )
    asked = result["scores"].get("judged", {})
    if asked.get("cut"):
        told.append(
            f"The judge saw {asked['cut']:,} of {asked['pairs']:,} candidates cut; they are longer than it reads."
        )
    if asked.get("unclear"):
        told.append(
            f"{asked['unclear']:,} of the judge's {asked['pairs']:,} replies were no verdict and count as wrong."
        )
    if result["scores"].get("without_verdict"):
        told.append(
            f"{result['scores']['without_verdict']:,} rows have no reference that their method reads; they don't count."
        )
    return told
