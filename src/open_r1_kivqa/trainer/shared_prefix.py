"""The log-probs of a batch with each prompt, images included, computed once for all of its completions.

Stock TRL runs prompt and images once for each completion, in the loss, for the old and for the reference log-probs. With prompts much longer than their answers, as passages make them, that is nearly all of the
work. Here rows of one prompt become one (packing.py, prefix_attention.py); log-probs, entropies and gradients are the same up to rounding.
"""

import torch
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from .packing import Prompt, pack, packs
from .prefix_attention import use_shared_prefix
from .vision_rows import IMAGES, images_by_row


class SharedPrefixMixin:
    """For `VLMGRPOTrainer`: its log-probs by packed rows, and micro-batches in which a group's rows stay together."""

    shares_prefix = False
    keeps_groups = False

    def prepare_shared_prefix(self) -> None:
        """Of `self.module`, the family's. Says, once, why prompts are not shared where they aren't, and warns where rows of one prompt hardly meet."""
        models = [self.model] if self.ref_model is None else [self.model, self.ref_model]
        models = [plain_model(self.accelerator, model) for model in models]
        why = None
        if not self.module.shares_prefix:
            why = f"it isn't known to be exact for {self.module.family}"
        elif self.args.torch_compile:
            why = "--torch_compile would compile every layout of a packed row anew"
        elif self.args.neftune_noise_alpha is not None:
            why = "--neftune_noise_alpha measures its noise by a row's length"
        elif self.aux_loss_enabled:
            why = "mixtures of experts balance their load over all tokens"
        elif not all([use_shared_prefix(model) for model in models]):
            why = "it needs sdpa or flash attention over whole rows"
        self.shares_prefix = why is None
        if not self.accelerator.is_main_process:
            return
        if why is not None:
            print(f"Prompts are computed once for each completion (--shared_prefix has no effect): {why}.", flush=True)
            return
        rows, group = self.args.per_device_train_batch_size, self.args.num_generations
        if rows % group:
            print(
                f"WARNING: a prompt is computed once for the rows of a micro-batch that share it, and of {group} completions at most {min(rows, group)} meet in one of {rows} rows: "
                f"make --per_device_train_batch_size a multiple of --num_generations, with fewer --gradient_accumulation_steps.",
                flush=True,
            )

    def _prepare_inputs(self, generation_batch):
        """As TRL's; with `keeps_groups` the generation batch is shuffled group by group, so that rows of one prompt fall into the same micro-batch."""
        every = self.args.steps_per_generation * self.num_iterations
        if not self.keeps_groups or not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if self._step % every == 0 or self._buffered_inputs is None:
            batch = split_pixel_values_by_grid(self._generate_and_score_completions(generation_batch))
            first = self.accelerator.process_index * len(batch["prompt_ids"])
            batch = shuffle_groups(batch, self.num_generations, first)
            parts = split_tensor_dict(batch, self.args.steps_per_generation)
            self._buffered_inputs = [unsplit_pixel_values_by_grid(part) for part in parts]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _logps_of_shared_prompts(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, vision
    ):
        """Log-probs and entropies, (batch, logits_to_keep) each, 0 after a completion's end, as TRL's method returns them.

        Args:
            batch_size: rows of the batch that may be computed at a time; with --shared_prefix_max_tokens that many tokens instead.
        """
        prompts = self._prompts(model, input_ids, attention_mask, logits_to_keep, vision)
        budget = self.args.shared_prefix_max_tokens or _stock_tokens(input_ids, batch_size)
        parts = packs(prompts, budget)
        together = self.needs_dummy_row()  # every pass is one of all ranks
        if together:
            parts = [self._with_image(model, part) for part in parts]
        runs = [pack(part) for part in parts]
        passes = len(runs)
        if together and budget is not None:  # without a budget it is one on each
            passes = int(self.accelerator.gather(torch.tensor([passes], device=input_ids.device)).max())
        logps = torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device)
        entropies = torch.zeros_like(logps) if compute_entropy else None
        for number in range(passes):
            run = runs[min(number, len(runs) - 1)]
            with self.accelerator.autocast():
                outputs = model(**run.inputs, fused_lm_head=True)
            if number >= len(runs):  # only so that the other ranks can go on
                logps = logps + 0 * outputs.log_probs.sum()
                continue
            where = (run.rows, run.columns)
            logps = logps.index_put(where, outputs.log_probs[0, run.places].to(logps.dtype))
            if compute_entropy:
                entropies = entropies.index_put(where, outputs.entropy[0, run.places].to(logps.dtype))
        return logps, entropies, None

    def _prompts(self, model, input_ids, attention_mask, logits_to_keep, vision) -> list[Prompt]:
        """The batch's different prompts in the order of their first rows. Rows share a prompt if tokens and images are equal."""
        images = images_by_row(vision, vision.get("num_images") or [0] * len(input_ids))
        ids, mask = input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep].bool()
        prompt_ids = [row[its] for row, its in zip(ids, mask, strict=True)]
        completions = [
            row[its.bool()]
            for row, its in zip(input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:], strict=True)
        ]
        groups = equal_rows(prompt_ids, images)
        first = [rows[0] for rows in groups]
        types = vision.get("mm_token_type_ids")
        positions = self.module.positions(
            plain_model(self.accelerator, model),
            ids[first],
            mask[first],
            mm_token_type_ids=None if types is None else types[first, : ids.size(1)],
            images=[images[row] for row in first],
        )
        return [
            Prompt(
                prompt_ids[rows[0]],
                positions[:, i, mask[rows[0]]],
                tuple(rows),
                tuple(completions[row] for row in rows),
                images[rows[0]],
            )
            for i, rows in enumerate(groups)
        ]

    def _with_image(self, model, prompts: list[Prompt]) -> list[Prompt]:
        """With a prompt of one small image that nothing continues, where there is no image: every rank runs the vision tower in each pass."""
        if any(prompt.images for prompt in prompts):
            return prompts
        dummy, device = self.dummy_row(), prompts[0].ids.device
        tokens = {key: value.to(device) for key, value in dummy.token_inputs.items()}
        images = {key: value.to(device) for key, value in dummy.image_inputs.items() if key in IMAGES}
        positions = self.module.positions(
            plain_model(self.accelerator, model),
            tokens["input_ids"],
            tokens["attention_mask"].bool(),
            mm_token_type_ids=tokens.get("mm_token_type_ids"),
            images=[images],
        )
        return [*prompts, Prompt(tokens["input_ids"][0], positions[:, 0], (), (), images)]


def plain_model(accelerator, model):
    """The transformers model inside the accelerator's wrappers, torch.compile's and PEFT's."""
    model = accelerator.unwrap_model(model, keep_torch_compile=False)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def equal_rows(prompt_ids: list[torch.Tensor], images: list[dict[str, torch.Tensor]]) -> list[list[int]]:
    """Rows that have the same tokens and images, together, in the order of their first rows."""
    groups: list[list[int]] = []
    for row, (ids, pictures) in enumerate(zip(prompt_ids, images, strict=True)):
        for group in groups:
            if torch.equal(ids, prompt_ids[group[0]]) and _same(pictures, images[group[0]]):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def _same(pictures: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return pictures.keys() == others.keys() and all(torch.equal(pictures[key], others[key]) for key in pictures)


def shuffle_groups(batch: dict, group: int, first: int) -> dict:
    """The batch's rows with whole groups in a random order, drawn from torch's generator as TRL draws that of rows.

    Args:
        batch: values with an entry for each row; None and numbers without rows stay.
        group: rows of a group. first: number of the batch's first row among all ranks'; a group may reach over two ranks.
    """
    number = len(batch["prompt_ids"])
    units: dict[int, list[int]] = {}
    for row in range(number):
        units.setdefault((first + row) // group, []).append(row)
    parts = list(units.values())
    order = [row for i in torch.randperm(len(parts)).tolist() for row in parts[i]]

    def reorder(value):
        if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
            return value
        return value[order] if isinstance(value, torch.Tensor) else [value[row] for row in order]

    return {key: reorder(value) for key, value in batch.items()}


def _stock_tokens(input_ids: torch.Tensor, batch_size: int | None) -> int | None:
    """Tokens that the stock pass computes at a time where it is given a number of rows."""
    return None if batch_size is None or torch.is_grad_enabled() else batch_size * input_ids.size(1)
