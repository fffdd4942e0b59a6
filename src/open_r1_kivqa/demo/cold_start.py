"""What the tiny checkpoint is made from: a random model, pictures, and rows for supervised training (see cold_start.sh for the whole way).

    python -m open_r1_kivqa.demo.cold_start --output outputs/cold_start --rows 40000
    python -m open_r1_kivqa.demo.cold_start --export outputs/cold_start/trained --output src/open_r1_kivqa/demo/tiny_qwen2_5_vl

The rows teach what the reinforcement learning builds on, and leave it the rest:
- recall: five passages, to be written in another order. Text only: the model learns to find a fact by the name of its country;
- naming: a picture (a flag, or sometimes a map) and a question, no passages: the response names the country and says that the answer is unknown;
- quoting: a picture, one passage and a question: the response quotes the passage, then answers;
- guessing: a picture, or sometimes none, and five passages, of which the response quotes any one, whatever the picture shows: the form without the choice.
So the model can name a flag and look a name up, and choosing by the picture is left to learn. No row tells a fact: values are shuffled among countries or made of random words of the knowledge
base, or the model would learn them by heart and stop reading. Attributes held out from training (split unseen_question) and entities held out (unseen_entity) are in no row.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from open_r1_kivqa.data.samples import IMAGE_MARKER
from open_r1_kivqa.demo import IMAGES, KNOWLEDGE, TRAIN
from open_r1_kivqa.demo.pictures import photo_variant, save_photo, variant_seed
from open_r1_kivqa.demo.tiny_model import build_model, build_processor, save

BATCH = 32  # rows of one kind stand together, so that a batch of this size holds rows of like length
SHARES = {"naming": 0.5, "recall": 0.1, "quoting": 0.2, "guessing": 0.2}
MAP_SHARE, BLIND_SHARE = 0.15, 0.15  # of naming rows with a map, of guessing rows without a picture
REORDER = "List all of this in another order."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--rows", type=int, default=40_000, help="rows of rows.jsonl")
    parser.add_argument("--pictures", type=int, default=40, help="photo-like pictures of each flag")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--export", type=Path, help="instead of all that, write this trained checkpoint to --output in bfloat16"
    )
    args = parser.parse_args()
    if args.export:
        save(
            AutoModelForImageTextToText.from_pretrained(args.export, dtype=torch.bfloat16),
            AutoProcessor.from_pretrained(args.export),
            args.output,
        )
        return

    facts = Facts()
    processor = build_processor(facts.corpus(), facts.titles.values())
    save(build_model(processor, seed=args.seed), processor, args.output / "random")
    draw_pictures(facts, args.output / "images", args.pictures)
    with open(args.output / "rows.jsonl", "w", encoding="utf-8") as file:
        for row in make_rows(facts, args.rows, args.output / "images", np.random.default_rng(args.seed)):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


class Facts:
    """The knowledge base as far as training may see it.

    Attributes:
        titles: of every article, by key.
        shown: keys of the entities that training rows show or offer, sorted; mapped: those with training maps.
        phrases: how the attributes of training rows are called, by their key.
        values: the values of an attribute, by its key, over the shown entities.
        words, tail_words, phrase_words, other_words: all words of values; those of letters only; all words of phrases; values' words in small letters. Held-out values and phrases give words
            too: a vocabulary, not facts.
    """

    def __init__(self):
        articles = [json.loads(line) for line in KNOWLEDGE.read_text(encoding="utf-8").splitlines()]
        rows = [json.loads(line) for line in TRAIN.read_text(encoding="utf-8").splitlines()]
        self.articles = articles
        self.titles = {article["key"]: article["title"] for article in articles}
        self.shown = sorted({key.split("#")[0] for row in rows for one in row["candidates"] for key in one})
        self.mapped = [key for key in self.shown if (IMAGES / "maps_train" / f"{key}_0.png").exists()]
        self.phrases, self.values, words = {}, {}, set()
        asked = {row["question_type"] for row in rows}
        for article in articles:
            for section in article["sections"]:
                value = section["text"].split(": ", 1)[1]
                words.update(value.split())
                if section["id"] in asked and article["key"] in self.shown:
                    self.phrases[section["id"]] = section["title"]
                    self.values.setdefault(section["id"], []).append(value)
        self.words = sorted(words)
        self.tail_words = [word for word in self.words if word.isalpha()]
        self.phrase_words = sorted(
            {word for article in articles for section in article["sections"] for word in section["title"].split()}
        )
        self.other_words = sorted({word.lower() for word in self.tail_words if len(word) > 2})

    def corpus(self) -> list[str]:
        """Texts for the tokenizer: values, phrases and questions as they stand in prompts, apart from the titles, which are tokens of their own."""
        texts = []
        for section in [section for article in self.articles for section in article["sections"]]:
            texts += [section["text"].split(": ", 1)[1], f"- {section['title']} of", question(section["title"])]
        return texts + [REORDER, "user\n", "assistant\n", "unknown"] * 200

    def passages(self, count: int, rng: np.random.Generator) -> tuple[str, list[str], list[str], list[str]]:
        """(phrase, keys, values, lines) of passages on one attribute of `count` entities. Most attributes are made up of random words, so that phrases are copied, not recited."""
        attribute, phrase = self.attribute(rng)
        keys = rng.choice(self.shown, count, replace=False).tolist()
        values: list[str] = []
        while len(values) < count:
            if attribute and rng.random() < 0.5:
                value = str(rng.choice(self.values[attribute]))
            else:
                value = " ".join([str(rng.choice(self.words)), *rng.choice(self.tail_words, rng.integers(3))])
            if value not in values:
                values.append(value)
        return (
            phrase,
            keys,
            values,
            [f"- {phrase} of {self.titles[key]}: {value}" for key, value in zip(keys, values, strict=True)],
        )

    def attribute(self, rng: np.random.Generator) -> tuple[str | None, str]:
        """An attribute's key and phrase, or None and one to three random words."""
        if rng.random() < 0.4:
            key = str(rng.choice(sorted(self.phrases)))
            return key, self.phrases[key]
        words = self.phrase_words if rng.random() < 0.6 else self.other_words
        return None, " ".join(rng.choice(words, rng.integers(1, 4)))


def draw_pictures(facts: Facts, folder: Path, count: int) -> None:
    """Photo-like pictures of the shown entities' flags, none of them the benchmark's, and copies of the training maps."""
    for kind in ("flag", "map"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for key in facts.shown:
        flag = Image.open(IMAGES / "flags" / f"{key}.png").convert("RGB")
        for number in range(count):
            save_photo(
                photo_variant(flag, variant_seed("cold_start", key, number)), folder / "flag" / f"{key}_{number}.jpg"
            )
        for path in (IMAGES / "maps_train").glob(f"{key}_*.png"):
            shutil.copy(path, folder / "map" / path.name)


def question(phrase: str, picture: str = "flag") -> str:
    """As the benchmark asks."""
    return f"What is the {phrase} of the country on this {picture}?"


def response(thought: str, answer: str) -> str:
    return f"<think>{thought}</think>\n<answer>{answer}</answer>"


# Each kind of row: (picture "flag", "map" or None; key of the entity it shows; prompt; response).


def recall(facts: Facts, rng: np.random.Generator) -> tuple[str | None, str, str, str]:
    _, keys, _, lines = facts.passages(5, rng)
    return None, keys[0], "\n".join([*lines, REORDER]), "\n".join(rng.permutation(lines))


def naming(facts: Facts, rng: np.random.Generator) -> tuple[str | None, str, str, str]:
    picture = "map" if rng.random() < MAP_SHARE else "flag"
    key, (_, phrase) = str(rng.choice(facts.mapped if picture == "map" else facts.shown)), facts.attribute(rng)
    return picture, key, question(phrase, picture), response(f"- {phrase} of {facts.titles[key]}: unknown", "unknown")


def quoting(facts: Facts, rng: np.random.Generator) -> tuple[str | None, str, str, str]:
    phrase, (key,), (value,), (line,) = facts.passages(1, rng)
    return "flag", key, f"{line}\n{question(phrase)}", response(line, value)


def guessing(facts: Facts, rng: np.random.Generator) -> tuple[str | None, str, str, str]:
    phrase, keys, values, lines = facts.passages(5, rng)
    chosen = rng.integers(5)
    picture = None if rng.random() < BLIND_SHARE else "flag"
    return (
        picture,
        str(rng.choice(keys)),
        "\n".join([*lines, question(phrase)]),
        response(lines[chosen], values[chosen]),
    )


KINDS = {"recall": recall, "naming": naming, "quoting": quoting, "guessing": guessing}


def make_rows(facts: Facts, count: int, images: Path, rng: np.random.Generator) -> Iterator[dict]:
    """Rows in batches of one kind, to be read in order."""
    files: dict[tuple[str, str], list[str]] = {}
    for path in sorted(images.glob("*/*_*")):
        picture, key = path.parent.name, path.stem.split("_")[0]
        files.setdefault((picture, key), []).append(f"{picture}/{path.name}")
    for start in range(0, count, BATCH):
        kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
        for number in range(start, min(start + BATCH, count)):
            picture, key, prompt, answer = KINDS[kind](facts, rng)
            image = {"image": str(rng.choice(files[picture, key]))} if picture else {}
            marker = f"{IMAGE_MARKER}\n" if picture else ""
            turns = [{"from": "human", "value": marker + prompt}, {"from": "gpt", "value": answer}]
            yield {"id": f"{kind}-{number:06d}", **image, "conversations": turns}


if __name__ == "__main__":
    main()
