"""Tiny image encoders with random weights, saved as checkpoints are."""

import json
from pathlib import Path

import torch
import transformers

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def clip(folder: Path, seed: int = 0) -> str:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=24)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return _save(transformers.CLIPModel, config, transformers.CLIPImageProcessor(**size), folder, seed)


def clip_tower(folder: Path, seed: int = 0) -> str:
    config = transformers.CLIPVisionConfig(**VISION, projection_dim=24)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return _save(
        transformers.CLIPVisionModelWithProjection, config, transformers.CLIPImageProcessor(**size), folder, seed
    )


def siglip(folder: Path, seed: int = 0) -> str:
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
    processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    return _save(transformers.SiglipModel, config, processor, folder, seed)


def dino(folder: Path, seed: int = 0) -> str:
    config = transformers.Dinov2Config(**VISION)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return _save(transformers.Dinov2Model, config, transformers.BitImageProcessor(**size), folder, seed)


def vit_classifier(folder: Path, seed: int = 0) -> str:
    """A classifier has no pooler, which the bare model has."""
    config = transformers.ViTConfig(**VISION)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return _save(transformers.ViTForImageClassification, config, processor, folder, seed)


def edit_config(folder: str, **changes) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _save(kind, config, processor, folder: Path, seed: int) -> str:
    torch.manual_seed(seed)
    kind(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
