"""The demo's tiny model: tokens, recall heads at the start, rows, and the committed checkpoint."""

import json
import re

import numpy as np
import pytest
import torch

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.demo import CHECKPOINT, EVAL, IMAGES, KNOWLEDGE, cold_start, tiny_model
from open_r1_kivqa.demo.cold_start import BATCH, Facts, make_rows
from open_r1_kivqa.prompts import build_prompt, load_template


@pytest.fixture(scope="module")
def facts() -> Facts:
    return Facts()


@pytest.fixture(scope="module")
def processor(facts):
    return tiny_model.build_processor(facts.corpus(), list(facts.titles.values()))


def test_a_value_is_the_same_tokens_after_its_title_and_in_the_answer(processor):
    tokenizer = processor.tokenizer
    text = "<think>- capital of Equatorial Guinea: Malabo</think>\n<answer>Malabo</answer><|im_end|>"
    tokens = [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]
    assert tokens[:5] == ["<think>", "-", " capital", " of", " Equatorial Guinea: "]
    first, second = "".join(tokens).split("</think>")
    value = tokens[5 : tokens.index("</think>")]
    assert "".join(value) == "Malabo"
    assert tokens[tokens.index("<answer>") + 1 : tokens.index("</answer>")] == value
    assert "".join(tokens) == text


def test_recall_heads_look_at_the_previous_token_and_at_what_followed_before(processor):
    model = tiny_model.build_model(processor)
    model.set_attn_implementation("eager")
    once = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:60] + 300
    tokens = torch.cat([once, once])[None]  # the second half repeats the first
    with torch.no_grad():
        attentions = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), output_attentions=True).attentions
    previous = attentions[0][0, :2].diagonal(offset=-1, dim1=1, dim2=2)  # weight on the token before, two heads
    assert previous.min() > 0.9
    found = attentions[2][0, :, 60:, :60].diagonal(offset=1, dim1=1, dim2=2)  # position 60+i looks at i+1
    assert found.mean(dim=1).min() > 5 / 90  # of each head; uniform attention would be about 1/90


def test_the_same_seed_builds_the_same_model(processor):
    first, second, other = (tiny_model.build_model(processor, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.fixture(scope="module")
def rows(facts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold_start")
    few = Facts()
    few.shown, few.mapped = facts.shown[:12], [key for key in facts.mapped if key in facts.shown[:12]]
    cold_start.draw_pictures(few, folder, 1)
    return [
        parse_row(row, image_folder=str(folder), reward_method="", source="rows")
        for row in make_rows(few, 20 * BATCH, folder, np.random.default_rng(0))
    ]


def test_rows_stand_in_batches_of_one_kind(rows):
    for start in range(0, len(rows), BATCH):
        kinds = {row.id.split("-")[0] for row in rows[start : start + BATCH]}
        assert len(kinds) == 1


def test_rows_quote_what_their_prompt_shows(rows):
    picked = []
    for row in rows:
        kind = row.id.split("-")[0]
        lines = [line for line in row.question.splitlines() if line.startswith("- ")]
        if kind == "recall":
            assert sorted(row.answer.splitlines()) == sorted(lines) and len(lines) == 5 and not row.images
            continue
        thought, answer = re.fullmatch(r"<think>(.*)</think>\n<answer>(.*)</answer>", row.answer).groups()
        assert thought.endswith(f": {answer}")
        if kind == "naming":
            assert not lines and answer == "unknown" and len(row.images) == 1
        else:
            assert thought in lines and len(lines) == {"quoting": 1, "guessing": 5}[kind]
        if kind == "guessing":
            picked.append(lines.index(thought))
    assert min(np.bincount(picked, minlength=5)) > 0


def test_prompts_of_rows_look_like_the_demo(rows):
    """A quoting row's passages, written into its question, read as the demo's template shows them."""
    row = next(row for row in rows if row.id.startswith("quoting"))
    (message,) = build_prompt(row, [], load_template("factbook"))
    assert [block["type"] for block in message["content"]] == ["image", "text"]
    line, question = message["content"][1]["text"].split("\n")
    assert line.startswith("- ") and question == f"What is the {line[2:].split(' of ')[0]} of the country on this flag?"


def test_rows_hold_out_what_the_benchmark_holds_out(facts, rows):
    held_out = {
        row["question_type"]
        for row in map(json.loads, EVAL.read_text(encoding="utf-8").splitlines())
        if row["split"] == "unseen_question"
    }
    unseen = {
        row["entity"]
        for row in map(json.loads, EVAL.read_text(encoding="utf-8").splitlines())
        if row["split"] == "unseen_entity"
    }
    assert held_out and unseen
    assert not held_out & set(facts.phrases) and not unseen & set(facts.shown)


def test_the_committed_checkpoint_reads_the_gold_passage():
    from open_r1_kivqa.data.jsonl import Rows
    from open_r1_kivqa.evaluation.generate import greedy
    from open_r1_kivqa.knowledge.base import KnowledgeBase
    from open_r1_kivqa.knowledge.context import choose_passages
    from open_r1_kivqa.rewards.extraction import strict_answer
    from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

    size = sum(path.stat().st_size for path in CHECKPOINT.iterdir())
    assert size < 10e6
    samples = [sample for sample in Rows.open([str(EVAL)], [str(IMAGES)], None) if sample.split == "unseen_question"][
        :40
    ]
    knowledge, template = KnowledgeBase.open(str(KNOWLEDGE)), load_template("factbook")
    prompts = [
        build_prompt(
            sample, choose_passages(sample, knowledge, level="gold", num_passages=1, seed=0, draw=None), template
        )
        for sample in samples
    ]
    texts = greedy(
        load_model(str(CHECKPOINT)), load_processor(str(CHECKPOINT)), prompts, max_new_tokens=40, batch_size=40
    )
    right = [strict_answer(text) == sample.answer for text, sample in zip(texts, samples, strict=True)]
    assert np.mean(right) > 0.7
