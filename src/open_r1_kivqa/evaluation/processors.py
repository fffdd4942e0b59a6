"""What evaluation needs of a model's processor where the model isn't loaded."""

from ..arguments import VLMModelConfig
from ..vlm_modules import module_for
from ..vlm_modules.boxes import BoxScale
from ..vlm_modules.loading import has_processor, load_config, load_processor
from .arguments import IMAGE_LIMITS, EvaluationArguments


def tokenizer_of(model_args: VLMModelConfig, args: EvaluationArguments):
    """The tokenizer of the model that answers, without the model."""
    adapter, path = args.adapter_name_or_path, model_args.model_name_or_path
    own = adapter if adapter and has_processor(adapter) else path
    return load_processor(own, config_of=path, revision=model_args.model_revision).tokenizer


def processor_beside_server(model_args: VLMModelConfig):
    """What the boxes of a model behind a server mean, and its tokenizer, by the processor in --model_name_or_path; None and None without it."""
    if not model_args.model_name_or_path:
        return None, None
    path, revision = model_args.model_name_or_path, model_args.model_revision
    limits = {name: getattr(model_args, name) for name in IMAGE_LIMITS}
    processor = load_processor(path, revision=revision, **limits)
    return BoxScale(module_for(load_config(path, revision=revision)), processor), processor.tokenizer
