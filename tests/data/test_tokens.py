import random
from dataclasses import replace

import numpy as np
import pytest
from check_rows import row, write
from PIL import Image

from open_r1_kivqa.data.checks import run_checks
from open_r1_kivqa.data.row_checks import Limits
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.data.sources import Source
from open_r1_kivqa.data.tokens import PARTS, TokenCounter, percentiles
from open_r1_kivqa.evaluation.generate import tokenize_prompts
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.budget import PassageBudget
from open_r1_kivqa.knowledge.context import choose_passages
from open_r1_kivqa.knowledge.pictures import PassagePictures
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import build_prompt, load_template
from open_r1_kivqa.vlm_modules import module_for
from open_r1_kivqa.vlm_modules.loading import load_config, load_processor

SIZES = [(56, 56), (200, 120), (64, 180), (301, 97)]
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    for i, size in enumerate(SIZES):
        Image.new("RGB", size).save(tmp_path / f"{i}.png")
    words = random.Random(0)
    sections = [
        {"id": str(i), "title": "Part", "text": " ".join(words.choices(["capital", "river", "euro 42"], k=3 * i))}
        for i in range(1, 8)
    ]
    write(tmp_path / "kb.jsonl", [{"key": "France", "title": "France", "sections": sections}])
    return tmp_path


def counter_for(path, folder, levels=("retrieved",), **shown):
    processor = load_processor(path)
    prompting = Prompting(load_template("kivqa"), seed=0, kb=KnowledgeBase.open(folder / "kb.jsonl"), **shown)
    return TokenCounter(processor, module_for(load_config(path)), prompting, levels)


def sample(folder, **fields):
    return parse_row(row("1", **fields), image_folder=str(folder), reward_method="", source="a:1")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_is_what_the_processor_makes(family, tiny_model, folder):
    counter = counter_for(tiny_model(family), folder, num_passages=3)
    samples = [
        sample(folder, image="0.png", candidates=[f"France#{i}" for i in range(1, 8)]),
        sample(folder, image=["1.png", "2.png"], question="Is <image> like <image>?", candidates=["France#7"]),
        sample(folder, image="3.png"),
        sample(folder, image=None, question="Which capital?"),
    ]
    counts = counter.count(samples, [[SIZES[0]], [SIZES[1], SIZES[2]], [SIZES[3]], []])
    for i, one in enumerate(samples):
        passages = choose_passages(one, counter.prompting.kb, level="retrieved", num_passages=3, seed=0, draw=None)
        prompt = build_prompt(one, passages, counter.prompting.template)
        tokens = counter.processor.apply_chat_template(
            [prompt], add_generation_prompt=True, tokenize=True, return_dict=True
        )
        assert counts["prompt"][i] == len(tokens["input_ids"][0])
    assert (counts["prompt"] == sum(counts[part] for part in PARTS[:-1])).all()
    assert (counts["rest"] > 0).all() and counts["image"][3] == counts["passages"][3] == 0


def test_a_row_counts_with_its_longest_candidate_set(tiny_model, folder):
    counter = counter_for(tiny_model("qwen2_5_vl"), folder)
    short, long = ["France#1", "France#2"], ["France#6", "France#7"]
    one, both = (
        sample(folder, image="0.png", candidates=long),
        sample(folder, image="0.png", candidates=[short, long, short]),
    )
    counts = counter.count([one, both], [[SIZES[0]]] * 2)
    assert counts["prompt"][0] == counts["prompt"][1]
    words = counter.processor.tokenizer([counter.prompting.kb.passage(key).text for key in long])["input_ids"]
    assert counts["passages"].tolist() == [sum(map(len, words))] * 2


def test_a_row_counts_with_its_longest_level(tiny_model, folder):
    """Level 1 shows the long gold passage alone, "retrieved" two short ones."""
    one = sample(folder, image="0.png", candidates=["France#1", "France#2"], evidence=["France#7"])
    prompts = {}
    for levels in (("1",), ("retrieved",), ("1", "retrieved")):
        counter = counter_for(tiny_model("qwen2_5_vl"), folder, levels=levels, num_passages=2)
        prompts[levels] = counter.count([one], [[SIZES[0]]])["prompt"][0]
    assert prompts["1",] > prompts["retrieved",] and prompts["1", "retrieved"] == prompts["1",]


def test_percentiles_are_lengths_that_occur():
    assert percentiles({"prompt": np.arange(1, 101)}) == {"prompt": {"p50": 50, "p90": 90, "p99": 99, "max": 100}}
    assert percentiles({"prompt": np.array([7])})["prompt"] == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles({"prompt": np.array([])}) == {}


def test_long_prompts_and_odd_shapes_are_problems(tiny_model, folder):
    Image.new("RGB", (4, 2000)).save(folder / "tall.png")
    rows = [
        row("1", image="0.png"),
        row("2", image="0.png", question="<image>" + "capital " * 200),
        row("3", image="tall.png"),
        row("4", image="0.png", evidence="Spain#1"),
    ]
    counter = counter_for(tiny_model("qwen2_5_vl"), folder)
    source = Source(write(folder / "rows.jsonl", rows), str(folder))
    free = run_checks([source], kb=counter.prompting.kb, counter=counter, limits=Limits(context=10_000))
    assert [(p.kind, p.id) for p in free.problems] == [("image_shape", "3"), ("passage_missing", "4")]
    longest = free.tokens["prompt"]["max"]
    at_limit = run_checks(
        [source], kb=counter.prompting.kb, counter=counter, limits=Limits(context=longest + 50, completion=50)
    )
    assert at_limit.problems == free.problems
    below = run_checks(
        [source], kb=counter.prompting.kb, counter=counter, limits=Limits(context=longest + 49, completion=50)
    )
    assert [(p.kind, p.id) for p in below.problems] == [
        ("prompt_too_long", "2"),
        ("image_shape", "3"),
        ("passage_missing", "4"),
    ]
    assert (
        f"its prompt has {longest} tokens, and the model takes {longest + 49} with 50 kept" in below.problems[0].message
    )


def test_no_pixel_is_decoded_for_counting(tiny_model, folder, monkeypatch):
    counter = counter_for(tiny_model("internvl"), folder)

    def refuse(self):
        raise AssertionError("pixels were read")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    assert counter.count([sample(folder, image="0.png")], [[SIZES[0]]])["image"].tolist() == [2 + 4]


@pytest.fixture
def pictured(folder):
    """Three articles, two of them with a picture of their own size, and sections of three sentences."""
    text = "The capital is Paris. A river is here. The euro is 42."
    articles = [
        {"key": key, "title": key, "sections": [{"id": "0", "title": "", "text": text}], "images": images}
        for key, images in (("France", ["1.png"]), ("Spain", ["3.png"]), ("Peru", []))
    ]
    write(folder / "kb.jsonl", articles)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_cut_passages_and_their_pictures_count_as_the_processor_makes_them(family, tiny_model, pictured):
    counter = counter_for(tiny_model(family), pictured, levels=("gold", "retrieved"), num_passages=3)
    tokenizer = counter.processor.tokenizer
    budget = PassageBudget(tokenizer, len(tokenizer("The capital is Paris.")["input_ids"]))
    shown = replace(counter.prompting, budget=budget, passage_pictures=PassagePictures(2, [str(pictured)]))
    counter.prompting = shown
    candidates = ["Spain#0", "Peru#0", "France#0"]
    fields = {"candidates": candidates, "evidence": ["France#0"], "answers": ["42"]}
    samples = [sample(pictured, image="0.png", **fields), sample(pictured, image=None, question="Which?", **fields)]
    counts = counter.count(samples, [[SIZES[0]], []])
    for i, one in enumerate(samples):
        passages = shown.passages(one, draw=0)
        assert [passage.text for passage in passages] == ["The capital is Paris."] * 2 + ["The euro is 42."]
        assert [passage.image for passage in passages] == [str(pictured / "3.png"), None, None]
        prompt = build_prompt(one, passages, counter.prompting.template)
        tokens = tokenize_prompts(counter.processor, [prompt])
        assert counts["prompt"][i] == tokens["input_ids"].shape[1]
        images = [SIZES[3], *([SIZES[0]] if i == 0 else [])]
        assert counts["image"][i] == sum(map(counter.image_tokens, images))
    assert (counts["prompt"] == sum(counts[part] for part in PARTS[:-1])).all()


def test_a_shuffled_level_counts_with_the_largest_picture(tiny_model, pictured):
    counter = counter_for(tiny_model("qwen2_5_vl"), pictured, levels=("3",))
    counter.prompting = replace(counter.prompting, passage_pictures=PassagePictures(1, [str(pictured)]))
    one = sample(pictured, image=None, question="?", candidates=["Peru#0", "France#0", "Spain#0"], evidence=["Peru#0"])
    largest = max(counter.image_tokens(SIZES[1]), counter.image_tokens(SIZES[3]))
    assert counter.count([one], [[]])["image"].tolist() == [largest] and largest > 0
