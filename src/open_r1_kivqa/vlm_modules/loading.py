"""Config, processor and model of a checkpoint, refused in one clear sentence where they cannot be used. Weights load from safetensors only and no code of a checkpoint is ever run."""

from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, PretrainedConfig, ProcessorMixin

from ..errors import InputError
from ..rewards.extraction import FORM_TAG
from . import module_for

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load_config(path: str, *, revision: str = "main"):
    """The model config of a checkpoint (folder or hub name). Raises InputError where it is no vision-language model of a family we know, or a folder without weights."""
    if Path(path).is_dir():
        _check_folder(Path(path))
    try:
        raw, _ = PretrainedConfig.get_config_dict(path, revision=revision)
    except OSError as error:
        raise InputError(
            f"No model could be read from {path!r}: give a folder with config.json, or the name of a model on the hub. ({_first_line(error)})"
        ) from error
    try:
        module_for(PretrainedConfig(model_type=raw.get("model_type")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)


def load_processor(
    path: str,
    *,
    min_pixels=None,
    max_pixels=None,
    max_anyres_num=None,
    revision: str = "main",
    config_of: str | None = None,
) -> ProcessorMixin:
    """The checkpoint's processor, padding on the left (completions are appended on the right), with the image limits set (see VLMModule.limit_images).

    Args:
        config_of: the base model's folder or name, where `path` is a LoRA adapter's folder: that holds the processor it was trained with, but no model config.

    Raises InputError for a checkpoint without image processor or chat template, for a tokenizer that drops the answer's tags, and for a limit that its family has no use for.
    """
    module = module_for(load_config(config_of or path, revision=revision))
    try:
        processor = AutoProcessor.from_pretrained(path, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The processor of {path!r} could not be read: the folder needs the tokenizer's and the image processor's files of the model. ({_first_line(error)})"
        ) from error
    if not isinstance(processor, ProcessorMixin) or not hasattr(processor, "image_processor"):
        raise InputError(
            f"{path!r} has a tokenizer but no image processor: copy preprocessor_config.json (or processor_config.json) of the model into the folder."
        )
    if not processor.chat_template:
        raise InputError(
            f"The processor of {path!r} has no chat template: copy chat_template.jinja of the instruct model into the folder (a base model has none)."
        )
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    module.prepare(processor)
    _check_tags(path, tokenizer)
    module.limit_images(processor, min_pixels=min_pixels, max_pixels=max_pixels, max_anyres_num=max_anyres_num)
    return processor


def has_processor(folder: str | Path) -> bool:
    """Whether a processor was saved in the folder, as beside an adapter."""
    return any((Path(folder) / name).is_file() for name in ("processor_config.json", "preprocessor_config.json"))


def load_model(path: str, *, dtype="float32", attn_implementation: str | None = None, revision: str = "main", **kw):
    """The model of a checkpoint, its part names checked. `dtype` as transformers takes it ("auto": as saved); `kw` goes to `from_pretrained`.

    Raises InputError where weights are missing, so that nothing trains from values drawn at random unnoticed, or where the attention implementation isn't installed.
    """
    config = load_config(path, revision=revision)
    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **kw,
        )
    except SafetensorError as error:
        raise InputError(
            f"The weights of {path!r} are damaged ({_first_line(error)}): download or save the checkpoint again."
        ) from error
    except (ImportError, ValueError, TypeError, OSError) as error:  # flags that this model or machine has no use for
        named = f"--attn_implementation {attn_implementation}" if attn_implementation else "these flags"
        raise InputError(f"{path!r} cannot be loaded with {named}: {_first_line(error)}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise InputError(
            f"{path!r} lacks the weights of {len(missing)} parameters of {type(model).__name__}, for example {missing[0]}: download the checkpoint again or give a complete one."
        )
    module_for(config).check_prefixes(model)
    return model


def _check_tags(path: str, tokenizer) -> None:
    """Completions are decoded without special tokens: tags among them would be lost to every reward."""
    form = "<think>a</think><answer>b</answer>"
    read = tokenizer.decode(tokenizer.encode(form, add_special_tokens=False), skip_special_tokens=True)
    if FORM_TAG.findall(read) != FORM_TAG.findall(form):
        raise InputError(
            f"The tokenizer of {path!r} takes some of the tags <think>, </think>, <answer>, </answer> for special tokens and drops them ({form!r} becomes {read!r}), so no answer could be found in a "
            'completion: set "special": false for them in its tokenizer.json and tokenizer_config.json.'
        )


def _check_folder(folder: Path) -> None:
    names = {entry.name for entry in folder.iterdir()}
    if "config.json" not in names:
        if "adapter_config.json" in names:
            raise InputError(
                f"{folder} holds a LoRA adapter, not a model: give its base model as --model_name_or_path, and the adapter to evaluation as --adapter_name_or_path; to train on or to use it elsewhere, merge it first (kivqa merge-lora --adapter_name_or_path {folder} --output_dir ...)."
            )
        checkpoints = sorted(name for name in names if name.startswith("checkpoint-"))
        hint = f" It holds {', '.join(checkpoints)}: give one of these." if checkpoints else ""
        raise InputError(f"{folder} has no config.json, so it is no model folder.{hint}")
    if any(folder.glob("*.safetensors")):
        return
    if any(file for pattern in PICKLED for file in folder.glob(pattern)):
        raise InputError(
            f"The weights in {folder} are pickle files, which can run code when loaded: convert them to safetensors."
        )
    raise InputError(f"{folder} holds no weights (*.safetensors): the download may be incomplete.")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
