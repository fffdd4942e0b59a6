"""Boxes on their way: rows hold pixels of the image file, the model writes in its family's frame, and prompts, responses and scores keep the two apart."""

import json

import pytest
from PIL import Image

from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.evaluation.predict import predict
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.rewards import accuracy_reward, load_reward_functions
from open_r1_kivqa.trainer.rollout import Rollout
from open_r1_kivqa.trainer.sft_trainer import PromptCompletions
from open_r1_kivqa.vlm_modules import MODULES
from open_r1_kivqa.vlm_modules.boxes import BoxScale
from open_r1_kivqa.vlm_modules.loading import load_processor

# The tiny Qwen2.5-VL takes at most 112 x 112 pixels, in steps of 28: 200 x 100 becomes 140 x 56.
IN_FRAME = {"qwen2_5_vl": "[14, 14, 70, 28]", "internvl": "[100, 250, 500, 500]"}
IN_PIXELS = "[20, 25, 100, 50]"
PROMPTING = Prompting(load_template("rec"), seed=0)


@pytest.fixture(params=IN_FRAME)
def family(request):
    return request.param


@pytest.fixture
def rows(tmp_path) -> Rows:
    """Row 0 wants a box, row 1 the same text, row 2 has no image."""
    Image.new("RGB", (200, 100)).save(tmp_path / "wide.png")
    turns = [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": f"<answer>{IN_PIXELS}</answer>"}]
    lines = [
        {"id": 0, "image": "wide.png", "conversations": turns, "accu_reward_method": "iou"},
        {"id": 1, "image": "wide.png", "conversations": turns, "accu_reward_method": "exact"},
        {"id": 2, "conversations": turns, "accu_reward_method": "iou"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Rows.open([str(tmp_path / "rows.jsonl")], [str(tmp_path)], None)


@pytest.fixture
def box_scale(family, tiny_model) -> BoxScale:
    return BoxScale(MODULES[family], load_processor(tiny_model(family)))


def test_a_completion_in_the_models_frame_earns_full_reward(rows, family, box_scale):
    rollout = Rollout(rows, PROMPTING, box_scale)
    batch = rollout.build([{"row": i} for i in range(3)], [0, 1, 2])
    text = f"<think>There.</think><answer>{IN_FRAME[family]}</answer>"
    columns = {name: [row[name] for row in batch] for name in ("sample", "box_scale")}
    assert accuracy_reward([None] * 3, [text] * 3, **columns)[:2] == [pytest.approx(1.0), 0.0]
    assert columns["box_scale"][1:] == [(1.0, 1.0)] * 2
    (length,) = load_reward_functions(["length"])
    short, wrong = length([None] * 2, [text] * 2, completion_ids=[[], []], **{k: v[:2] for k, v in columns.items()})
    assert (short, wrong) == (1.0, -0.5)


def test_a_response_to_learn_from_is_in_the_models_frame(rows, family, box_scale):
    examples = PromptCompletions(rows, PROMPTING, box_scale)
    texts = [examples.example(i)["completion"][0]["content"][0]["text"] for i in range(2)]
    assert texts == [f"<answer>{IN_FRAME[family]}</answer>", f"<answer>{IN_PIXELS}</answer>"]


def test_evaluation_reads_the_models_frame_and_reports_pixels(rows, family, box_scale):
    record, unread = predict(
        [rows[0], rows[0]],
        "normal",
        PROMPTING,
        generate=lambda prompts: [f"<think>x</think><answer>{IN_FRAME[family]}</answer>", "nowhere"],
        box_scale=box_scale,
    )
    assert (record["correct_strict"], record["correct_lenient"], record["iou"]) == (1.0, 1.0, pytest.approx(1.0))
    assert record["boxes"] == [{"box": pytest.approx([20, 25, 100, 50]), "label": ""}]
    assert (unread["correct_lenient"], unread["iou"], unread["boxes"]) == (0.0, 0.0, [])
