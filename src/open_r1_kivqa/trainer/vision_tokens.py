"""No completion holds a token of an image or a video.

Such a token has no image behind it: the model's forward pass in training would look for its features and fail, or take those of another row. Stock TRL forbids one of them in Hugging Face's `generate` and none in
vLLM. Here all tokens that the family's processor puts into prompts are forbidden in both. A completion that holds one all the same, as a custom generation might make it, ends at that token, scores 0 in every reward
and is left out of the loss.
"""

import torch

BIAS = -100.0  # the lowest that vLLM takes; added to a logit


class VisionTokensMixin:
    """For `VLMGRPOTrainer`, once `forbid_vision_tokens` was called."""

    vision_token_ids: frozenset[int] = frozenset()
    spoiled: list[bool] | None = None  # which of this rank's completions, of those generated last, held such a token

    def forbid_vision_tokens(self) -> None:
        """For every generation from now on. `self.module` is the family's."""
        ids = self.module.vision_token_ids(self.processing_class)
        self.vision_token_ids = frozenset(ids)
        if self.use_vllm:
            own = self.vllm_generation.generation_kwargs
            bias = {**(own.get("logit_bias") or {}), **dict.fromkeys(ids, BIAS)}
            self.vllm_generation.generation_kwargs = own | {"logit_bias": bias}
        else:
            suppressed = sorted({*ids, *(self.generation_kwargs.get("suppress_tokens") or [])})
            self.generation_kwargs["suppress_tokens"] = self.generation_config.suppress_tokens = suppressed

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        if not self.vision_token_ids:
            return generated
        prompt_ids, completion_ids, mask, completions, logprobs, *rest = generated
        self.spoiled = [not self.vision_token_ids.isdisjoint(ids) for ids in completion_ids]
        self._log_metric("completions/with_vision_tokens", sum(self.spoiled) / len(self.spoiled))
        if any(self.spoiled):
            completion_ids = [self._ended_before(ids) for ids in completion_ids]
            if logprobs is not None:
                logprobs = [its[: len(ids)] for its, ids in zip(logprobs, completion_ids, strict=True)]
            # TRL's mask of what tools wrote: 0 keeps a token out of the loss.
            mask = [[int(not it)] * len(ids) for it, ids in zip(self.spoiled, completion_ids, strict=True)]
        return prompt_ids, completion_ids, mask, completions, logprobs, *rest

    def _ended_before(self, ids: list[int]) -> list[int]:
        """The completion with an end in place of its first vision token."""
        first = next((i for i, token in enumerate(ids) if token in self.vision_token_ids), None)
        return ids if first is None else [*ids[:first], self.eos_token_ids[0]]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.spoiled is None:
            return rewards
        spoiled = self.accelerator.gather(torch.tensor(self.spoiled, device=rewards.device))
        group = self.num_generations if self.model.training else self.num_generations_eval
        # A reward that no completion of a group has does not apply to its row, and stays away.
        applies = (~rewards.isnan()).view(-1, group, rewards.size(1)).any(dim=1).repeat_interleave(group, dim=0)
        return torch.where(spoiled[:, None] & applies, 0.0, rewards)
