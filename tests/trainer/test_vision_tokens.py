"""No completion holds a token of an image: forbidden in generation, and harmless where one comes all the same."""

from types import SimpleNamespace

import pytest
import torch
from grpo_run import config, letters_reward, losses, make_trainer, record_completions, weights
from training_rows import write_data

from open_r1_kivqa.trainer.vision_tokens import BIAS

SPOILED = (1, 4)  # places of completions, in two groups of four


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


def penalty(prompts, completions, **kwargs):
    return [-1.0 - place / 10 for place in range(len(completions))]


def images_only(prompts, completions, image_path, **kwargs):
    """Does not apply to rows without image."""
    return [1.0 if paths else None for paths in image_path]


def spoil(trainer, tail: list[int], at: int = 1) -> list[int]:
    """Recorded completions, of which those at SPOILED have a vision token, each another one, and `tail` behind it. Returns the vision tokens."""
    record_completions(trainer)
    recorded = trainer._generate_single_turn
    tokens = sorted(trainer.vision_token_ids)

    def spoiled(prompt_ids, *args, **kwargs):
        completions, _ = recorded(prompt_ids, *args, **kwargs)
        for number, place in enumerate(SPOILED):
            token = tokens[(trainer.state.global_step + number) % len(tokens)]
            completions[place] = [*completions[place][:at], token, *tail]
        return completions, [[-1.0] * len(ids) for ids in completions]

    trainer._generate_single_turn = spoiled
    return tokens


def run(model_path, flags, folder, *, tail, at=1, **options):
    args = config(folder, per_device_train_batch_size=8, num_generations=4, max_steps=3, beta=0.1, **options)
    trainer = make_trainer(model_path, flags, args, reward_funcs=[letters_reward, penalty])
    spoil(trainer, tail, at)
    trainer.train()
    return trainer


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "glm4v"])
def test_they_are_forbidden_in_generation(family, tiny_model, flags, tmp_path):
    args = config(tmp_path / "run", generation_kwargs={"suppress_tokens": [5]})
    trainer = make_trainer(tiny_model(family), flags, args)
    wanted = sorted({5, *trainer.vision_token_ids})
    assert trainer.generation_config.suppress_tokens == trainer.generation_kwargs["suppress_tokens"] == wanted
    with torch.no_grad():  # a model that wants nothing else: the first image token's logit is by far the highest
        trainer.model.get_output_embeddings().weight[sorted(trainer.vision_token_ids)] += 10
    trainer.train()
    assert {entry.get("completions/with_vision_tokens", 0.0) for entry in trainer.state.log_history} == {0.0}


def test_vllm_gets_a_bias_beside_the_users_own(tiny_model, flags, tmp_path):
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run"))
    trainer.use_vllm = True
    trainer.vllm_generation = SimpleNamespace(generation_kwargs={"seed": 3, "logit_bias": {5: 1.0}})
    trainer.forbid_vision_tokens()
    bias = dict.fromkeys(trainer.vision_token_ids, BIAS)
    assert trainer.vllm_generation.generation_kwargs == {"seed": 3, "logit_bias": {5: 1.0} | bias}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_one_that_comes_all_the_same_scores_nothing_and_moves_nothing(family, tiny_model, flags, tmp_path):
    """Whatever follows the token, and wherever it stands: the same weights, since the completion is out of the loss and only its 0 counts in the group."""
    first = run(tiny_model(family), flags, tmp_path / "first", tail=[40, 41, 42])
    second = run(tiny_model(family), flags, tmp_path / "second", tail=[60])
    at_start = run(tiny_model(family), flags, tmp_path / "third", tail=[], at=0)
    assert any(losses(first)) and losses(first) == losses(second)
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name])
        assert torch.allclose(value, weights(at_start)[name], atol=1e-6)  # other padding
    shares = [log["completions/with_vision_tokens"] for log in first.state.log_history if "loss" in log]
    assert shares == [2 / 8] * 3
    for name in ("letters_reward", "penalty"):
        rewards = list(first._logs["rewards"][name])
        assert [rewards[place] for place in SPOILED] == [0.0, 0.0]
    assert sum(reward < 0 for reward in rewards) == 6  # the penalty of the others stands


def test_what_the_loss_gets(tiny_model, flags, tmp_path):
    """By hand: an end in place of the token, the mask 0 over what is left of the completion, log-probs of the same length."""
    args = config(tmp_path / "run", per_device_train_batch_size=8, num_generations=4)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args, reward_funcs=[letters_reward, images_only])
    vision = spoil(trainer, tail=[40, 41, 42], at=2)
    rows = [{"row": row} for row in (2, 2, 2, 2, 1, 1, 1, 1)]  # Italy without image, Germany with two
    batch = trainer._generate_and_score_completions(rows)
    lengths = batch["completion_mask"].sum(dim=1).tolist()
    for place in range(8):
        ids = batch["completion_ids"][place, : lengths[place]].tolist()
        assert not set(ids) & set(vision) and ids[-1] == trainer.eos_token_ids[0]
        mask = batch["tool_mask"][place, : lengths[place]].tolist()
        assert mask == [int(place not in SPOILED)] * lengths[place]
    assert [lengths[place] for place in SPOILED] == [3, 3]
    rewards = {name: list(values) for name, values in trainer._logs["rewards"].items()}
    assert [place for place, reward in enumerate(rewards["letters_reward"]) if reward == 0] == list(SPOILED)
    # A reward that doesn't apply to Italy has no 0 there.
    assert torch.tensor(rewards["images_only"][:4]).isnan().all() and rewards["images_only"][4:] == [0.0, 1, 1, 1]


def test_dynamic_sampling_takes_the_mask_along(tiny_model, flags, tmp_path):
    args = config(tmp_path / "run", per_device_train_batch_size=8, num_generations=4, max_steps=2)
    curriculum = {"dynamic_sampling_rounds": 2}
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, args, reward_funcs=[letters_reward], curriculum=curriculum)
    spoil(trainer, tail=[40])
    masks = []
    compute_loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: masks.append(inputs["tool_mask"]) or compute_loss(model, inputs)
    trainer.train()
    assert len(masks) == 2 and all((mask[:, 0] == 0).sum() == 2 for mask in masks)


def test_a_clean_run_has_no_mask(tiny_model, flags, tmp_path):
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run"), reward_funcs=[letters_reward])
    record_completions(trainer)
    assert "tool_mask" not in trainer._generate_and_score_completions([{"row": row} for row in (0, 0, 1, 1)])
