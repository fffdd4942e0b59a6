"""What the benches of GRPO share: models of several sizes, a trainer on prompts of a given length, timing.

Models: `tiny` (the demo's), `small` (30 million parameters), `3b` (Qwen2.5-VL-3B's shape), the last two with random weights, or the path of a Qwen2.5-VL checkpoint. On a GPU weights are bfloat16, else float32.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2_5_VLConfig

from open_r1_kivqa import demo
from open_r1_kivqa.arguments import VLMGRPOConfig
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.rewards import load_reward_functions
from open_r1_kivqa.trainer.grpo_trainer import VLMGRPOTrainer
from open_r1_kivqa.trainer.rollout import Rollout

PICTURE = (448, 336)  # 192 image tokens

SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
}
SMALL_VISION = {"depth": 4, "hidden_size": 256, "num_heads": 8, "intermediate_size": 704, "out_hidden_size": 512}
SIZE_3B = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 128000,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
SIZE_3B_VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "out_hidden_size": 2048}
SIZE_3B_VISION |= {"fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112}
SIZES = {"small": (SMALL, SMALL_VISION), "3b": (SIZE_3B, SIZE_3B_VISION)}


def run(doc: str, measure: Callable[[Path, argparse.Namespace], dict], more=lambda parser: None, **defaults) -> None:
    """A bench from its flags to the line it prints.

    Args:
        doc: the bench's docstring. measure: gets a folder for what it writes, and the flags. more: adds flags of its own. defaults: of `add_flags`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, **defaults)
    more(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), arguments)))


def described(shape: argparse.Namespace) -> dict:
    """What was measured, and on what."""
    names = ("prompt", "completion", "group", "prompts")
    return {"model": shape.model, "device": device_name(), **{name: getattr(shape, name) for name in names}}


def training_flags(folder: Path, shape: argparse.Namespace) -> dict:
    """Flags of TRL's trainer and ours for a batch of the shape's completions: bf16 and checkpointing on a GPU, float32 on a CPU."""
    return {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": shape.prompts * shape.group,
        "gradient_accumulation_steps": 1,
        "num_generations": shape.group,
        "max_completion_length": shape.completion,
        "bf16": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": torch.cuda.is_available(),
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def add_flags(parser: argparse.ArgumentParser, *, prompt: int, completion: int, group: int, model: str) -> None:
    """The flags of a shape."""
    parser.add_argument(
        "--prompt", type=int, default=prompt, help="tokens of a prompt, its image's included (default: %(default)s)"
    )
    parser.add_argument(
        "--completion", type=int, default=completion, help="tokens of a completion (default: %(default)s)"
    )
    parser.add_argument("--group", type=int, default=group, help="completions of a prompt (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=1, help="prompts in a batch (default: %(default)s)")
    parser.add_argument(
        "--model", default=model, help="tiny, small, 3b or the path of a checkpoint (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="the least of so many timings counts (default: %(default)s)"
    )


def load(name: str):
    """A model and the processor of the demo's, or the checkpoint's own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    path = name if Path(name).is_dir() else demo.CHECKPOINT
    processor = AutoProcessor.from_pretrained(path, padding_side="left")
    processor.image_processor.size = {"shortest_edge": 3136, "longest_edge": 12_845_056}
    if name not in SIZES:
        return AutoModelForImageTextToText.from_pretrained(path, dtype=dtype).to(device), processor
    config = Qwen2_5_VLConfig.from_pretrained(path)
    text, vision = SIZES[name]
    config.text_config.update({**text, "layer_types": ["full_attention"] * text["num_hidden_layers"]})
    config.vision_config.update(vision)
    with torch.device(device):
        return AutoModelForImageTextToText.from_config(config, dtype=dtype), processor


def seconds(work, repeats: int) -> float:
    """The least of `repeats` timings of `work()`, after one run that isn't timed."""
    times = []
    for _ in range(repeats + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def device_name() -> str:
    """The card, or how many CPU cores torch uses."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"


def make_trainer(model, processor, folder: Path, shape: argparse.Namespace) -> VLMGRPOTrainer:
    """A trainer on the embedded questions, for a batch of the shape's prompts and completions."""
    rows = Rows.open([demo.TRAIN], [demo.IMAGES], None)
    return VLMGRPOTrainer(
        model,
        load_reward_functions(["format", "length"]),
        VLMGRPOConfig(**training_flags(folder, shape)),
        rollout=Rollout(rows, Prompting(load_template("default"), seed=0)),
        processing_class=processor,
    )


def make_batch(trainer: VLMGRPOTrainer, shape: argparse.Namespace) -> dict:
    """The arguments of `_get_per_token_logps_and_entropies`: each prompt one image and random words, its completions random words."""
    processor, device = trainer.processing_class, trainer.accelerator.device
    generator = torch.Generator().manual_seed(1)
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    pictures = [Image.effect_noise(PICTURE, 40 + number).convert("RGB") for number in range(shape.prompts)]
    start = processor(images=pictures, text=[image] * shape.prompts, return_tensors="pt")
    words = shape.prompt - start["input_ids"].size(1)
    prompts = torch.cat(
        [start["input_ids"], torch.randint(100, 4000, (shape.prompts, words), generator=generator)], dim=1
    )
    completions = torch.randint(100, 4000, (shape.prompts * shape.group, shape.completion), generator=generator)
    input_ids = torch.cat([prompts.repeat_interleave(shape.group, dim=0), completions], dim=1)
    types = torch.zeros_like(input_ids)
    types[:, : start["input_ids"].size(1)] = start["mm_token_type_ids"].repeat_interleave(shape.group, dim=0)
    pixels = start["pixel_values"].view(shape.prompts, -1, start["pixel_values"].size(-1))
    batch = {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "pixel_values": pixels.repeat_interleave(shape.group, dim=0).flatten(0, 1),
        "image_grid_thw": start["image_grid_thw"].repeat_interleave(shape.group, dim=0),
        "mm_token_type_ids": types,
    }
    batch = {name: value.to(device) for name, value in batch.items()}
    return batch | {"logits_to_keep": shape.completion, "num_images": [1] * len(input_ids)}
