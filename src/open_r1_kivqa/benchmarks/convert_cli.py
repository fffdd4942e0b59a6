"""`kivqa convert`: turns the files of a public benchmark into a jsonl file of rows, for training and evaluation.

Exit code 0 if it was written, 2 if something given cannot be used.
"""

import argparse
import importlib
import os
from types import ModuleType

from ..data.jsonl import split_paths
from ..errors import InputError

# benchmark: (module, what --help says). A module has `add_flags(parser)`, which adds its own flags, and `convert(flags)`, which writes flags.output and gives lines for the terminal.
BENCHMARKS = {
    "evqa": (
        ".evqa_convert",
        "Encyclopedic-VQA's csv files: questions about species and landmarks, with their gold passages",
    ),
    "infoseek": (".infoseek_convert", "InfoSeek's jsonl files: questions about the entities of OVEN's images"),
    "viquae": (".viquae_convert", "ViQuAE's jsonl files: questions about named entities"),
    "wiki-r1": (
        ".wiki_r1_convert",
        "Wiki-R1's merged training set of InfoSeek and Encyclopedic-VQA, with its candidates",
    ),
    "kb": (
        ".kb_convert",
        "a knowledge base of Wikipedia articles, as published for these benchmarks: one article a line",
    ),
    "vlm-r1": (".vlm_r1_convert", "VLM-R1's own data: jsonl files, JSON lists, or a yaml file that lists them"),
    "rec": (".rec", "RefCOCO/+/g and LISA-Grounding from VLM-R1's rec_jsons_processed: one box for each expression"),
    "ovd": (".ovd", "detection data in COCO's form, and OVDEval: a list of labelled boxes for each image"),
}


def parser(benchmark: str | None) -> argparse.ArgumentParser:
    """The flags of one benchmark; the others are named only, and nothing of theirs is imported."""
    flags = argparse.ArgumentParser(
        prog="kivqa convert",
        description="Turn the files of a public benchmark into rows.",
        epilog="`kivqa convert <benchmark> --help` lists a benchmark's flags. What is written is read by training and by evaluate_jsonl.py, with the benchmark's images as "
        "--image_folders.",
        allow_abbrev=False,
    )
    benchmarks = flags.add_subparsers(dest="benchmark", required=True, metavar="<benchmark>")
    for name, (_, help) in BENCHMARKS.items():
        its = benchmarks.add_parser(name, help=help, description=f"Convert {help}.", allow_abbrev=False)
        if name == benchmark:
            _module(name).add_flags(its)
            its.add_argument("--output", required=True, help="jsonl file to write")
    return flags


def main(argv: list[str]) -> int:
    """Converts, and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser(argv[0] if argv else None).parse_args(argv)
    if not flags.output.endswith(".jsonl"):  # it could be the benchmark's own file
        raise InputError(f"--output {flags.output} doesn't end in .jsonl, as files of rows do; give it that ending.")
    for path in split_paths(getattr(flags, "input", "")):
        if os.path.exists(flags.output) and os.path.exists(path) and os.path.samefile(flags.output, path):
            raise InputError(f"--output {flags.output} is the --input; name another file.")
    print("\n".join(_module(flags.benchmark).convert(flags)))
    return 0


def _module(benchmark: str) -> ModuleType:
    return importlib.import_module(BENCHMARKS[benchmark][0], __package__)
