"""What the trainer hands to vLLM and makes of its answers, with a stand-in for the engine that widens images as vLLM does. The real one: tests/vllm_rollouts."""

from types import SimpleNamespace

import pytest
from grpo_run import config, letters_reward, losses, make_trainer
from training_rows import write_data

from open_r1_kivqa.errors import InputError

LETTERS = "abcdefgh"


@pytest.fixture
def flags(tmp_path):
    return write_data(tmp_path / "data")


class Engine:
    """In place of TRL's VLLMGeneration. Widens each placeholder by the processor; completions are as long as allowed."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.max_completion_length = trainer.max_completion_length
        self.generation_kwargs = {}
        self.calls, self.events = [], []
        self.config = SimpleNamespace(mm_processor_kwargs=None)
        model_config = SimpleNamespace(multimodal_config=self.config)
        engine = SimpleNamespace(model_config=model_config, reset_encoder_cache=lambda: self.events.append("forget"))
        self.llm = SimpleNamespace(llm_engine=engine)

    def sync_weights(self):
        self.events.append(f"sync {self.trainer.state.global_step}")

    def generate(self, prompts, images, num_generations, profiler):
        self.calls.append((prompts, num_generations))
        processor = self.trainer.processing_class
        seen = []
        for ids, pictures in zip(prompts, images or [None] * len(prompts), strict=True):
            text = processor.tokenizer.decode(ids)
            seen.append(processor(images=pictures or None, text=[text])["input_ids"][0])
        letters = processor.tokenizer.encode(LETTERS * 4)[: self.max_completion_length]
        completions = [[*letters[:-1], letters[place % len(letters)]] for place in range(len(prompts))]
        return seen, completions, [[[-6.0]] * len(ids) for ids in completions], None


def with_engine(trainer) -> Engine:
    trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "colocate", -1
    trainer.vllm_generation = Engine(trainer)
    trainer.prepare_vllm()
    trainer.forbid_vision_tokens()
    return trainer.vllm_generation


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "glm4v"])
def test_one_placeholder_an_image_and_new_weights_once_a_step(family, tiny_model, flags, tmp_path):
    args = config(tmp_path / "run", max_steps=3, num_iterations=1, per_device_train_batch_size=8)
    trainer = make_trainer(tiny_model(family), flags, args, reward_funcs=[letters_reward])
    engine = with_engine(trainer)
    trainer.train()
    assert len(losses(trainer)) == 3
    assert engine.events == ["sync 0", "forget", "sync 1", "forget", "sync 2", "forget"]
    image = trainer.processing_class.image_token_id
    found = sorted({ids.count(image) for prompts, _ in engine.calls for ids in prompts})
    assert found == [0, 1, 2] and {number for _, number in engine.calls} == {2}
    assert engine.config.mm_processor_kwargs == trainer.module.processor_limits(trainer.processing_class)
    assert set(engine.generation_kwargs["logit_bias"]) == set(trainer.vision_token_ids)


def test_prompts_that_vllm_reads_otherwise_end_the_run(tiny_model, flags, tmp_path):
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, config(tmp_path / "run"))
    engine = with_engine(trainer)
    answer = engine.generate

    def widen_once_more(**request):
        seen, *rest = answer(**request)
        return [[*ids, ids[-1]] for ids in seen], *rest

    engine.generate = widen_once_more
    with pytest.raises(InputError, match="vLLM made .* tokens of a prompt of .* tokens"):
        trainer.train()
    assert len(engine.calls) == 1


def test_stages_set_the_engines_completion_length_and_dynamic_sampling_its_rounds(tiny_model, flags, tmp_path):
    args = config(
        tmp_path / "run", ptst="2:4:4,2:7:2", num_generations=4, max_completion_length=7, max_steps=4, logging_steps=1
    )
    trainer = make_trainer(
        tiny_model("qwen2_5_vl"),
        flags,
        args,
        reward_funcs=[lambda prompts, completions, **kwargs: [1.0] * len(prompts)],  # no group ever teaches
        curriculum={"dynamic_sampling_rounds": 2},
    )
    engine = with_engine(trainer)
    trainer.train()
    lengths = [entry["completions/max_length"] for entry in trainer.state.log_history if "loss" in entry]
    assert lengths == [4, 4, 7, 7]
    assert [number for _, number in engine.calls] == [4, 4, 4, 4, 2, 2, 2, 2]  # two rounds a step
    assert [event for event in engine.events if event != "forget"] == ["sync 0", "sync 1", "sync 2", "sync 3"]
