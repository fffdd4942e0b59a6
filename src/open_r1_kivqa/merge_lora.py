"""`kivqa merge-lora`: a LoRA adapter and its base become one plain checkpoint, which is loaded again and compared before it counts as done.

Everything runs on the CPU, in the memory of one model and the float32 copy of its largest layer. The merge adds each layer's update in float32 and rounds once, to the type that is saved. The comparison asks
base + adapter, unmerged, and then the checkpoint as written, for the logits of one prompt with a picture. Both compute in float32 whatever type their weights have (`in_float32`), so the two differ by the
rounding of the merged weights alone.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from .errors import InputError
from .manifest import file_hash, model_hashes, package_versions, refuse_unusable_folder

NOTE = "merge.json"
# Largest difference of a logit that is still rounding, as a share of the largest logit. A weight keeps 24, 11 or 8 binary digits; the errors of some dozen layers add up.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
# How much of the adapter's effect on the logits must be found in the merged model. Rounding points anywhere, so it hardly moves this number, even where it is as large as the effect.
SHARE = (0.75, 1.25)


@dataclass
class Comparison:
    """What the logits of base, base + adapter and merged model say.

    Attributes:
        difference, tolerance: largest difference of a logit between base + adapter and merged model, found and allowed.
        effect: largest difference of a logit between base and base + adapter; 0 for an adapter that was never trained.
        share: how much of that effect the merged model shows, along the effect: 1 for all of it, 0 for none; None without effect.
    """

    difference: float
    tolerance: float
    effect: float
    share: float | None

    @property
    def equal(self) -> bool:
        return self.difference <= self.tolerance and (self.share is None or SHARE[0] <= self.share <= SHARE[1])

    def __str__(self) -> str:
        share = "" if self.share is None else f", of which the merged model shows {100 * self.share:.2f} %"
        return (
            f"largest difference of a logit {self.difference:.2e}, allowed {self.tolerance:.2e}; "
            f"the adapter moves a logit by up to {self.effect:.2e}{share}"
        )


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="kivqa merge-lora",
        description="Merge a LoRA adapter into its base model, and check the result against base + adapter.",
        allow_abbrev=False,
    )
    flags.add_argument("--adapter_name_or_path", required=True, help="folder of the adapter")
    flags.add_argument(
        "--output_dir", required=True, help="folder of the merged checkpoint; must be empty or not there"
    )
    flags.add_argument("--model_name_or_path", help="base model (default: the one that the adapter names)")
    flags.add_argument("--model_revision", default="main", help="the base's branch, tag or commit (default: main)")
    flags.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", *TOLERANCES],
        help="type of the merged weights (default: auto, the base's own)",
    )
    return flags


def main(argv: list[str]) -> int:
    """`kivqa merge-lora`: gives the exit code 0, or raises InputError for what cannot be merged."""
    flags = parser().parse_args(argv)
    comparison = merge(
        flags.adapter_name_or_path,
        flags.output_dir,
        base=flags.model_name_or_path,
        revision=flags.model_revision,
        dtype=flags.dtype,
    )
    print(f"merged and checked: {comparison}")
    if comparison.difference > comparison.effect / 2 > 0:
        print(
            "The weights' rounding moves the logits about as much as the adapter does: --dtype float32 keeps the adapter whole.",
            file=sys.stderr,
        )
    print(f"{flags.output_dir} is a checkpoint like any other: --model_name_or_path {flags.output_dir}")
    return 0


def merge(
    adapter: str, output_dir: str, *, base: str | None = None, revision: str = "main", dtype: str = "auto"
) -> Comparison:
    """Writes the merged checkpoint with its processor and merge.json to `output_dir`, which appears only once all is written and the comparison is passed.

    Args:
        adapter: folder of the adapter. Its processor is taken if it holds one (image limits are part of it), else the base's.
        base: folder or hub name of the base; None for the one that the adapter names.
        dtype: "auto" for the base's own, or one of TOLERANCES.

    Raises:
        InputError: an adapter that can't be merged, a base that isn't the adapter's, an output folder that is in use, or a merged model that differs from base + adapter.
    """
    output = Path(output_dir).resolve()
    _refuse_output(output)
    config = _adapter_config(Path(adapter))
    named = config.get("base_model_name_or_path")
    if not (base or named):
        raise InputError(f"{adapter} does not name its base model: give it as --model_name_or_path.")

    import torch

    from .vlm_modules.loading import has_processor, load_config, load_model, load_processor

    try:
        base_config = load_config(base or named, revision=revision)
    except InputError as error:
        told = (
            error if base else f"{adapter} names its base as {named!r}; give its place as --model_name_or_path. {error}"
        )
        raise InputError(told) from None
    base = base or named
    if getattr(base_config, "quantization_config", None) is not None:
        raise InputError(
            f"{base} is quantised, and an update cannot be added to such weights: give the checkpoint it was made from as --model_name_or_path."
        )
    processor = load_processor(adapter if has_processor(adapter) else base, config_of=base, revision=revision)
    # float32 holds weights of every type, and loaded so, the base rounds nothing that the merged model doesn't.
    loaded = load_model(base, dtype=dtype if dtype == "float32" else "auto", revision=revision)
    types = {
        name: weight.dtype if dtype == "auto" else getattr(torch, dtype) for name, weight in loaded.named_parameters()
    }
    model = with_adapter(loaded, adapter, base)
    del loaded
    with model.disable_adapter():
        before = logits(model, processor)
    wanted = logits(model, processor)

    merged = merge_layers(model, types)
    del model
    written = output.absolute().parent / f".{output.name}.{os.getpid()}"
    try:
        merged.save_pretrained(written)
        processor.save_pretrained(written)
        del merged
        gc.collect()
        again = load_model(str(written), dtype="auto")
        comparison = compare(before, wanted, logits(again, load_processor(str(written))), again.dtype)
        if not comparison.equal:
            remedy = (
                "merge with --dtype float32, since rounding drowns so small an effect"
                if comparison.difference <= comparison.tolerance and again.dtype != torch.float32
                else "use the adapter as it is (--adapter_name_or_path)"
            )
            raise InputError(
                f"The merged model does not answer as {base} with {adapter} ({comparison}), so {output_dir} was not written: {remedy}."
            )
        note = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "adapter": {
                "path": str(adapter),
                "files": {file.name: file_hash(file) for file in sorted(Path(adapter).glob("adapter_*"))},
            },
            "base": model_hashes(base),
            "dtype": str(again.dtype).removeprefix("torch."),
            "comparison": asdict(comparison),
            "versions": package_versions(),
        }
        (written / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        os.replace(written, output)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return comparison


def with_adapter(model, adapter: str, base: str):
    """The model with the adapter on top, unmerged. InputError where the two don't belong together, be it in one layer."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    message = f"{adapter} is no adapter of {base} ({{}}): give the base it was trained on as --model_name_or_path."
    try:
        model = PeftModel.from_pretrained(model, adapter)
    except SafetensorError as error:
        raise InputError(f"The weights of {adapter} are damaged ({error}): save or copy the adapter again.") from error
    except (RuntimeError, ValueError) as error:  # other sizes, or layers that aren't there
        raise InputError(message.format(" ".join(str(error).split())[:300])) from error
    saved, present = load_file(Path(adapter) / "adapter_model.safetensors"), get_peft_model_state_dict(model)
    alone = sorted(saved.keys() ^ present.keys())  # PEFT leaves out what it finds no place for
    if alone:
        raise InputError(message.format(f"{alone[0]} is in {'the adapter' if alone[0] in saved else 'the model'} only"))
    return model.eval()


def merge_layers(wrapped, types: dict):
    """The plain model, the adapter added to its weights in float32, layer by layer, each rounded once to its type in `types` (name of the base's parameter: dtype)."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(wrapped.base_model.model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            base_layer = layer.get_base_layer()
            base_layer.float()
            layer.merge(safe_merge=True)
            for own, weight in base_layer.named_parameters():
                weight.data = weight.data.to(types[f"{name}.{own}"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="All adapters are already merged")
        merged = wrapped.merge_and_unload()
    for name, weight in merged.named_parameters():  # modules that were trained whole are float32 here
        weight.data = weight.data.to(types[name])
    return merged


def logits(model, processor):
    """Logits [tokens, vocabulary] in float32 of a fixed question about a fixed picture, of 112 x 84 pixels in all shades."""
    import numpy as np
    import torch
    from PIL import Image

    from .evaluation.generate import tokenize_prompts

    down, across = np.mgrid[:84, :112]
    picture = Image.fromarray(np.stack([2 * across, 3 * down, (across * down) % 256], axis=-1).astype(np.uint8))
    blocks = [{"type": "image", "image": picture}, {"type": "text", "text": "What does this picture show? Count to 9."}]
    inputs = tokenize_prompts(processor, [[{"role": "user", "content": blocks}]])
    model.eval()
    with torch.no_grad(), in_float32(model):
        return model(**inputs).logits[0].float()


@contextmanager
def in_float32(model):
    """Within it, every layer's own weights are float32 while it runs, and no longer: a forward pass of half-precision weights in float32 arithmetic, without a second copy of the model."""
    kept, handles = {}, []

    def widen(layer, inputs):
        kept[layer] = {name: parameter.data for name, parameter in layer.named_parameters(recurse=False)}
        for parameter in layer.parameters(recurse=False):
            parameter.data = parameter.data.float()
        # Models round pixels to the type of the vision tower's weights.
        return tuple(
            value.float() if hasattr(value, "is_floating_point") and value.is_floating_point() else value
            for value in inputs
        )

    def restore(layer, inputs, output):
        for name, data in kept.pop(layer).items():
            getattr(layer, name).data = data

    for layer in model.modules():
        if not list(layer.children()) and list(layer.parameters(recurse=False)):
            handles += [layer.register_forward_pre_hook(widen), layer.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def compare(before, wanted, found, dtype) -> Comparison:
    """Logits [tokens, vocabulary] of the base, of base + adapter and of the merged model, whose weights are of `dtype`."""
    effect, shown = wanted - before, found - before
    square = effect.square().sum().item()
    return Comparison(
        difference=(found - wanted).abs().max().item(),
        tolerance=TOLERANCES[str(dtype).removeprefix("torch.")] * wanted.abs().max().item(),
        effect=effect.abs().max().item(),
        share=(shown * effect).sum().item() / square if square > 0 else None,
    )


def _refuse_output(output: Path) -> None:
    refuse_unusable_folder(output)
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"--output_dir {output} is not empty: give another folder.")


def _adapter_config(adapter: Path) -> dict:
    """The adapter's config; InputError for what is no LoRA adapter in safetensors."""
    path = adapter / "adapter_config.json"
    if not path.is_file():
        checkpoints = sorted(folder.parent.name for folder in adapter.glob("checkpoint-*/adapter_config.json"))
        hint = f" It holds {', '.join(checkpoints)}: give one of these." if checkpoints else ""
        raise InputError(
            f"--adapter_name_or_path {adapter} has no adapter_config.json: give the folder of a LoRA adapter.{hint}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not json ({error}): save the adapter again.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise InputError(f"{adapter} is an adapter of type {kind}: only LoRA can be merged here.")
    if not (adapter / "adapter_model.safetensors").is_file():
        raise InputError(
            f"{adapter} has no adapter_model.safetensors: the adapter is incomplete, or saved as a pickle file, which can run code when loaded."
        )
    return config
