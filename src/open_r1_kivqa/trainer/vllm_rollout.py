"""Completions by vLLM, right with images.

TRL 1.16 tokenises a prompt with the processor, which widens each image's placeholder to the image's tokens, and hands these to vLLM beside the images. In the trainer's own process (--vllm_mode colocate) vLLM widens
them once more, and the model sees tokens that no image stands behind. So here vLLM gets one placeholder for each image, and its prompts are compared with the trainer's. Two more things would go wrong unseen: vLLM
reads the checkpoint's processor, without --max_pixels and the like, and it keeps what the vision tower made of an image when the tower's weights have changed.
"""

import json

from trl.extras.profiling import profiling_context

from ..errors import InputError


class VLLMRolloutMixin:
    """For `VLMGRPOTrainer` with --use_vllm, once `prepare_vllm` was called. `self.module` is the family's."""

    def prepare_vllm(self) -> None:
        """Has the engine treat images as the trainer's processor does, or sees that the server does."""
        limits = self.module.processor_limits(self.processing_class)
        if self.vllm_mode == "colocate":
            config = self.vllm_generation.llm.llm_engine.model_config.multimodal_config
            config.mm_processor_kwargs = {**(config.mm_processor_kwargs or {}), **limits}
        elif self.accelerator.is_main_process:
            self._check_features_of(self.vllm_generation.vllm_client)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if not self.use_vllm or self.rollout is None:
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
        if self.state.global_step != self._last_loaded_step:
            with profiling_context(self, "sync_weights"):
                self.vllm_generation.sync_weights()
                self.forget_images()
            self._last_loaded_step = self.state.global_step
        seen, completion_ids, logprobs, _ = self.vllm_generation.generate(
            prompts=self._prompts_for_vllm(prompt_ids, images),
            images=images,
            num_generations=num_generations,
            profiler=profiling_context(self, "vLLM.generate"),
        )
        for ids, theirs in zip(prompt_ids, seen, strict=True):
            if list(theirs) != list(ids):
                raise InputError(
                    f"vLLM made {len(theirs)} tokens of a prompt of {len(ids)} tokens, so it would answer another one: its processor or tokenizer isn't the model's. "
                    "Give the folder of one complete checkpoint as --model_name_or_path, or leave --use_vllm out."
                )
        return completion_ids, [[top[0] for top in sequence] for sequence in logprobs]

    def forget_images(self) -> None:
        """Drops what the engine's vision tower made of images with the weights it had."""
        if self.vllm_mode == "colocate":
            self.vllm_generation.llm.llm_engine.reset_encoder_cache()
        elif self.accelerator.is_main_process:
            client = self.vllm_generation.vllm_client
            client.session.post(f"{client.base_url}/reset_encoder_cache").raise_for_status()

    def _prompts_for_vllm(self, prompt_ids: list[list[int]], images: list[list | None] | None) -> list[list[int]]:
        """With one placeholder for each image. A server gets the images' features, which TRL lays on the widened placeholders."""
        if images is None or self.vllm_mode == "server":
            return prompt_ids
        return [
            self.module.collapse_image_tokens(self.processing_class, ids, [picture.size for picture in pictures or []])
            for ids, pictures in zip(prompt_ids, images, strict=True)
        ]

    def _check_features_of(self, client) -> None:
        """Has the client refuse features of a server whose processor makes another number of tokens of an image."""
        features_of = client.image_features

        def checked(images, *args, **kwargs):
            features = features_of(images, *args, **kwargs)
            for pictures, its in zip(images, features, strict=True):
                for picture, place in zip(pictures or [], its["mm_placeholders"]["image"] if its else [], strict=True):
                    wanted = self.module.num_image_tokens(self.processing_class, *picture.size)
                    if place["length"] != wanted:
                        raise InputError(
                            f"The vLLM server makes {place['length']} tokens of an image of {picture.width} x {picture.height} pixels, and the trainer {wanted}: start the server with "
                            f"--mm-processor-kwargs '{json.dumps(self.module.processor_limits(self.processing_class))}' on the same model."
                        )
            return features

        client.image_features = checked
