"""The committed benchmark, proved from its files alone: no leaks between splits, and nothing to win without seeing and reading."""

import hashlib
from collections import defaultdict
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from PIL import Image

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.demo import DATA, EVAL, IMAGES, KNOWLEDGE, KNOWLEDGE_FULL, TRAIN, pictures, soundness
from open_r1_kivqa.rewards.methods import score


@pytest.fixture(scope="module")
def train():
    return soundness.read_jsonl(TRAIN)


@pytest.fixture(scope="module")
def evaluation():
    rows = defaultdict(list)
    for row in soundness.read_jsonl(EVAL):
        rows[row["split"]].append(row)
    return rows


@pytest.fixture(scope="module")
def passages():
    return {
        f"{article['key']}#{section['id']}": section["text"]
        for article in soundness.read_jsonl(KNOWLEDGE)
        for section in article["sections"]
    }


def entities(rows):
    return {key.split("#")[0] for row in rows for one in soundness.candidate_sets(row) for key in one}


def question(row):
    return row["conversations"][0]["value"]


def phrase(row):
    return question(row).split("What is the ")[1].rsplit(" of the country", 1)[0]


def test_splits_have_rows_and_ids_are_unique(train, evaluation):
    assert len(train) == 4000
    assert {name: len(rows) >= 170 for name, rows in evaluation.items()} == {
        "unseen_question": True,
        "unseen_entity": True,
        "maps": True,
    }
    ids = [row["id"] for row in train + sum(evaluation.values(), [])]
    assert len(ids) == len(set(ids))


def test_rows_parse_and_their_gold_passage_states_the_answer(train, evaluation, passages):
    for row in train + sum(evaluation.values(), []):
        sample = parse_row(row, image_folder=str(IMAGES), reward_method="default", source="test")
        text = passages[row["evidence"]]
        assert text.startswith(f"{phrase(row)} of ") and text.endswith(f": {sample.answer}")
        assert row["evidence"] == f"{row['entity']}#{row['question_type']}"
        for one in soundness.candidate_sets(row):
            assert len(set(one)) == 5 and row["evidence"] in one
            assert all(passages[key].startswith(f"{phrase(row)} of ") for key in one)


def test_answers_of_a_prompt_are_pairwise_unequal_under_the_scorer(train, evaluation, passages):
    """No candidate's answer scores anything for another candidate: checked on every pair that stands together in some set."""
    answers = {row["evidence"]: row for row in train + sum(evaluation.values(), [])}
    pairs = {pair for row in answers.values() for one in soundness.candidate_sets(row) for pair in combinations(one, 2)}
    checked = 0
    for pair in pairs:
        for gold, other in (pair, pair[::-1]):
            if gold in answers:
                sample = parse_row(answers[gold], image_folder=str(IMAGES), reward_method="default", source="test")
                assert score(sample.answer, sample) == 1.0
                assert score(passages[other].rsplit(": ", 1)[1], sample) == 0.0, (gold, other)
                checked += 1
    assert checked > 5000


def test_unseen_entities_are_in_no_training_row(train, evaluation):
    unseen = entities(evaluation["unseen_entity"])
    assert len(unseen) >= 35
    assert not unseen & entities(train)
    assert not unseen & entities(evaluation["unseen_question"] + evaluation["maps"])
    shown = {row["image"].split("/")[-1].split("_")[0] for row in train}
    assert not unseen & shown
    on_disk = {path.stem.split("_")[0] for name in ("train", "maps_train") for path in (IMAGES / name).iterdir()}
    assert not unseen & on_disk


def test_unseen_questions_are_in_no_training_row(train, evaluation):
    held_out = {phrase(row) for row in evaluation["unseen_question"]}
    kinds = {row["question_type"] for row in evaluation["unseen_question"]}
    asked = {question(row) for row in train}
    assert len(held_out) == 7
    assert not any(words in text for words in held_out for text in asked)
    assert not kinds & {row["question_type"] for row in train}
    assert not kinds & {row["question_type"] for row in evaluation["unseen_entity"] + evaluation["maps"]}


def test_no_picture_is_shared(train, evaluation):
    """By content: training pictures, evaluation pictures, maps and the knowledge base's flags are all different, on disk as in the rows."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in sorted(IMAGES.rglob("*.*")):
        names[hashlib.sha256(Image.open(path).convert("RGB").tobytes()).hexdigest()].append(str(path))
    assert [twins for twins in names.values() if len(twins) > 1] == []
    assert {row["image"].split("/")[0] for row in train} == {"train"}
    assert {row["image"].split("/")[0] for row in evaluation["unseen_question"] + evaluation["unseen_entity"]} == {
        "eval"
    }
    assert {row["image"].split("/")[0] for row in evaluation["maps"]} == {"maps_eval"}


def test_pictures_have_the_sizes_that_the_tiny_model_expects():
    for name, size in (
        ("flags", (224, 168)),
        ("train", (112, 84)),
        ("eval", (112, 84)),
        ("maps_train", (112, 84)),
        ("maps_eval", (112, 84)),
    ):
        assert {Image.open(path).size for path in (IMAGES / name).iterdir()} == {size}


def test_committed_variants_come_from_the_committed_seeds():
    """A decoded JPEG differs a little from what was drawn, and a palette from the flag: the same picture within noise, another seed far off."""
    flag = Image.open(IMAGES / "flags" / "ke.png").convert("RGB")
    committed = pictures.features(Image.open(IMAGES / "eval" / "ke_1.jpg"))
    same = pictures.features(pictures.photo_variant(flag, pictures.variant_seed("eval", "ke", 1)))
    other = pictures.features(pictures.photo_variant(flag, pictures.variant_seed("eval", "ke", 2)))
    assert pictures.distances(committed[None], np.stack([same, other]))[0].tolist() == pytest.approx(
        [0.0, 0.3], abs=0.2
    )
    assert pictures.distances(committed[None], same[None])[0, 0] < 0.02


@pytest.mark.parametrize("name", ["train", "eval"])
def test_retrieval_is_neither_perfect_nor_hopeless(name):
    names = sorted(f"{name}/{path.name}" for path in (IMAGES / name).iterdir())
    found = soundness.retrieval(DATA, names)
    assert 0.3 <= found["R@1"] <= 0.5
    assert 0.6 <= found["R@5"] <= 0.8


def test_no_rule_beats_chance_without_the_picture(train, evaluation):
    """Medoid, neighbour and frequency rules stay within three standard errors of 1 in 5."""
    for rows in (train, *evaluation.values()):
        error = sqrt(0.2 * 0.8 / len(rows))
        for rule, share in soundness.blind_rules(DATA, rows).items():
            assert abs(share - 0.2) < 3 * error, (rows[0]["split"], rule)


def test_no_value_is_too_common():
    assert max(soundness.most_common_values(DATA).values()) <= 0.05


def test_questions_of_an_attribute_share_one_wording(train, evaluation):
    wordings = defaultdict(set)
    for row in train + sum(evaluation.values(), []):
        wordings[row["question_type"], row["split"] == "maps"].add(question(row))
    assert {len(texts) for texts in wordings.values()} == {1}


def test_variants_of_training_pictures_are_used_evenly(train):
    counts = np.bincount([int(row["image"][-5]) for row in train])
    assert len(counts) == 4 and counts.min() > 0.9 * counts.max()


def test_full_passages_open_with_a_flag_that_names_nothing(passages):
    articles = soundness.read_jsonl(KNOWLEDGE_FULL)
    described = 0
    for article in articles:
        for section in article["sections"]:
            short = passages[f"{article['key']}#{section['id']}"]
            assert section["text"].endswith(short)
            flag = section["text"].removesuffix(short)
            assert article["title"] not in flag
            assert "meaning:" not in flag
            described += flag.startswith("Flag: ")
    assert described > 0.95 * len(passages)


def test_size():
    assert sum(path.stat().st_size for path in DATA.rglob("*.*")) < 10e6
