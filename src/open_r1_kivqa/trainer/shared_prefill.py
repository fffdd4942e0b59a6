"""Hugging Face generation in which each prompt, images included, is computed once for all of its completions.

Stock TRL hands `generate` each prompt as often as it wants completions. Here the model first runs every different prompt up to its last token; the keys and values it keeps are then laid out for the batch, and
`generate` goes on from there as it would have: same rows, same sampling, same random numbers.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .shared_prefix import equal_rows, plain_model
from .vision_rows import IMAGES, images_by_row

TOKENS = ("input_ids", "attention_mask", "mm_token_type_ids")


class SharedPrefillMixin:
    """For `VLMGRPOTrainer`, where it generates by `generate`. vLLM keeps prefixes itself."""

    shares_prefill = False

    def prepare_shared_prefill(self) -> None:
        """Says, once, why `generate` computes a prompt for each completion where its settings leave no choice."""
        why = None
        if not self.use_vllm:
            model = plain_model(self.accelerator, self.model)
            why = needs_its_own_start(model._prepare_generation_config(self.generation_config)[0])
            if self.args.neftune_noise_alpha is not None:
                why = "--neftune_noise_alpha gives each completion noise of its own"
        self.shares_prefill = why is None
        if why is not None and self.accelerator.is_main_process:
            print(
                f"generate computes a prompt for each completion (--shared_prefill has no effect): {why}.", flush=True
            )

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        generate = super()._generate_single_turn
        arguments = (prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        if not self.shares_prefill or self.use_vllm or self.use_transformers_continuous_batching:
            return generate(*arguments)
        counts = [len(row or []) for row in images] if images is not None else [0] * len(prompt_ids)
        with sharing_prompts(plain_model(self.accelerator, self.model_wrapped), counts):
            return generate(*arguments)


@contextmanager
def sharing_prompts(model, num_images: list[int]) -> Iterator[None]:
    """Within it `model.generate` computes equal prompts once.

    Args:
        model: the transformers model, whose `generate` PEFT's calls. num_images: of each row that will be given.
    """

    def generate(**inputs):
        return type(model).generate(model, **from_shared_prompts(model, inputs, num_images))

    model.generate = generate
    try:
        yield
    finally:
        del model.generate


def needs_its_own_start(config) -> str | None:
    """Why `generate` with this config, merged with the model's, can't go on from keys and values that it is given; None if it can."""
    if config.cache_implementation is not None:
        return f"it lays out a cache of its own kind ({config.cache_implementation})"
    if not config.use_cache:
        return "it keeps no cache (use_cache is false)"
    if config.num_beams != 1 or config.num_return_sequences != 1:
        return "it makes several sequences of each row (num_beams, num_return_sequences)"
    return None


def from_shared_prompts(model, inputs: dict, num_images: list[int]) -> dict:
    """The inputs of `generate` with the prompts' keys and values in place of their images.

    Args:
        inputs: input_ids and attention_mask, (batch, length), left-padded; the images' inputs of all rows one after the other; and what else `generate` takes.
    """
    images = images_by_row(inputs | {"num_tiles": tiles_of_rows(model, inputs)}, num_images)
    mask = inputs["attention_mask"].bool()
    groups = equal_rows([row[its] for row, its in zip(inputs["input_ids"], mask, strict=True)], images)
    first = [rows[0] for rows in groups]
    place = torch.empty(len(mask), dtype=torch.long, device=mask.device)
    for number, rows in enumerate(groups):
        place[rows] = number
    prompts = {name: inputs[name][first] for name in TOKENS if name in inputs}
    shown = [images[row] for row in first if images[row]]
    pictures = {name: torch.cat([one[name] for one in shown]) for name in (shown[0] if shown else ())}
    # Positions as `generate` makes them; a family's model also keeps here by how much they run ahead of the tokens.
    positions = model._prepare_position_ids_for_generation(prompts["input_ids"], {**prompts, **pictures})
    start = {name: value[:, :-1] for name, value in prompts.items()}
    outputs = model(**start, **pictures, position_ids=positions[..., :-1], use_cache=True, logits_to_keep=1)
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    cache = outputs[name]
    cache.batch_select_indices(place)
    if getattr(model.model, "rope_deltas", None) is not None:
        model.model.rope_deltas = model.model.rope_deltas[place]
    return {key: value for key, value in inputs.items() if key not in (*IMAGES, "mm_token_type_ids")} | {name: cache}


def tiles_of_rows(model, inputs: dict) -> list[int] | None:
    """How many tiles each row's images have, of a family that cuts them into tiles; None for others."""
    if "image_grid_thw" in inputs or "pixel_values" not in inputs:
        return None
    tokens = (inputs["input_ids"] == model.config.image_token_id).sum(dim=1)
    return (tokens // model.config.image_seq_length).tolist()
