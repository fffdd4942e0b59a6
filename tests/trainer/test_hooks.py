"""Every private part of TRL and transformers that the trainers rely on, by name. When a release moves one, this says which."""

import inspect

import pytest
from transformers import Trainer
from trl import GRPOTrainer
from trl.trainer import utils

HOOKS = {
    "_get_train_sampler": ["dataset"],
    "_generate_and_score_completions": ["inputs"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_generate": ["prompts"],
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
