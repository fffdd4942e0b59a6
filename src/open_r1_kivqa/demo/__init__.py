"""Paths of the embedded benchmark Factbook KIVQA and of the tiny checkpoint that is trained on it."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
IMAGES = DATA / "images"  # `image` in the jsonl files is relative to this folder
KNOWLEDGE = DATA / "knowledge.jsonl"  # a passage is one line: "capital of France: Paris"
KNOWLEDGE_FULL = DATA / "knowledge_full.jsonl"  # a passage opens with a description of the flag
TRAIN = DATA / "train.jsonl"
EVAL = DATA / "eval.jsonl"  # splits unseen_question, unseen_entity and maps, told apart by the field `split`
CHECKPOINT = HERE / "tiny_qwen2_5_vl"
TASKS = HERE / "tasks"  # {rec,ovd,math,gui,choice}.jsonl; `image` in them is relative to its folder `images`
