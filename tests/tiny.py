"""Tiny models of every family we train: the real architecture and processor classes, random weights, a tokenizer trained here.

`make_tiny(family, folder)` writes a folder that `from_pretrained` reads like any checkpoint: float32, two layers each of hidden size 64 (text) and 32 (vision), about
500 tokens, under 1 MB, made in about a second and the same every time. Images cost few tokens: a 56 x 56 picture is 4 tokens for Qwen2/2.5-VL, GLM-4.1V and InternVL (one 56 x 56 tile).
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")

CORPUS = """What is the capital of this country? The capital is Paris. Which river flows through the city? Answer in one word.
<think>The picture shows a flag with three stripes: red, white and blue. The passage says that the currency is the euro.</think>
<answer>euro</answer> <think></think> <answer>42</answer> yes no A B C D 0 1 2 3 4 5 6 7 8 9
You answer questions about pictures from the passages. First think, then give the answer. Passage 1: population, area, border, language.
France Germany Italy Spain Norway Japan Brazil Canada Kenya India Peru Chad Oman Fiji Cuba"""

# ChatML, as all families but GLM speak it; an image block becomes the family's placeholder, which the processor widens to the image's tokens.
CHAT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}
{%- for block in message['content'] -%}
{%- if block['type'] == 'image' -%}{{- 'IMAGE' -}}{%- elif block['type'] == 'text' -%}{{- block['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

# As GLM-4.1V's own: it reads blocks in user turns only, and nothing stands after a response.
GLM_TEMPLATE = """[gMASK]<sop>
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>\\n' -}}
{%- if message['role'] == 'user' and message['content'] is not string -%}
{%- for block in message['content'] -%}
{%- if block['type'] == 'image' -%}{{- '<|begin_of_image|><|image|><|end_of_image|>' -}}{%- elif block['type'] == 'text' -%}{{- block['text'] -}}{%- endif -%}
{%- endfor -%}
{%- else -%}{{- message['content'] -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"""

# What stands after a response once the library has loaded the processor.
TURN_ENDS = dict.fromkeys(FAMILIES, "<|im_end|>\n") | {"glm4v": "<|user|>"}

CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
GLM_TOKENS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
GLM_IMAGE_TOKENS = {
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
}
GLM_TAGS = ["<think>", "</think>", "<answer>", "</answer>"]  # tokens of their own, but no special ones
INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # heads of 32: the smallest that vLLM's CPU kernels take
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,  # at the usual 0.02 a model this small hardly reacts to its input
    "bos_token_id": None,
    "tie_word_embeddings": True,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}


def make_tiny(family: str, folder: str | Path) -> str:
    """Writes a random checkpoint of `family` (one of FAMILIES) with its processor to `folder`, and returns the folder as a string."""
    build_config, build_processor, model_class = {
        "qwen2_vl": (_qwen2_vl, _qwen2_processor(Qwen2VLProcessor), Qwen2VLForConditionalGeneration),
        "qwen2_5_vl": (_qwen2_5_vl, _qwen2_processor(Qwen2_5_VLProcessor), Qwen2_5_VLForConditionalGeneration),
        "qwen3_vl": (_qwen3_vl, _qwen3_processor, Qwen3VLForConditionalGeneration),
        "internvl": (_internvl, _internvl_processor, InternVLForConditionalGeneration),
        "glm4v": (_glm4v, _glm4v_processor, Glm4vForConditionalGeneration),
    }[family]
    processor = build_processor()
    tokenizer = processor.tokenizer
    text = TEXT | {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(build_config(text, tokenizer)).float()
    ends = [tokenizer.eos_token_id]
    if family == "glm4v":
        ends += tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>", "</answer>"])
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def tiny_tokenizer(special: list[str], end: str = "<|im_end|>", **named) -> Qwen2Tokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    )
    state = json.loads(bpe.model.__getstate__())
    tokenizer = Qwen2Tokenizer(
        vocab=state["vocab"], merges=[tuple(pair) for pair in state["merges"]], eos_token=end, **named
    )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in CHAT_TOKENS + special])
    return tokenizer


def _qwen2_processor(processor_class):
    def build():
        return processor_class(
            image_processor=Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=112 * 112),
            tokenizer=tiny_tokenizer(QWEN_TOKENS),
            video_processor=Qwen2VLVideoProcessor(),
            chat_template=CHAT_TEMPLATE.replace("IMAGE", QWEN_IMAGE),
        )

    return build


def _qwen3_processor() -> Qwen3VLProcessor:
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=16, min_pixels=32 * 32, max_pixels=128 * 128),
        tokenizer=tiny_tokenizer(QWEN_TOKENS),
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE.replace("IMAGE", QWEN_IMAGE),
    )


def _internvl_processor() -> InternVLProcessor:
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(
            size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=4
        ),
        tokenizer=tiny_tokenizer(list(INTERNVL_TOKENS.values()), extra_special_tokens=INTERNVL_TOKENS),
        video_processor=InternVLVideoProcessor(size={"height": 56, "width": 56}),
        image_seq_length=4,
        chat_template=CHAT_TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>\\n"),
    )


def _glm4v_processor() -> Glm4vProcessor:
    tokenizer = tiny_tokenizer([*GLM_TOKENS, *GLM_IMAGE_TOKENS.values()], end="<|endoftext|>")
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in GLM_TAGS])
    return Glm4vProcessor(
        image_processor=Glm4vImageProcessor(size={"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 112 * 112}),
        tokenizer=tokenizer,
        video_processor=Glm4vVideoProcessor(),
        chat_template=GLM_TEMPLATE,
    )


def _qwen_ids(tokenizer) -> dict[str, int]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return dict(zip(names, tokenizer.convert_tokens_to_ids(list(tokens)), strict=True))


def _qwen2_vl(text: dict, tokenizer) -> Qwen2VLConfig:
    vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 64, "patch_size": 14}
    text = text | {"rope_parameters": dict(MROPE)}
    return Qwen2VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, dtype="float32", **_qwen_ids(tokenizer)
    )


def _qwen2_5_vl(text: dict, tokenizer) -> Qwen2_5_VLConfig:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    text = text | {"rope_parameters": dict(MROPE)}
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, dtype="float32", **_qwen_ids(tokenizer)
    )


def _qwen3_vl(text: dict, tokenizer) -> Qwen3VLConfig:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    text = text | {"rope_parameters": MROPE | {"mrope_interleaved": True}, "head_dim": 32}
    return Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, dtype="float32", **_qwen_ids(tokenizer)
    )


def _internvl(text: dict, tokenizer) -> InternVLConfig:
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 56,
        "patch_size": 14,
    }
    return InternVLConfig(
        text_config=text | {"model_type": "qwen2"},
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=True,
        dtype="float32",
    )


def _glm4v(text: dict, tokenizer) -> Glm4vConfig:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "image_size": 56,
        "patch_size": 14,
    }
    text = text | {"rope_parameters": MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in GLM_IMAGE_TOKENS.items()}
    return Glm4vConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, dtype="float32", **ids)


if __name__ == "__main__":
    print(make_tiny(*sys.argv[1:]))
