"""Every private part of TRL and transformers that the trainers rely on, by name. When a release moves one, this says which."""

import importlib
import inspect

import pytest
from transformers import Cache, GenerationMixin, Trainer
from trl import GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import utils

HOOKS = {
    "_get_train_sampler": ["dataset"],
    "_generate_and_score_completions": ["inputs"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_generate": ["prompts"],
    "_generate_single_turn": [
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ],
    "_tokenize_prompts": ["prompts"],
    "_get_per_token_logps_and_entropies": [
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
    ],
    "_prepare_inputs": ["generation_batch"],
    "_save_checkpoint": ["model", "trial"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_load_from_checkpoint": ["resume_from_checkpoint", "model"],
    "_log_completion_extra": ["column", "values"],
    "_log_metric": ["name", "value"],
    "log": ["logs", "start_time"],
    "evaluate": ["eval_dataset", "ignore_keys", "metric_key_prefix"],
}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_exists_with_its_parameters(name):
    method = getattr(GRPOTrainer, name, None)
    assert method is not None, f"TRL's GRPOTrainer has no {name} any more: the override in trainer/ is never called"
    parameters = list(inspect.signature(method).parameters)[1:]
    assert parameters[: len(HOOKS[name])] == HOOKS[name], f"{name} changed its parameters: adapt the override"


@pytest.mark.parametrize(
    "attribute",
    [
        "_step",
        "_buffered_inputs",
        "_is_vlm",
        "_pending_extra_logs",
        "_logs",
        "log_completions",
        "_tokenizer",
        "eos_token_ids",
        "multi_objective_aggregation",
        "reward_func_names",
        "reward_weights",
        "num_generations",
        "max_completion_length",
        "generation_config",
        "generation_kwargs",
        "current_gradient_accumulation_steps",
        "use_vllm",
        "vllm_mode",
        "vllm_generation",
        "_last_loaded_step",
        "num_generations_eval",
    ],
)
def test_attribute_is_still_used(attribute):
    source = inspect.getsource(GRPOTrainer) + inspect.getsource(Trainer)
    assert f"self.{attribute}" in source, f"TRL does not set {attribute} any more"


def test_sampler_keeps_its_shape():
    assert list(inspect.signature(utils.RepeatSampler).parameters) == [
        "data_source",
        "mini_repeat_count",
        "batch_size",
        "repeat_count",
        "shuffle",
        "seed",
    ]
    assert callable(utils.split_pixel_values_by_grid) and callable(utils.unsplit_pixel_values_by_grid)


def test_a_batch_is_generated_before_it_is_scored_once_each():
    """Dynamic sampling hands both results to the stock method, which must ask for them in this order and no more often."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert source.count("self._generate(") == source.count("self._calculate_rewards(") == 1
    assert source.index("self._generate(") < source.index("self._calculate_rewards(")


def test_vllm_is_reached_as_trl_reaches_it():
    """What trainer/vllm_rollout.py takes TRL's place in: new weights once a step, then prompts of tokens beside their images."""
    stock = inspect.getsource(GRPOTrainer._generate_single_turn)
    assert "if self.state.global_step != self._last_loaded_step:" in stock
    assert "_, completion_ids, logprobs, _ = self.vllm_generation.generate(" in stock
    parameters = inspect.signature(VLLMGeneration.generate).parameters
    assert list(parameters)[1:] == ["prompts", "images", "num_generations", "profiler"]
    source = inspect.getsource(VLLMGeneration)
    for part in (
        "self.llm = LLM(",
        "self.llm.llm_engine.model_executor",
        'row["multi_modal_data"] = {"image":',
        "generation_kwargs.update(self.generation_kwargs)",  # the engine's SamplingParams take logit_bias from there
        '"generation_kwargs": self.generation_kwargs',  # and the server's
        "max_completion_length = self.max_completion_length",  # read at each call, as stages need it
        "self.vllm_client.image_features(",
        "all_prompt_ids = [output.prompt_token_ids for output in all_outputs]",
    ):
        assert part in source, f"TRL's VLLMGeneration has no {part} any more: adapt trainer/vllm_rollout.py"
    assert "reset_encoder_cache" not in source, "TRL drops stale images itself now: forget_images can go"
    assert list(inspect.signature(VLLMClient.image_features).parameters)[1] == "images"


def test_a_mask_keeps_tokens_out_of_the_loss():
    """The third value of `_generate`, which trainer/vision_tokens.py sets."""
    scored = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "completion_ids_list,\n            tool_mask_list,\n            completions," in scored
    assert 'mask = completion_mask if "tool_mask" not in inputs' in inspect.getsource(GRPOTrainer._compute_loss)


def test_micro_batches_are_made_as_trl_makes_them():
    """trainer/shared_prefix.py takes the place of these lines, with a shuffle of whole groups."""
    source = inspect.getsource(GRPOTrainer._prepare_inputs)
    for part in (
        "generate_every = self.args.steps_per_generation * self.num_iterations",
        "if self._step % generate_every == 0 or self._buffered_inputs is None:",
        "generation_batch = split_pixel_values_by_grid(generation_batch)",
        "generation_batch = shuffle_sequence_dict(generation_batch)",
        "generation_batches = split_tensor_dict(generation_batch, self.args.steps_per_generation)",
        "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]",
    ):
        assert part in source, f"TRL makes micro-batches another way now (no {part!r}): adapt SharedPrefixMixin"


def test_log_probs_are_had_as_trl_has_them():
    """The call of the model, its head and the labels that trainer/shared_prefix.py relies on."""
    assert "fused_lm_head=True" in inspect.getsource(GRPOTrainer._get_per_token_logps_and_entropies)
    head = inspect.getsource(utils.add_fused_lm_head)
    assert "if shift_labels is None:" in head and "labels = shift_labels" in head


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_models_tell_positions(name):
    """`get_rope_index` for the positions of a prompt, `rope_deltas` for how far they run ahead in generation."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    (model,) = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and "get_rope_index" in vars(kind) and kind.__module__ == module.__name__
    ]
    parameters = inspect.signature(model.get_rope_index).parameters
    assert {"input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask"} <= set(parameters)
    assert "self.rope_deltas" in inspect.getsource(model)
    assert hasattr(GenerationMixin, "_prepare_position_ids_for_generation") and hasattr(Cache, "batch_select_indices")
