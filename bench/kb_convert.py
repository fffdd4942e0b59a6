"""Memory and speed of `kivqa convert kb`: `python bench/kb_convert.py [--megabytes 650] [--folder DIR] [--record_every SECONDS]`.

Writes a knowledge base in Encyclopedic-VQA's form into a temporary folder (below DIR if given; twice --megabytes), converts it in a process of its own, kills a second conversion on its way and starts it again, and
prints as its last line one JSON object:
  megabytes, articles      what was written
  seconds, mb_per_s        of the conversion, start of Python included
  rss_mib                  peak resident memory of that process
  same_after_kill          whether the killed and continued conversion gave the same bytes; null if it ended before it had recorded how far it was, so that it wasn't killed
"""

import argparse
import filecmp
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from open_r1_kivqa.benchmarks.converted import EVERY

WORDS = "the tower stands in a city of its own near river lake mountain species family genus built year church".split()
RECORDED = "from open_r1_kivqa.benchmarks import converted; converted.EVERY = {}; "
MEASURED = "import resource, sys; from open_r1_kivqa.cli import main; code = main(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024); sys.exit(code)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=650, help="how much to write")
    parser.add_argument("--folder", help="where to write it")
    parser.add_argument(
        "--record_every",
        type=float,
        default=EVERY,
        help="seconds before the conversion that is killed first records how far it is; less than %(default)s for one that takes no longer",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        print(json.dumps(measure(Path(name), arguments.megabytes, arguments.record_every)))


def measure(folder: Path, megabytes: int, record_every: float) -> dict:
    source, once, twice = folder / "kb.json", folder / "once.jsonl", folder / "twice.jsonl"
    articles = write(source, megabytes * 10**6)
    size = source.stat().st_size / 1e6
    print(f"{articles:,} articles, {size:.0f} MB written", flush=True)
    flags = ["convert", "kb", "--input", str(source), "--output"]
    command = [sys.executable, "-c", MEASURED, *flags]
    start = time.perf_counter()
    out = subprocess.run([*command, str(once)], check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - start
    recording = [sys.executable, "-c", RECORDED.format(record_every) + MEASURED, *flags]
    killed = subprocess.Popen([*recording, str(twice)], stdout=subprocess.DEVNULL)
    while killed.poll() is None and not os.path.exists(f"{twice}.part.json"):
        time.sleep(0.01)
    killed.kill()
    on_its_way = killed.wait() == -signal.SIGKILL
    subprocess.run([*command, str(twice)], check=True, capture_output=True)
    return {
        "megabytes": round(size),
        "articles": articles,
        "seconds": round(seconds, 1),
        "mb_per_s": round(size / seconds, 1),
        "rss_mib": round(float(out.splitlines()[-1])),
        "same_after_kill": filecmp.cmp(once, twice, shallow=False) if on_its_way else None,
    }


def write(path: Path, size: int) -> int:
    """The number of articles; texts differ by a number, so that none of them is as another."""
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randrange(60, 300))) for _ in range(500)]
    written = number = 0
    with open(path, "w", encoding="ascii") as file:
        written += file.write("{")
        while written < size:
            url, sections = f"https://en.wikipedia.org/wiki/Article_{number}_%C3%A9", generator.randrange(3, 20)
            article = {
                "title": f"Article {number} é",
                "section_titles": [f"Section {place}" for place in range(sections)],
                "section_texts": [f"{generator.choice(texts)} é – {number}/{place}" for place in range(sections)],
                "image_urls": [f"https://upload.wikimedia.org/{number}_{place}.jpg" for place in range(3)],
                "image_reference_descriptions": ["x"] * 3,
                "image_section_indices": [0, 1, 2],
                "url": url,
            }
            written += file.write(f"{', ' if number else ''}{json.dumps(url)}: {json.dumps(article)}")
            number += 1
        file.write("}")
    return number


if __name__ == "__main__":
    main()
