"""A knowledge base of the size of Wikipedia: `python bench/knowledge.py [--articles 2000000] [--folder DIR]`.

Writes articles into a temporary folder (below DIR if given; 1.6 GB at the default), opens them with an empty cache and again from it, each time in a process of its own, and prints as its last line one JSON object:
  articles, mib            what was written
  first_open_s             seconds to open the knowledge base with nothing remembered from before
  first_open_rss_mib       peak resident memory of that process, imports included
  open_s                   the same from the cache, as every later process opens it
  lookup_us                microseconds from a key to its passage, mean of 20,000 drawn at random from a file that the system has in memory
  lookup_p99_us            the time that 99 % of them stay below
  rss_mib                  peak resident memory of that process after these look-ups, imports included
  base_rss_mib             before the knowledge base is opened
  titles_first_open_s      seconds to read the names of all articles: keys, titles, urls, aliases
  titles_first_rss_mib     peak resident memory of that process
  titles_open_s            the same from the cache
  titles_lookup_us         microseconds from a name to its key, mean of 20,000: as many titles, urls, aliases and redirected titles
  titles_rss_mib           peak resident memory of that process after these look-ups
  cache_mib                what was remembered
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ = 20_000  # look-ups
WORDS = "river tower city station species island church battle river painter village bridge mountain album".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--articles", type=int, default=2_000_000, help="how many articles to write")
    parser.add_argument("--folder", help="where to write them")
    parser.add_argument("--step", choices=("articles", "titles"), help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        steps = {"articles": look_up_articles, "titles": look_up_titles}
        print(json.dumps(steps[arguments.step](arguments.path, arguments.articles)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        os.environ["KIVQA_CACHE"] = f"{name}/cache"
        print(json.dumps(measure(Path(name), arguments.articles)))


def measure(folder: Path, number: int) -> dict:
    path = folder / "knowledge.jsonl"
    write(path, number)
    print(f"{number} articles, {path.stat().st_size / 2**20:.0f} MiB written", flush=True)

    def step(name: str) -> dict:
        command = [sys.executable, __file__, "--step", name, "--path", str(path), "--articles", str(number)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"{name}: {out.strip()}", flush=True)
        return json.loads(out.splitlines()[-1])

    first, again = step("articles"), step("articles")
    first_titles, titles = step("titles"), step("titles")
    cache = sum(file.stat().st_size for file in (folder / "cache").rglob("*.npy"))
    return {
        "articles": number,
        "mib": round(path.stat().st_size / 2**20),
        "first_open_s": first["open_s"],
        "first_open_rss_mib": first["open_rss_mib"],
        "open_s": again["open_s"],
        "lookup_us": again["lookup_us"],
        "lookup_p99_us": again["lookup_p99_us"],
        "base_rss_mib": again["base_rss_mib"],
        "rss_mib": again["rss_mib"],
        "titles_first_open_s": first_titles["open_s"],
        "titles_first_rss_mib": first_titles["open_rss_mib"],
        "titles_open_s": titles["open_s"],
        "titles_lookup_us": titles["lookup_us"],
        "titles_rss_mib": titles["rss_mib"],
        "cache_mib": round(cache / 2**20),
    }


def look_up_articles(path: str, number: int) -> dict:
    from open_r1_kivqa.knowledge.base import KnowledgeBase

    base = rss_mib()
    start = time.perf_counter()
    kb = KnowledgeBase.open(path)
    opened = {"base_rss_mib": base, "open_s": round(time.perf_counter() - start, 2), "open_rss_mib": rss_mib()}
    assert len(kb) == number
    generator = random.Random(0)
    keys = [f"{url(generator.randrange(number))}#{generator.randrange(3)}" for _ in range(READ)]
    return {**opened, **timed(lambda key: kb.passage(key).text, keys)}


def look_up_titles(path: str, number: int) -> dict:
    from open_r1_kivqa.knowledge.base import KnowledgeBase
    from open_r1_kivqa.knowledge.titles import Titles

    generator = random.Random(1)
    places = [generator.randrange(number) for _ in range(READ)]
    redirects = {f"Old {i}": title(i) for i in places}
    kb = KnowledgeBase.open(path)
    start = time.perf_counter()
    titles = Titles.open(kb, redirects)
    opened = {"open_s": round(time.perf_counter() - start, 2), "open_rss_mib": rss_mib()}
    forms = (title, lambda i: url(i).replace("_", "%20"), alias, lambda i: f"old_{i}")
    names = [(forms[k % len(forms)](i), url(i)) for k, i in enumerate(places)]

    def find(pair: tuple[str, str]) -> None:
        assert titles.find(pair[0]) == pair[1], pair

    return {**opened, **timed(find, names)}


def timed(function, values: list) -> dict:
    """The mean and the 99th percentile of a call, in microseconds, and the memory after all of them."""
    seconds = []
    for value in values:
        start = time.perf_counter()
        function(value)
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return {
        "lookup_us": round(sum(seconds) / len(seconds) * 1e6, 1),
        "lookup_p99_us": round(seconds[len(seconds) * 99 // 100] * 1e6, 1),
        "rss_mib": rss_mib(),
    }


def rss_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def title(i: int) -> str:
    return f"{WORDS[i % len(WORDS)].capitalize()} {i} ({WORDS[i // 7 % len(WORDS)]})"


def url(i: int) -> str:
    return f"https://en.wikipedia.org/wiki/{title(i).replace(' ', '_')}"


def alias(i: int) -> str:
    return f"The {WORDS[i % len(WORDS)]} no. {i}"


def write(path: Path, number: int) -> None:
    text = " ".join(WORDS)
    with open(path, "w", encoding="utf-8") as file:
        for i in range(number):
            sections = [{"id": str(k), "title": f"Part {k}", "text": f"Fact {k} of {i}: {text}."} for k in range(3)]
            record = {"key": url(i), "title": title(i), "url": url(i), "sections": sections, "images": []}
            file.write(json.dumps({**record, "aliases": [alias(i)]}) + "\n")
    os.utime(path, (1e9, 1e9))  # as a file at rest: one that has just changed is not remembered


if __name__ == "__main__":
    main()
