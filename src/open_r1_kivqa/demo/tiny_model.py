"""A tiny Qwen2.5-VL with random weights, its processor, and the head start that lets it learn recall in minutes.

Architecture and processor classes are the real ones. Two things are made for the size:
- the tokenizer keeps each title of the knowledge base as one token with the colon and the spaces around it (" France: "), so that in a passage a value directly follows the token that names its
  country, and begins with the same token as in an answer;
- `lay_recall_heads` starts the language model with the circuit that in-context recall needs and that a random model of this size finds late: heads that look at the previous token, and heads
  that look for the place where the present token stood before and copy what followed it. Training is free to change all of it.
"""

import math
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
# Letters with the space before them, numbers with their points and commas as one piece, everything else.
PIECES = Regex(r" ?\p{L}+| ?\p{N}+(?:[.,:/]\p{N}+)*| ?[^\s\p{L}\p{N}]+|\s")
CHAT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}
{%- for block in message['content'] -%}
{%- if block['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- elif block['type'] == 'text' -%}{{- block['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
HEAD = 32  # size of a head: the smallest that vLLM's CPU kernels take
ROPE_THETA = 1e6
VISION_HEAD = 32


def title_token(title: str) -> str:
    return f" {title}: "


def build_processor(texts: list[str], titles: list[str], *, vocab_size: int = 4096) -> Qwen2_5_VLProcessor:
    """A processor whose byte-level BPE is trained on `texts`, with one more token for each title; pictures of 112x84 become 12 image tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    bpe.add_tokens(
        [AddedToken(token, normalized=False) for token in TAGS + [title_token(title) for title in sorted(titles)]]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=112 * 112),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(
    processor: Qwen2_5_VLProcessor,
    *,
    hidden: int = 128,
    layers: int = 4,
    vision_hidden: int = 96,
    vision_layers: int = 4,
    seed: int = 0,
) -> Qwen2_5_VLForConditionalGeneration:
    """The model in float32. `hidden` and `vision_hidden` are multiples of 32; the numbers of layers are at least 3 and 1."""
    tokenizer = processor.tokenizer
    token = tokenizer.convert_tokens_to_ids
    spread = 0.06  # of the random weights: about 1/sqrt(hidden), so that a layer passes signals of its input's size
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // HEAD,
            "num_key_value_heads": hidden // HEAD,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": [4, 6, 6]},
            "initializer_range": spread,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden,
            "intermediate_size": 3 * vision_hidden,
            "num_heads": vision_hidden // VISION_HEAD,
            "out_hidden_size": hidden,
            "window_size": 448,
            "fullatt_block_indexes": list(range(vision_layers)),  # small pictures: every layer sees all of it
            "initializer_range": spread,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config).float()
        language = model.model.language_model
        with torch.no_grad():
            for layer in language.layers:  # the residual stream starts as the embeddings alone
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            lay_recall_heads(language, spread)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    return model


def lay_recall_heads(language, spread: float, *, first: int = 0, second: int = 2, reach: int = 170) -> None:
    """Lay an induction circuit (Olsson et al. 2022, "In-context Learning and Induction Heads") into two layers, in place.

    Two heads of layer `first` attend to the previous token, whatever it is: with rotary positions the biases of q and k alone make a score that depends on the distance only, here with its
    maximum at 1. They write a projection of that token into the residual stream. All heads of layer `second` compare the present token's projection with the ones written, in those
    pairs of rotary dimensions that hardly turn over `reach` tokens, and copy the token they find.

    Args:
        spread: standard deviation of the embeddings, to which what is written is scaled.
    """
    size = language.embed_tokens.weight.shape[1]
    half = HEAD // 2
    turn = ROPE_THETA ** (-torch.arange(half) / half)  # radians a token
    steady = [pair for pair in range(half) if turn[pair] * reach < 1]
    steady = torch.tensor(steady + [pair + half for pair in steady])
    sharpness = torch.where(
        turn > 0.15, 10.0, torch.where(turn > 0.02, 5.0, 0.0)
    )  # nats a pair; slow pairs only keep far tokens from looking near
    bias = (sharpness * math.sqrt(HEAD)).sqrt()
    read, write, copied = (torch.nn.init.orthogonal_(torch.empty(size, size)) for _ in range(3))

    previous = language.layers[first].self_attn
    heads = [slice(head * HEAD, (head + 1) * HEAD) for head in range(size // HEAD)]
    for rows in heads[:2]:
        previous.k_proj.bias[rows] = torch.cat([bias, torch.zeros(half)])
        previous.q_proj.bias[rows] = torch.cat([bias * torch.cos(turn), -bias * torch.sin(turn)])
        previous.q_proj.weight[rows] *= 0.1
        previous.k_proj.weight[rows] *= 0.1
        previous.v_proj.weight[rows] = read[rows]
        previous.o_proj.weight[:, rows] = 2 * spread * write[:, rows]

    match = language.layers[second].self_attn
    for head, rows in enumerate(heads):
        source = heads[head % 2]
        part = slice(len(steady)) if head < 2 else slice(HEAD - len(steady), HEAD)
        for projection, wanted in ((match.q_proj, read[source]), (match.k_proj, write[:, source].T)):
            weight = 0.1 * projection.weight[rows]
            weight[steady] = wanted[part]
            projection.weight[rows] = weight
        match.v_proj.weight[rows] = copied[rows]
        match.o_proj.weight[:, rows] = 2 * spread * copied[rows].T


def save(model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, folder: str | Path) -> None:
    """Writes a checkpoint folder that `from_pretrained` reads, weights in the model's dtype."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
