"""Completions by a real vLLM, with images, against Hugging Face's own."""

from pathlib import Path

import pytest
from tiny import FAMILIES
from training_rows import write_data

TOKENS = 10
PICTURES = ((100, 60), (56, 112), (140, 140))


def prompts(processor):
    """Inputs of prompts with three pictures (two side by side), one picture, and none; each a BatchEncoding of tensors, with its pictures."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0)
    first, second, third = (
        Image.fromarray(noise.integers(0, 255, (height, width, 3), dtype=np.uint8)) for width, height in PICTURES
    )
    question = {"type": "text", "text": "What is the capital of this country?"}
    for pictures, blocks in (
        ([first, second, third], ["image", "image", question, "image"]),
        ([third], ["image", question]),
        ([], [question]),
    ):
        left = iter(pictures)
        content = [{"type": "image", "image": next(left)} if block == "image" else block for block in blocks]
        message = [{"role": "user", "content": content}]
        yield (
            processor.apply_chat_template(
                [message],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                processor_kwargs={"return_tensors": "pt"},
            ),
            pictures,
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_hugging_faces(family, engine, tiny_model):
    """Equal for collapsed prompts. For prompts as the processor leaves them vLLM sees more image tokens than there are, which is what stock TRL does."""
    import torch
    from vllm import SamplingParams

    from open_r1_kivqa.evaluation.generate import generation_config
    from open_r1_kivqa.trainer.vision_tokens import BIAS
    from open_r1_kivqa.vlm_modules import MODULES
    from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

    module, processor, model = MODULES[family], load_processor(tiny_model(family)), load_model(tiny_model(family))
    llm = engine(tiny_model(family))
    forbidden = module.vision_token_ids(processor)
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, logit_bias=dict.fromkeys(forbidden, BIAS))

    def continued(ids, pictures):
        row = {"prompt_token_ids": ids} | ({"multi_modal_data": {"image": pictures}} if pictures else {})
        [output] = llm.generate([row], sampling_params=sampling, use_tqdm=False)
        return list(output.prompt_token_ids), list(output.outputs[0].token_ids)

    changed = []
    for inputs, pictures in prompts(processor):
        ids = inputs["input_ids"][0].tolist()
        with torch.no_grad():
            config = generation_config(model, processor, TOKENS)
            wanted = model.eval().generate(**inputs, generation_config=config)[0, len(ids) :].tolist()
        collapsed = module.collapse_image_tokens(processor, ids, [picture.size for picture in pictures])
        assert continued(collapsed, pictures) == (ids, wanted)
        if pictures:
            seen, answer = continued(ids, pictures)
            assert len(seen) > len(ids)
            changed.append(answer != wanted)
    assert any(changed) or family == "qwen2_vl"  # whose tiny model says the same to anything


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


def trained(model_path, flags, folder, model_flags=None, curriculum=None, **options):
    """A trainer after a run with a colocated engine."""
    from grpo_run import config, make_trainer

    args = config(folder, use_vllm=True, vllm_max_model_length=1024, **{"learning_rate": 1e-2, **options})
    trainer = make_trainer(model_path, flags, args, model_flags, curriculum)
    trainer.train()
    return trainer


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def first_logprobs(trainer):
    """Log-probs of the first token after a prompt with pictures, (vocabulary,) each: by the engine and by the model that trains."""
    import torch
    from vllm import SamplingParams

    inputs, pictures = next(prompts(trainer.processing_class))
    ids = inputs["input_ids"][0].tolist()
    [collapsed] = trainer._prompts_for_vllm([ids], [pictures])
    llm = trainer.vllm_generation.llm
    width = trainer.model.config.text_config.vocab_size
    llm.llm_engine.model_config.max_logprobs = width
    row = {"prompt_token_ids": collapsed, "multi_modal_data": {"image": pictures}}
    [output] = llm.generate([row], SamplingParams(max_tokens=1, logprobs=width), use_tqdm=False)
    found = output.outputs[0].logprobs[0]
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    with torch.no_grad():
        logits = model(**inputs.to(model.device)).logits[0, -1].float()
    return torch.tensor([found[token].logprob for token in range(width)]), logits.log_softmax(-1).cpu()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("lora", [False, True])
def test_updated_weights_reach_the_engine(family, lora, engine, tiny_model, flags, tmp_path, monkeypatch):
    """Three steps on rows with none, one and two pictures; the engine's log-probs were and are the model's."""
    import torch

    from open_r1_kivqa.trainer import vision_tokens

    # The engine's log-probs are among the tokens that aren't forbidden. Here none is, so that they are the trainer's.
    monkeypatch.setattr(vision_tokens, "BIAS", 0.0)
    model_flags = {"use_peft": True, "lora_r": 4, "lora_dropout": 0.0} if lora else {}
    trainer = trained(
        tiny_model(family), flags, tmp_path / "run", model_flags, beta=0.1, num_generations=4, max_steps=3
    )
    assert len(logged(trainer, "loss")) == 3
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-3
    stale, model = first_logprobs(trainer)  # of the weights before the last step, by which the last rollout was
    assert (stale - model).abs().max() > 1e-2
    trainer.forget_images()
    trainer.vllm_generation.sync_weights()
    fresh, model = first_logprobs(trainer)
    assert torch.allclose(fresh, model, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gap_is_what_forbidden_tokens_weigh(family, engine, tiny_model, flags, tmp_path):
    """A random model gives each of its some 490 tokens a share: the engine's log-probs are higher by -log(1 - share of the forbidden ones), and there is no other gap."""
    trainer = trained(tiny_model(family), flags, tmp_path / "run", learning_rate=1e-5, num_generations=4)
    assert logged(trainer, "completions/with_vision_tokens") == [0, 0]
    assert 0 < max(logged(trainer, "sampling/sampling_logp_difference/max")) < 0.1
    assert max(logged(trainer, "sampling/importance_sampling_ratio/max")) < 1


def test_a_trained_vision_tower_is_seen(engine, tiny_model, flags, tmp_path, monkeypatch):
    """The engine keeps what its vision tower made of a picture; stock TRL leaves it there when the tower's weights change."""
    import torch

    trainer = trained(
        tiny_model("qwen2_5_vl"), flags, tmp_path / "run", {"freeze_language_model": True}, learning_rate=0.1
    )
    first_logprobs(trainer)  # the pictures are known to the engine now
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if "visual" in name:
                parameter.mul_(1.5)
    trainer.vllm_generation.sync_weights()
    stale, model = first_logprobs(trainer)
    assert (stale - model).abs().max() > 1e-2
    trainer.forget_images()
    fresh, model = first_logprobs(trainer)
    assert torch.allclose(fresh, model, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "limits"),
    [("qwen2_5_vl", {"max_pixels": 1_600, "min_pixels": 784}), ("internvl", {"max_anyres_num": 1})],
)
def test_the_processors_limits_hold_in_the_engine(family, limits, engine, tiny_model, flags, tmp_path, monkeypatch):
    from PIL import Image

    from open_r1_kivqa.errors import InputError
    from open_r1_kivqa.trainer.vllm_rollout import VLLMRolloutMixin

    for path in Path(flags["image_folders"]).iterdir():
        Image.new("RGB", (120, 56), (90, 30, 60)).save(path)  # two tiles for InternVL
    trained(tiny_model(family), flags, tmp_path / "run", limits, max_steps=1)
    monkeypatch.setattr(VLLMRolloutMixin, "prepare_vllm", lambda trainer: None)
    with pytest.raises(InputError, match="vLLM made .* tokens of a prompt"):
        trained(tiny_model(family), flags, tmp_path / "other", limits, max_steps=1)


def test_stages_and_dynamic_sampling(engine, tiny_model, flags, tmp_path):
    import pandas

    trainer = trained(
        tiny_model("qwen2_5_vl"),
        flags,
        tmp_path / "run",
        curriculum={"dynamic_sampling_rounds": 2},
        max_steps=4,
        ptst="2:4:4,2:9:2",
        num_generations=4,
        max_completion_length=9,
        log_completions=True,
        num_completions_to_print=0,
    )
    assert logged(trainer, "stage") == [1, 1, 2, 2]
    assert logged(trainer, "completions/max_length")[1] <= 4 < logged(trainer, "completions/max_length")[3] <= 9
    tables = [pandas.read_parquet(path) for path in sorted((tmp_path / "run" / "completions").glob("*.parquet"))]
    assert [len(table) for table in tables] == [4, 4, 2, 2]
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 0.1


def test_the_entry_from_start_to_resume(engine, flags, tmp_path, monkeypatch, tiny_model):
    """With evaluation, which is Hugging Face's, between the steps; the resumed run's engine has the checkpoint's weights, not those it reads from the model's folder."""
    from open_r1_kivqa.grpo_jsonl import main
    from open_r1_kivqa.trainer import vision_tokens

    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vision_tokens, "BIAS", 0.0)
    given = {
        "model_name_or_path": tiny_model("qwen2_5_vl"),
        **flags,
        "output_dir": tmp_path / "run",
        "use_vllm": True,
        "vllm_max_model_length": 1024,
        "val_split_ratio": 0.3,
        "eval_steps": 1,
        "save_steps": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 6,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
    }
    argv = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    gap = "sampling/sampling_logp_difference/max"
    trainer = main([*argv, "--max_steps", "2"])
    assert len(logged(trainer, "eval_accuracy")) == 2 and max(logged(trainer, gap)) < 1e-3
    trainer = main([*argv, "--max_steps", "4", "--resume_from_checkpoint", "true"])
    assert len(logged(trainer, gap)) == 4 and max(logged(trainer, gap)) < 1e-3
