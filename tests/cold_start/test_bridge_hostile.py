"""Whatever models write, a row ends with an outcome, and what is kept can be trained on."""

import json
import random

import pytest
from bridging import IMAGES, KNOWLEDGE, factbook, read_jsonl
from scripted_endpoint import completion

from open_r1_kivqa.checks_cli import main as check_main
from open_r1_kivqa.cold_start.bridge import OUTCOMES
from open_r1_kivqa.rewards.extraction import strict_answer
from open_r1_kivqa.rewards.format import has_format

PIECES = ["<think>", "</think>", "<answer>", "</answer>", "<image>", "<|im_end|>", "{passages}", "{question}", "{", "}}", "\\1", "%s", "\0", "\u202e", "\ud800", "‹", "\n", "\\boxed{", "the answer is ", "the description says ", "[1, 2, 3, 4]"]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_any_text(make_run, seed):
    dice = random.Random(seed)
    right = [row["answers"][0] for row in factbook(8)]

    def text():
        return "".join(dice.choices([*PIECES, *right], k=dice.choice([0, 1, 5, 40, 5000])))

    def act(number, request):
        if request["model"] == "eyes":
            return completion(text() or "A flag.")
        form = dice.choice(["{t}", "<think>{t}</think><answer>{a}</answer>", "{t}</think>\n<answer>{a}</answer>"])
        said = form.replace("{t}", text()).replace("{a}", dice.choice(right))
        beside = {"reasoning_content": text()} if dice.random() < 0.3 else {}
        return completion(said, dice.choice(["stop", "stop", "length", "tool_calls", 7]), **beside)

    run, _ = make_run(8, act)
    code = run(knowledge_base=KNOWLEDGE, attempts=12, retries=3, max_failed_share=1.0)
    counts = run.counts()
    assert sum(counts.values()) == 8 and set(counts) <= set(OUTCOMES)
    assert code == (0 if counts.get("kept") else 1)
    if code == 0:
        for row in read_jsonl(run.output):
            response = row["conversations"][-1]["value"]
            assert has_format(response) and strict_answer(response) == row["answers"][0]
        words = ["--data_file_paths", str(run.output), "--image_folders", IMAGES, "--knowledge_base", KNOWLEDGE]
        assert check_main([*words, "--needs_response"]) == 0
    json.dumps(run.report).encode()
