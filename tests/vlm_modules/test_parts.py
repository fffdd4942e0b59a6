"""Freezing, LoRA and the report, on the real parameter names of every family."""

import re

import pytest
import torch
from peft import get_peft_model
from tiny import FAMILIES

from open_r1_kivqa.arguments import VLMModelConfig
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.vlm_modules import MODULES, PARTS
from open_r1_kivqa.vlm_modules.loading import load_model
from open_r1_kivqa.vlm_modules.parts import (
    assert_lora_respects,
    freeze_parts,
    frozen_parts,
    frozen_pattern,
    lora_config,
    parameter_report,
)
from open_r1_kivqa.vlm_modules.qwen import QwenVL

FLAG = {"vision": "freeze_vision_modules", "projector": "freeze_projector", "language": "freeze_language_model"}


def flags(path: str, *frozen: str, **more) -> VLMModelConfig:
    return VLMModelConfig(model_name_or_path=path, **{FLAG[part]: True for part in frozen}, **more)


@pytest.mark.parametrize(
    ("family", "name", "part"),
    [
        ("qwen2_5_vl", "model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("qwen2_5_vl", "model.visual.merger.mlp.0.weight", "projector"),
        ("qwen2_5_vl", "base_model.model.model.visual.merger.mlp.0.lora_A.default.weight", "projector"),
        ("qwen2_5_vl", "module.lm_head.weight", "language"),
        ("qwen3_vl", "model.visual.deepstack_merger_list.0.norm.weight", "projector"),
        ("glm4v", "model.visual.embeddings.position_embedding.weight", "vision"),
        ("glm4v", "model.visual.downsample.weight", "projector"),
        ("glm4v", "model.visual.merger.gate_proj.weight", "projector"),
        ("internvl", "model.vision_tower.encoder.layer.0.attention.q_proj.weight", "vision"),
        ("internvl", "model.multi_modal_projector.linear_1.bias", "projector"),
        ("internvl", "model.language_model.layers.0.self_attn.q_proj.weight", "language"),
    ],
)
def test_part_of_a_parameter(family, name, part):
    assert MODULES[family].parameter_part(name) == part


def test_unknown_parameter_is_an_error():
    with pytest.raises(InputError, match="'model.visuals.x' belongs to no part of the family Qwen2-VL"):
        MODULES["qwen2_vl"].parameter_part("model.visuals.x")


def test_prefix_that_matches_no_parameter_is_an_error(tiny_model):
    class Old(QwenVL):
        family = "Old Qwen"
        vision = ("visual_tower",)

    with pytest.raises(InputError, match="Old Qwen expects parameters under 'visual_tower'"):
        Old().check_prefixes(load_model(tiny_model("qwen2_5_vl")))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [("vision",), ("vision", "projector"), ("projector",), ("language",)])
def test_freezing_holds_without_and_with_lora(family, frozen, tiny_model):
    path, module = tiny_model(family), MODULES[family]
    model = load_model(path)
    freeze_parts(model, module, **dict.fromkeys(frozen, True))
    trained = {module.parameter_part(name) for name, value in model.named_parameters() if value.requires_grad}
    assert trained == set(PARTS) - set(frozen)

    model_args = flags(path, *frozen, use_peft=True)
    wrapped = get_peft_model(model, lora_config(model, module, model_args))
    assert_lora_respects(wrapped, module, frozen_parts(model_args))
    adapted = {module.parameter_part(name) for name, value in wrapped.named_parameters() if value.requires_grad}
    assert adapted == set(PARTS) - set(frozen)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_targets_every_linear_layer_but_the_head(family, tiny_model):
    path, module = tiny_model(family), MODULES[family]
    model = load_model(path)
    linear = {name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear) and name != "lm_head"}
    wrapped = get_peft_model(model, lora_config(model, module, flags(path, use_peft=True)))
    adapted = {
        name.removeprefix("base_model.model.").split(".lora_A")[0]
        for name, _ in wrapped.named_parameters()
        if ".lora_A" in name
    }
    assert adapted == linear


def test_named_targets_reach_unfrozen_parts_only(tiny_model):
    """InternVL's vision tower has a q_proj too."""
    path, module = tiny_model("internvl"), MODULES["internvl"]
    for frozen, parts in [((), {"vision", "language"}), (("vision",), {"language"})]:
        model = load_model(path)
        model_args = flags(path, *frozen, use_peft=True, lora_target_modules=["q_proj"])
        wrapped = get_peft_model(model, lora_config(model, module, model_args))
        assert {module.parameter_part(n) for n, value in wrapped.named_parameters() if value.requires_grad} == parts


@pytest.mark.parametrize(
    ("frozen", "targets", "message"),
    [
        (("vision",), ["qkv"], "matches no layer.*outside the frozen parts .vision"),
        ((), ["no_such_layer", "nor_this"], "matches no layer"),
        ((), ["lm_head", "q_proj"], "lm_head"),
    ],
)
def test_targets_that_train_nothing_are_refused(frozen, targets, message, tiny_model):
    path = tiny_model("qwen2_5_vl")
    with pytest.raises(InputError, match=message):
        lora_config(
            load_model(path),
            MODULES["qwen2_5_vl"],
            flags(path, *frozen, use_peft=True, lora_target_modules=targets),
        )


def test_trainable_copy_of_a_frozen_layer_is_found(tiny_model):
    path, module = tiny_model("qwen2_5_vl"), MODULES["qwen2_5_vl"]
    model = load_model(path)
    model_args = flags(path, "vision", "projector", use_peft=True, lora_modules_to_save=["merger"])
    wrapped = get_peft_model(model, lora_config(model, module, model_args))
    with pytest.raises(InputError, match="merger.*is frozen"):
        assert_lora_respects(wrapped, module, frozen_parts(model_args))


def test_nothing_to_train_is_found(tiny_model):
    model = load_model(tiny_model("qwen2_5_vl")).requires_grad_(False)
    with pytest.raises(InputError, match="No parameter"):
        assert_lora_respects(model, MODULES["qwen2_5_vl"], set())


def test_pattern_by_hand():
    pattern = frozen_pattern(MODULES["qwen2_5_vl"], {"vision"})
    for name, frozen in [
        ("model.visual.blocks.0.attn.qkv", True),
        ("base_model.model.model.visual", True),
        ("model.visual.merger_norm", True),
        ("model.visual.merger", False),
        ("model.visual.merger.mlp.0", False),
        ("model.language_model.layers.0.mlp.up_proj", False),
    ]:
        assert bool(re.fullmatch(pattern, name)) == frozen, name


def test_report_adds_up(tiny_model):
    model, module = load_model(tiny_model("internvl")), MODULES["internvl"]
    freeze_parts(model, module, vision=True)
    table = [line.split() for line in parameter_report(model, module).replace(",", "").splitlines()]
    assert [row[0] for row in table] == ["part", "vision", "projector", "language", "all"]
    counts = {row[0]: (int(row[1]), int(row[2])) for row in table[1:]}
    total = sum(value.numel() for value in model.parameters())
    vision = sum(value.numel() for value in model.model.vision_tower.parameters())
    assert counts["vision"] == (0, vision)
    assert counts["all"] == (total - vision, total)
    assert counts["projector"][0] + counts["language"][0] == total - vision


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"lora_target_modules": "("}, r"--lora_target_modules \( is no regular expression"),
        ({"lora_task_type": "FOO"}, "LoRA's flags cannot be used: Invalid task type: 'FOO'"),
    ],
)
def test_flags_that_peft_refuses(more, message, tiny_model):
    path = tiny_model("qwen2_5_vl")
    with pytest.raises(InputError, match=message):
        lora_config(load_model(path), MODULES["qwen2_5_vl"], flags(path, use_peft=True, **more))
