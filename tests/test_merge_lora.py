"""Adapters trained here become plain checkpoints that answer the same; what cannot be merged is refused, and nothing half done is left."""

import json
import shutil
from pathlib import Path

import grpo_run
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from training_rows import write_data
from transformers import AutoModelForImageTextToText, AutoProcessor

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.generate import greedy
from open_r1_kivqa.manifest import file_hash
from open_r1_kivqa.merge_lora import TOLERANCES, compare, in_float32, logits, main, merge
from open_r1_kivqa.vlm_modules.loading import load_config, load_model, load_processor

LINEAR = r".*language_model.*\.(q_proj|v_proj|down_proj)"
QUESTION = [[{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]]


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """trained(family) -> adapter of two steps of GRPO, as the trainer saves it, with smaller images than the base allows."""
    folders = {}

    def of(family: str) -> str:
        if family not in folders:
            folder = tmp_path_factory.mktemp(family)
            flags = write_data(folder / "data")
            limits = {"max_anyres_num": 1} if family == "internvl" else {"max_pixels": 6000}
            args = grpo_run.config(folder / "run", learning_rate=1e-2, temperature=1.0)
            lora = {"use_peft": True, "lora_r": 4, **limits}
            trainer = grpo_run.make_trainer(tiny_model(family), flags, args, lora)
            trainer.train()
            trainer.save_model(str(folder / "adapter"))
            folders[family] = str(folder / "adapter")
        return folders[family]

    return of


def made(base: str, folder: Path, *, scale: float = 0.1, **options) -> str:
    """An adapter of random values; `options` are LoraConfig's."""
    torch.manual_seed(3)
    model = get_peft_model(load_model(base, dtype="auto"), LoraConfig(**{"r": 4, "target_modules": LINEAR, **options}))
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "lora_embedding_A" in name or "modules_to_save" in name:
            parameter.data += scale * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return str(folder)


def in_half(base: str, folder: Path) -> str:
    load_model(base, dtype=torch.bfloat16).save_pretrained(folder)
    load_processor(base).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "glm4v"])
def test_trained_adapter_and_merged_checkpoint_answer_alike(family, tiny_model, trained, tmp_path, capsys):
    base, adapter, output = tiny_model(family), trained(family), tmp_path / "merged"
    assert main(["--adapter_name_or_path", adapter, "--output_dir", str(output)]) == 0
    assert "merged and checked: largest difference of a logit" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]

    processor = AutoProcessor.from_pretrained(output)  # plain transformers and plain peft from here
    merged = AutoModelForImageTextToText.from_pretrained(output)
    on_top = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), adapter)
    asked = logits(on_top, processor)
    torch.testing.assert_close(logits(merged, processor), asked, rtol=0, atol=1e-4)
    assert (asked - logits(load_model(base), processor)).abs().max() > 0.01
    if family == "internvl":
        assert processor.image_processor.max_patches == 1
    else:
        assert processor.image_processor.size["longest_edge"] == 6000 * (2 if family == "glm4v" else 1)

    # Evaluation merges an adapter by itself; both ways lead to the same model.
    evaluated = PeftModel.from_pretrained(load_model(base), adapter).merge_and_unload()
    for name, value in evaluated.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], value, rtol=0, atol=1e-6)
    told = [
        greedy(model, load_processor(str(output)), QUESTION, max_new_tokens=8, batch_size=1)
        for model in (merged, evaluated)
    ]
    assert told[0] == told[1]

    note = json.loads((output / "merge.json").read_text())
    assert note["base"]["files"]["model.safetensors"] == file_hash(f"{base}/model.safetensors")
    assert note["adapter"]["files"] == {
        name: file_hash(f"{adapter}/{name}") for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    assert note["dtype"] == "float32" and 0 <= note["comparison"]["difference"] <= note["comparison"]["tolerance"]


def test_merged_checkpoint_can_be_trained_on(trained, tmp_path):
    merge(trained("qwen2_5_vl"), str(tmp_path / "merged"))
    flags = write_data(tmp_path / "data")
    trainer = grpo_run.make_trainer(str(tmp_path / "merged"), flags, grpo_run.config(tmp_path / "run", max_steps=1))
    trainer.train()
    assert len(grpo_run.losses(trainer)) == 1


def test_half_precision_is_rounded_once(tiny_model, tmp_path):
    """Base weight and update are added in float32: the merged weight is their sum, rounded to bfloat16."""
    base = in_half(tiny_model("qwen2_5_vl"), tmp_path / "base")
    adapter = made(base, tmp_path / "adapter", scale=0.01)
    merge(adapter, str(tmp_path / "merged"))
    merged = load_model(str(tmp_path / "merged"), dtype="auto")
    assert {value.dtype for value in merged.parameters()} == {torch.bfloat16}
    start, on_top = load_model(base, dtype="auto"), PeftModel.from_pretrained(load_model(base, dtype="auto"), adapter)
    updated = 0
    for name, layer in on_top.base_model.model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            delta = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * layer.scaling["default"]
            whole = start.get_submodule(name).weight.float() + delta
            assert torch.equal(merged.get_submodule(name).weight, whole.bfloat16()), name
            updated += 1
    assert updated == 6  # three layers of each of two blocks


@pytest.mark.parametrize(("dtype", "kept"), [("float32", torch.float32), ("float16", torch.float16)])
def test_dtype_of_the_merged_weights(dtype, kept, tiny_model, tmp_path):
    base = in_half(tiny_model("internvl"), tmp_path / "base")
    comparison = merge(made(base, tmp_path / "adapter"), str(tmp_path / "merged"), dtype=dtype)
    assert {value.dtype for value in load_model(str(tmp_path / "merged"), dtype="auto").parameters()} == {kept}
    assert comparison.share == pytest.approx(1, abs=0.01)
    assert comparison.difference < (1e-4 if dtype == "float32" else 0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"modules_to_save": ["merger"]},
        {"lora_bias": True, "bias": "lora_only"},
    ],
    ids=["dora", "rslora", "modules_to_save", "bias"],
)
def test_kinds_of_lora(options, tiny_model, tmp_path):
    if "lora_bias" in options:
        options |= {"target_modules": r".*language_model.*\.(q_proj|v_proj)"}  # layers that have a bias
    base = tiny_model("qwen2_5_vl")
    comparison = merge(made(base, tmp_path / "adapter", **options), str(tmp_path / "merged"))
    assert comparison.effect > 0.01 and comparison.difference < 1e-4 < comparison.effect


def test_modules_trained_whole_get_the_bases_type(tiny_model, tmp_path):
    """PEFT holds them in float32. The output folder may be there, if it is empty."""
    base = in_half(tiny_model("qwen2_5_vl"), tmp_path / "base")
    (tmp_path / "merged").mkdir()
    merge(made(base, tmp_path / "adapter", modules_to_save=["merger"]), str(tmp_path / "merged"))
    assert {value.dtype for value in load_file(tmp_path / "merged" / "model.safetensors").values()} == {torch.bfloat16}


def test_adapter_that_was_never_trained(tiny_model, tmp_path):
    comparison = merge(made(tiny_model("qwen2_vl"), tmp_path / "adapter", scale=0), str(tmp_path / "merged"))
    assert comparison.effect == 0 and comparison.share is None and comparison.equal


def test_merge_that_changes_the_answers_is_not_put_in_place(tiny_model, tmp_path):
    """An adapter on the embedding reaches the output head once merged, since the two are one weight here, and did not before."""
    adapter = made(tiny_model("qwen2_5_vl"), tmp_path / "adapter", target_modules=["embed_tokens"], scale=1.0)
    with pytest.raises(InputError, match="does not answer as .*largest difference of a logit .*--adapter_name_or_path"):
        merge(adapter, str(tmp_path / "merged"))
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_effect_that_rounding_drowns(tiny_model, tmp_path):
    base = in_half(tiny_model("qwen2_5_vl"), tmp_path / "base")
    adapter = made(base, tmp_path / "adapter", scale=1e-6)
    with pytest.raises(InputError, match="merge with --dtype float32"):
        merge(adapter, str(tmp_path / "merged"))
    assert merge(adapter, str(tmp_path / "merged"), dtype="float32").share == pytest.approx(1, abs=0.1)


class TestRefusals:
    def test_output_in_use(self, trained, tmp_path):
        (tmp_path / "model.safetensors").touch()
        with pytest.raises(InputError, match="is not empty"):
            merge(trained("qwen2_5_vl"), str(tmp_path))

    def test_no_adapter(self, tmp_path):
        with pytest.raises(InputError, match="has no adapter_config.json: give the folder of a LoRA adapter.$"):
            merge(str(tmp_path), str(tmp_path / "merged"))
        (tmp_path / "checkpoint-5").mkdir()
        (tmp_path / "checkpoint-5" / "adapter_config.json").write_text("{}")
        with pytest.raises(InputError, match="It holds checkpoint-5: give one of these"):
            merge(str(tmp_path), str(tmp_path / "merged"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"peft_type": "IA3"}, "adapter of type IA3: only LoRA"),
            ({"base_model_name_or_path": None}, "does not name its base model"),
            (
                {"base_model_name_or_path": "/gone"},
                "names its base as '/gone'; give its place as --model_name_or_path. No model",
            ),
        ],
    )
    def test_adapter_config(self, change, message, trained, tmp_path):
        adapter = Path(shutil.copytree(trained("qwen2_5_vl"), tmp_path / "adapter"))
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps(config | change))
        with pytest.raises(InputError, match=message):
            merge(str(adapter), str(tmp_path / "merged"))

    def test_files_that_cannot_be_read(self, trained, tmp_path):
        adapter = Path(shutil.copytree(trained("qwen2_5_vl"), tmp_path / "adapter"))
        (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
        with pytest.raises(InputError, match="no adapter_model.safetensors"):
            merge(str(adapter), str(tmp_path / "merged"))
        (adapter / "adapter_model.safetensors").write_bytes(b"half a file")
        with pytest.raises(InputError, match="weights of .* are damaged"):
            merge(str(adapter), str(tmp_path / "merged"))
        (adapter / "adapter_config.json").write_text("[]")
        with pytest.raises(InputError, match="type None: only LoRA"):
            merge(str(adapter), str(tmp_path / "merged"))
        (adapter / "adapter_config.json").write_text("{")
        with pytest.raises(InputError, match="is not json"):
            merge(str(adapter), str(tmp_path / "merged"))

    def test_quantised_base(self, tiny_model, trained, tmp_path):
        base = Path(shutil.copytree(tiny_model("qwen2_5_vl"), tmp_path / "base"))
        config = json.loads((base / "config.json").read_text())
        quantised = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
        (base / "config.json").write_text(json.dumps(config | quantised))
        with pytest.raises(InputError, match="is quantised"):
            merge(trained("qwen2_5_vl"), str(tmp_path / "merged"), base=str(base))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ({"num_hidden_layers": 3}, "layers.2.* is in the model only"),
            ({"num_hidden_layers": 1}, "layers.1.* is in the adapter only"),
            ({"intermediate_size": 96}, "size mismatch"),
        ],
        ids=["deeper", "shallower", "wider"],
    )
    def test_base_of_another_size(self, text, message, tiny_model, tmp_path):
        adapter = made(tiny_model("qwen2_5_vl"), tmp_path / "adapter")
        config = load_config(tiny_model("qwen2_5_vl"))
        for name, value in text.items():
            setattr(config.text_config, name, value)
        config.text_config.layer_types = ["full_attention"] * config.text_config.num_hidden_layers
        AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path / "base")
        load_processor(tiny_model("qwen2_5_vl")).save_pretrained(tmp_path / "base")
        with pytest.raises(InputError, match=rf"is no adapter of .*{message}.*give the base it was trained on"):
            merge(adapter, str(tmp_path / "merged"), base=str(tmp_path / "base"))
        assert not (tmp_path / "merged").exists()

    @pytest.mark.parametrize("other", ["internvl", "qwen3_vl"])
    def test_base_of_another_family(self, other, tiny_model, trained, tmp_path):
        with pytest.raises(InputError, match=f"is no adapter of .*{other}"):
            merge(trained("qwen2_5_vl"), str(tmp_path / "merged"), base=tiny_model(other))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl", "glm4v"])
def test_half_precision_weights_in_float32_arithmetic(family, tiny_model):
    """As if the weights had been loaded in float32, but for the pixels, which models round to the type of their weights; afterwards they are what they were."""
    path, processor = tiny_model(family), load_processor(tiny_model(family))
    half = load_model(path, dtype=torch.bfloat16)
    start = {name: value.clone() for name, value in half.state_dict().items()}
    whole = load_model(path, dtype=torch.bfloat16).float()
    torch.testing.assert_close(logits(half, processor), logits(whole, processor), rtol=0, atol=0.02)
    question = load_processor(path).tokenizer("What is the capital?", return_tensors="pt")
    with torch.no_grad(), in_float32(half):
        exact = half(**question).logits
    with torch.no_grad():
        torch.testing.assert_close(exact, whole(**question).logits, rtol=0, atol=1e-5)
        assert (half(**question).logits.float() - exact).abs().max() > 1e-3
    for name, value in half.state_dict().items():
        assert value.dtype == torch.bfloat16 and torch.equal(value, start[name])


def test_comparison_by_hand():
    base, with_adapter = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    whole = compare(base, with_adapter, torch.tensor([[3.0, 4.0]]), torch.float32)
    assert (whole.difference, whole.effect, whole.share, whole.equal) == (0, 4, 1, True)
    assert whole.tolerance == pytest.approx(4 * TOLERANCES["float32"])
    half = compare(base, with_adapter, torch.tensor([[1.5, 2.0]]), torch.bfloat16)
    assert (half.difference, half.share, half.equal) == (2.0, 0.5, False)
    # Within the tolerance, and yet the adapter is gone: the logits are large and it changes little.
    base, with_adapter = torch.tensor([[100.0, 0.0]]), torch.tensor([[100.0, 1.0]])
    dropped = compare(base, with_adapter, base, torch.bfloat16)
    assert (dropped.difference, dropped.tolerance, dropped.share, dropped.equal) == (1, 5, 0, False)
