"""Answers from a vision-language model with Hugging Face `generate`, in left-padded batches: the most likely ones, or sampled ones.

`greedy` serves the evaluation entry and the trainer's own evaluation alike. Prompts pass through the same call of the chat template as TRL's rollouts, so a question has the
same tokens in training and in evaluation. Under DeepSpeed ZeRO-3 every forward pass is a collective of all ranks; `greedy` then makes every rank run the same batches.
"""

from collections.abc import Sequence
from contextlib import contextmanager

import torch
from PIL import Image
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from ..prompts import decode_images
from ..vlm_modules import module_for


def greedy(
    model,
    processor,
    prompts: list[list[dict]],
    *,
    max_new_tokens: int,
    batch_size: int,
    accelerator=None,
    gather_deepspeed3_params: bool = True,
) -> list[str]:
    """Continues each prompt with its most likely tokens, up to the end-of-sequence token or `max_new_tokens`.

    Args:
        model: the model, or its DDP or DeepSpeed wrapper if `accelerator` is given. Its training mode is left as it was.
        processor: the model's processor, left-padded.
        prompts: conversations whose message contents are lists of text and image blocks; rows with and without images may be mixed (they are batched apart), and with any
            number of images each.
        max_new_tokens: most tokens of an answer.
        batch_size: most prompts of a batch. Prompts of like length go together, so little is padding.
        accelerator: the trainer's `Accelerator`. Every rank must then call `greedy` equally often; the numbers of prompts may differ, also be zero.
        gather_deepspeed3_params: under ZeRO-3, whether whole weights are gathered once for the call (faster) or layer by layer (less memory); TRL's flag
            `ds3_gather_for_generation`.

    Returns:
        The answers' texts in the prompts' order, without special tokens. In float32 the answer to a row doesn't depend on the rows batched with it; in half precision padding
        changes the rounding, so near ties may fall otherwise.
    """
    with_images, without = _batches(prompts, batch_size)
    rounds = [len(with_images), len(without)]
    if accelerator is not None and accelerator.num_processes > 1:
        counts = torch.tensor([rounds], device=accelerator.device)
        rounds = accelerator.gather(counts).max(dim=0).values.tolist()
    if rounds == [0, 0]:
        return []
    was_training = model.training
    model.eval()
    answers = [""] * len(prompts)
    with torch.no_grad(), _unwrapped(model, accelerator, gather_deepspeed3_params) as unwrapped:
        config = generation_config(unwrapped, processor, max_new_tokens)
        for batches, count, dummy in zip((with_images, without), rounds, (_IMAGE_DUMMY, _TEXT_DUMMY), strict=True):
            for number in range(count):
                batch = batches[number] if number < len(batches) else []  # another rank still has one: take part
                texts = _continue(unwrapped, processor, [prompts[i] for i in batch] or [dummy], config)
                for i, text in zip(batch, texts, strict=False):
                    answers[i] = text
    model.train(was_training)
    return answers


def sampled(
    model,
    processor,
    prompts: list[list[dict]],
    *,
    seeds: Sequence[int],
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
) -> list[str]:
    """Continues each prompt with tokens drawn at `temperature` from the whole vocabulary, as training's rollouts are.

    Args:
        seeds: one a prompt. In float32 a completion depends on its prompt, its seed and the kind of device alone, not on the prompts batched with it.
        model, processor, prompts, max_new_tokens, batch_size: as for `greedy`.

    Returns:
        The completions' texts in the prompts' order, without special tokens.
    """
    was_training = model.training
    model.eval()
    texts = [""] * len(prompts)
    config = generation_config(model, processor, max_new_tokens)
    with torch.no_grad():
        for batch in [batch for batches in _batches(prompts, batch_size) for batch in batches]:
            noise = _Noise([seeds[i] for i in batch], temperature, model.device)
            for i, text in zip(
                batch, _continue(model, processor, [prompts[i] for i in batch], config, noise), strict=True
            ):
                texts[i] = text
    model.train(was_training)
    return texts


class _Noise(LogitsProcessor):
    """Makes greedy decoding sample: the largest of logits plus Gumbel noise is a draw from their softmax. Each sequence has a random stream of its own, which batching doesn't touch."""

    def __init__(self, seeds: Sequence[int], temperature: float, device):
        self._temperature = temperature
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[sequences, vocabulary] logits in float32 to logits with noise."""
        drawn = torch.stack(
            [torch.empty_like(scores[0]).exponential_(generator=generator) for generator in self._generators]
        )
        return scores / self._temperature - drawn.log()


def tokenize_prompts(processor, prompts: list[list[dict]]):
    """The model's inputs for conversations: a BatchEncoding of tensors, `input_ids` and `attention_mask` [batch, longest prompt] left-padded, with the images' pixels."""
    return processor.apply_chat_template(
        decode_images(prompts),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": True, "padding_side": "left", "return_tensors": "pt"},
    )


_TEXT_DUMMY = [{"role": "user", "content": [{"type": "text", "text": "."}]}]
_IMAGE_DUMMY = [
    {"role": "user", "content": [{"type": "image", "image": Image.new("RGB", (56, 56))}, *_TEXT_DUMMY[0]["content"]]}
]


def _batches(prompts: list[list[dict]], batch_size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Indices of the prompts with images and of those without, each sorted by length and cut into batches."""
    lengths = [
        (sum(block["type"] == "image" for block in blocks), sum(len(block.get("text", "")) for block in blocks))
        for blocks in ([block for message in prompt for block in message["content"]] for prompt in prompts)
    ]
    order = sorted(range(len(prompts)), key=lambda i: (lengths[i], i))
    kinds = [i for i in order if lengths[i][0]], [i for i in order if not lengths[i][0]]
    return tuple([kind[at : at + batch_size] for at in range(0, len(kind), batch_size)] for kind in kinds)


def generation_config(model, processor, max_new_tokens: int) -> GenerationConfig:
    """Plain greedy decoding, ending where TRL's rollouts end.

    `generate` fills what is left open from the checkpoint's generation_config.json, where Qwen's has a repetition penalty and a temperature: so each is set here.
    """
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        eos_token_id=sorted({processor.tokenizer.eos_token_id, *ends}),
        pad_token_id=processor.tokenizer.pad_token_id,
        # As in training: such a token would want features of an image.
        suppress_tokens=module_for(model.config).vision_token_ids(processor),
        disable_compile=True,
    )


@contextmanager
def _unwrapped(model, accelerator, gather_deepspeed3_params: bool):
    """The model that can `generate`, out of its DDP, FSDP or DeepSpeed wrapper."""
    if accelerator is None:
        yield model
        return
    # Imported here: it takes seconds, which a single question from the terminal should not.
    from trl.distributed import DistributedBackend
    from trl.models import unwrap_model_for_generation

    with (
        unwrap_model_for_generation(model, accelerator, gather_deepspeed3_params=gather_deepspeed3_params) as unwrapped,
        DistributedBackend(accelerator).summon_full_params(model, recurse=False),
    ):
        yield unwrapped


def _continue(
    model, processor, prompts: list[list[dict]], config: GenerationConfig, noise: _Noise | None = None
) -> list[str]:
    """One batch: prompts, all with images or all without, to the texts of their answers."""
    inputs = tokenize_prompts(processor, prompts).to(model.device)
    processors = LogitsProcessorList([] if noise is None else [noise])
    sequences = model.generate(**inputs, generation_config=config, logits_processor=processors)
    return processor.tokenizer.batch_decode(sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
