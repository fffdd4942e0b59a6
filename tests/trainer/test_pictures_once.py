"""Pictures preprocessed once: the processor's own outputs, and fewer pictures worked on."""

import pytest
import torch
from grpo_run import config, make_trainer, record_completions
from PIL import Image
from training_rows import write_data

from open_r1_kivqa.trainer.pictures_once import OncePerPicture, once_per_picture
from open_r1_kivqa.vlm_modules.loading import load_processor

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "glm4v")
SIZES = [(56, 56), (140, 84), (56, 56), (84, 200)]


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_the_processors_own(family, tiny_model):
    """Several sizes, a picture twice, and an equal one that is another object."""
    processor = load_processor(tiny_model(family))
    a, b, c, d = (Image.effect_noise(size, 50).convert("RGB") for size in SIZES)
    batches = [[[a, b], [], [c]], [[b], [a, a], [d.copy()]], [[d], [], []]]
    marker = "IMAGE" if family != "glm4v" else "<|begin_of_image|><|image|><|end_of_image|>"
    marker = processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}], tokenize=False)
    texts = [[f"{marker * len(row)} what?" for row in batch] for batch in batches]
    plain = [
        processor(images=i, text=t, padding=True, return_tensors="pt") for i, t in zip(batches, texts, strict=True)
    ]
    with once_per_picture(processor) as once:
        ours = [
            processor(images=i, text=t, padding=True, return_tensors="pt") for i, t in zip(batches, texts, strict=True)
        ]
        assert once.worked_on == 5  # a, b, c, d's copy, d
    assert not isinstance(processor.image_processor, OncePerPicture)
    for got, wanted in zip(ours, plain, strict=True):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert torch.equal(torch.as_tensor(got[name]), torch.as_tensor(wanted[name])), name


def test_a_generation_batch_works_on_each_picture_once(tiny_model, tmp_path):
    flags = write_data(tmp_path / "data", kinds="11111111")
    trainer = make_trainer(
        tiny_model("qwen2_5_vl"), flags, config(tmp_path, num_generations=4, per_device_train_batch_size=8, max_steps=2)
    )
    record_completions(trainer)
    seen = []
    process = type(trainer.processing_class.image_processor).__call__

    def count(self, images, *args, **kwargs):
        seen.append(len(images))
        return process(self, images, *args, **kwargs)

    type(trainer.processing_class.image_processor).__call__ = count
    try:
        trainer.train()
    finally:
        type(trainer.processing_class.image_processor).__call__ = process
    assert seen == [2, 2]  # two prompts a batch; stock TRL: [8, 8, 8, 8]
