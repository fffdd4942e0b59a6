"""A run's way to make prompts: each of its fields acts, alone and in place of what it would be."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.pictures import PassagePictures
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import Template, image_paths

ARTICLES = "abcd"


class FirstWord:
    """Stands for a budget: the first word, and whether the answer was to be kept."""

    def cut(self, passage, keep):
        return replace(passage, text=f"{passage.text.split()[0]} {'kept' if keep else 'cut'}")


@pytest.fixture
def sample(tmp_path):
    """A question on a picture, with three candidates of which the second is gold."""
    row = {
        "id": "q",
        "image": "q.png",
        "conversations": [{"from": "human", "value": "<image>Where?"}],
        "answers": ["b"],
        "candidates": ["a#0", "b#0", "c#0"],
        "evidence": ["b#0"],
    }
    return parse_row(row, image_folder=str(tmp_path), reward_method="", source="rows.jsonl:1")


@pytest.fixture
def prompting(tmp_path):
    for name in ("q", *ARTICLES):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    articles = [
        {
            "key": key,
            "title": key,
            "images": [f"{key}.png"],
            "sections": [{"id": "0", "title": "", "text": f"{key} {key}"}],
        }
        for key in ARTICLES
    ]
    (tmp_path / "kb.jsonl").write_text("\n".join(map(json.dumps, articles)))
    template = Template(system="Look.", passage="{number}: {text}", user="{passages} {question}", separator="; ")
    return Prompting(template, seed=0, kb=KnowledgeBase.open(str(tmp_path / "kb.jsonl")))


def texts(prompting, sample, **options):
    return [passage.text for passage in prompting.passages(sample, **options)]


def test_fields_decide_the_passages(prompting, sample):
    assert texts(prompting, sample) == ["a a", "b b", "c c"]
    assert texts(replace(prompting, num_passages=2), sample) == ["a a", "b b"]
    assert texts(replace(prompting, level="gold"), sample) == texts(prompting, sample, level="gold") == ["b b"]
    assert texts(replace(prompting, level="none"), sample, level="gold_removed") == ["a a", "c c"]
    assert texts(replace(prompting, kb=None), sample) == []
    several = {(seed, draw): tuple(texts(replace(prompting, level="3", seed=seed), sample, draw=draw)) for seed in range(4) for draw in range(4)}  # fmt: skip
    assert len({order for (seed, _), order in several.items() if seed == 0}) > 1
    assert len({order for (_, draw), order in several.items() if draw == 0}) > 1


def test_a_budget_keeps_evidence_in_training_or_where_it_is_told_to(prompting, sample):
    cut = replace(prompting, budget=FirstWord())
    assert texts(cut, sample) == ["a cut", "b cut", "c cut"]
    assert texts(cut, sample, draw=0) == texts(cut, sample, keep_evidence=True) == ["a cut", "b kept", "c cut"]


def test_pictures_of_articles_can_be_left_out(prompting, sample, tmp_path):
    pictured = replace(prompting, passage_pictures=PassagePictures(1, []))
    found = [passage.image for passage in pictured.passages(sample)]
    assert found == [str(tmp_path / "a.png"), None, None]
    assert pictured.passages(sample, with_pictures=False) == prompting.passages(sample)


def test_the_prompt_has_template_and_system_prompt(prompting, sample, tmp_path):
    passages = prompting.passages(sample)
    system, user = prompting.prompt(sample, passages)
    assert system["content"] == [{"type": "text", "text": "Look."}]
    assert user["content"][1] == {"type": "text", "text": "1: a a; 2: b b; 3: c c Where?"}
    assert image_paths([system, user]) == [str(tmp_path / "q.png")]
    (alone,) = replace(prompting, system_prompt="").prompt(sample, [], with_images=False)
    assert alone["content"] == [{"type": "text", "text": "Where?"}]
