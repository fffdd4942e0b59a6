"""`kivqa convert`: turns the files of a public benchmark into a jsonl file of rows, for training and evaluation.

Exit code 0 if it was written, 2 if something given cannot be used.
"""

import argparse
import importlib
import os

from ..errors import InputError
from .items import write_rows

# benchmark: (module with `add_flags` and `convert`, what --help says)
BENCHMARKS = {
    "rec": (".rec", "RefCOCO/+/g and LISA-Grounding from VLM-R1's rec_jsons_processed: one box for each expression"),
    "ovd": (".ovd", "detection data in COCO's form, and OVDEval: a list of labelled boxes for each image"),
}


def parser() -> argparse.ArgumentParser:
    """The flags of all benchmarks."""
    flags = argparse.ArgumentParser(
        prog="kivqa convert",
        description="Turn the files of a public benchmark into rows.",
        epilog="`kivqa convert <benchmark> --help` lists a benchmark's flags. What is written is read by training and by evaluate_jsonl.py, with the benchmark's images as "
        "--image_folders.",
        allow_abbrev=False,
    )
    benchmarks = flags.add_subparsers(dest="benchmark", required=True, metavar="<benchmark>")
    for name, (module, help) in BENCHMARKS.items():
        its = benchmarks.add_parser(name, help=help, description=f"Convert {help}.", allow_abbrev=False)
        importlib.import_module(module, __package__).add_flags(its)
        its.add_argument("--output", required=True, help="jsonl file to write")
        its.add_argument("--split", help="name of the rows' split (default: the output's name without .jsonl)")
        its.add_argument(
            "--image_root",
            help="folder of the images; if given, each must be there and have the size that the benchmark says",
        )
        its.add_argument(
            "--skip_bad", action="store_true", help="leave out items that cannot be used, and say how many"
        )
    return flags


def main(argv: list[str]) -> int:
    """Converts, and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    if not flags.output.endswith(".jsonl"):  # it could be the benchmark's own file
        raise InputError(f"--output {flags.output} doesn't end in .jsonl, as files of rows do; give it that ending.")
    if flags.image_root and not os.path.isdir(flags.image_root):
        raise InputError(f"--image_root {flags.image_root} is no folder; give the one that the images lie in.")
    flags.split = flags.split or os.path.basename(flags.output).removesuffix(".jsonl")
    rows, left_out = importlib.import_module(BENCHMARKS[flags.benchmark][0], __package__).convert(flags)
    write_rows(flags.output, rows)
    print(f"{flags.output}: {len(rows):,} rows" + (f"; {left_out:,} bad items left out" if left_out else ""))
    return 0
