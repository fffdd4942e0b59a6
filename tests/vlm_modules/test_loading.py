"""Checkpoints that load, and one clear sentence for each that cannot be used."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES
from tokenizers import AddedToken

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.vlm_modules import module_for
from open_r1_kivqa.vlm_modules.loading import load_config, load_model, load_processor


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A copy of a checkpoint to spoil."""
    return shutil.copytree(tiny_model("qwen2_5_vl"), tmp_path / "checkpoint")


def change_config(folder, **entries) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads(family, tiny_model):
    path = tiny_model(family)
    assert family in module_for(load_config(path)).model_types
    processor = load_processor(path)
    assert processor.tokenizer.padding_side == "left"
    assert load_model(path).dtype == torch.float32
    assert load_model(path, dtype="bfloat16").dtype == torch.bfloat16


def test_weights_are_those_of_the_file(tiny_model):
    """`load_model` maps the hub's names to the model's own: the language model's embedding arrives whole."""
    path = tiny_model("qwen2_5_vl")
    saved = load_file(f"{path}/model.safetensors")
    name = next(name for name in saved if name.endswith("embed_tokens.weight"))
    assert torch.equal(load_model(path).get_input_embeddings().weight, saved[name])


def test_folder_without_config(tmp_path):
    with pytest.raises(InputError, match="no config.json"):
        load_config(str(tmp_path))
    (tmp_path / "checkpoint-20").mkdir()
    with pytest.raises(InputError, match="checkpoint-20: give one of these"):
        load_config(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="LoRA adapter.*kivqa merge-lora --adapter_name_or_path"):
        load_config(str(tmp_path))


def test_missing_folder_is_named():
    with pytest.raises(InputError, match="No model could be read from '/no/such/model'"):
        load_config("/no/such/model")


def test_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no weights"):
        load_processor(str(folder))
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(InputError, match="pickle"):
        load_model(str(folder))


def test_text_only_model(folder):
    change_config(folder, model_type="qwen2")
    with pytest.raises(InputError, match="model_type 'qwen2' is not a vision-language model"):
        load_model(str(folder))


def test_remote_code_is_refused_and_never_run(folder, tmp_path):
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import PretrainedConfig\nclass C(PretrainedConfig): model_type = 'internvl_chat'\n"
    )
    change_config(folder, model_type="internvl_chat", auto_map={"AutoConfig": "evil.C"})
    with pytest.raises(InputError, match="ends in -hf"):
        load_model(str(folder))
    # A known model_type with code beside it loads with transformers' own code.
    change_config(folder, model_type="qwen2_5_vl")
    load_model(str(folder))
    assert not ran.exists()


def test_processor_without_chat_template(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        load_processor(str(folder))


def test_tokenizer_that_drops_the_tags(folder):
    """Special tokens are left out of decoded completions: every answer would be lost."""
    tokenizer = load_processor(str(folder)).tokenizer
    tokenizer.add_tokens([AddedToken("</answer>", special=True)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(InputError, match="for special tokens and drops them .*becomes '<think>a</think><answer>b'"):
        load_processor(str(folder))


def test_folder_with_a_tokenizer_only(folder):
    (folder / "processor_config.json").unlink()
    with pytest.raises(InputError, match="image processor"):
        load_processor(str(folder))


def test_incomplete_weights(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "layers.1.mlp.down_proj" in name)
    del weights[name]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks the weights of 1 parameters.*layers.1.mlp.down_proj"):
        load_model(str(folder))


def test_attention_that_is_not_installed(tiny_model):
    with pytest.raises(InputError, match="--attn_implementation flash_attention_2"):
        load_model(tiny_model("qwen2_5_vl"), attn_implementation="flash_attention_2")
