"""Under torchrun with two ranks: `greedy` on a ZeRO-3 model, each rank with prompts of its own, against the plain model's answers. Usage: greedy_zero3.py FOLDER_OF_MODEL"""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from accelerate import Accelerator
from PIL import Image
from transformers import TrainingArguments

from open_r1_kivqa.evaluation.generate import greedy
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor


def prompt(text: str, *colours: str) -> list[dict]:
    images = [{"type": "image", "image": Image.new("RGB", (56, 84), colour)} for colour in colours]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


# What each rank answers: five batches, three with images, against one batch without; then none against one.
SHARES = [
    (
        [prompt(f"Flag {n}", "red", "blue") for n in range(3)] + [prompt("yes"), prompt("Which river?")],
        [prompt("What is the capital?")],
    ),
    ([], [prompt("a", "green")]),
]

folder = sys.argv[1]
options = {"max_new_tokens": 5, "batch_size": 1}
processor = load_processor(folder)
deepspeed.init_distributed("gloo")
mine = [share[torch.distributed.get_rank()] for share in SHARES]
plain = load_model(folder)
expected = [greedy(plain, processor, prompts, **options) for prompts in mine]

zero3 = {
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "train_micro_batch_size_per_gpu": 1,
}
args = TrainingArguments(output_dir="unused", use_cpu=True, bf16=False, deepspeed=zero3)
accelerator = Accelerator(deepspeed_plugin=args.deepspeed_plugin)
model = load_model(folder)
model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
sharded = [parameter for parameter in model.parameters() if getattr(parameter, "ds_tensor", None) is not None]
assert sharded, "no parameter is sharded"
for gathered in (True, False):
    for prompts, wanted in zip(mine, expected, strict=True):
        found = greedy(model, processor, prompts, **options, accelerator=accelerator, gather_deepspeed3_params=gathered)
        assert found == wanted, (gathered, found, wanted)
        print(f"rank {accelerator.process_index}: {len(found)} equal answers", flush=True)
