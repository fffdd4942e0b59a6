"""A model in this process, prompted and decoded as evaluation does it, one token after the other."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from ..data.images import image_size
from ..errors import InputError
from ..evaluation.generate import generation_config, tokenize_prompts
from ..vlm_modules import module_for
from ..vlm_modules.loading import load_config, load_model, load_processor
from .reply import CUT, DONE, STOPPED, Completion, Sampling


class LocalModel:
    """A checkpoint on the GPU, or without one on the CPU. Its weights are loaded by `load`, or by the first prompt once that has been found answerable.

    Args:
        path: folder or hub name. adapter: folder of a LoRA adapter on top of it, or None.
        dtype: "auto" (as saved), "float32", "bfloat16" or "float16".
        limits: min_pixels, max_pixels and max_anyres_num, see `load_processor`.

    Raises:
        InputError: the checkpoint or the adapter cannot be used.
    """

    def __init__(
        self,
        path: str,
        sampling: Sampling,
        *,
        adapter: str | None = None,
        dtype: str = "auto",
        attn_implementation: str | None = None,
        revision: str = "main",
        **limits,
    ):
        if adapter is not None and not (Path(adapter) / "adapter_config.json").is_file():
            raise InputError(f"--adapter {adapter} has no adapter_config.json: give the folder of a LoRA adapter.")
        config = load_config(path, revision=revision)
        self.processor = load_processor(path, revision=revision, **limits)
        self.model = None
        self._module = module_for(config)
        self._context = config.get_text_config().max_position_embeddings
        self._path, self._adapter, self._sampling = path, adapter, sampling
        self._loading = {
            "dtype": dtype if dtype == "auto" else getattr(torch, dtype),
            "attn_implementation": attn_implementation,
            "revision": revision,
        }

    def load(self) -> None:
        """Loads the weights if that has not been done, and seeds what is drawn from then on."""
        if self.model is not None:
            return
        model = load_model(self._path, **self._loading)
        if self._adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, self._adapter).merge_and_unload()
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        if self._sampling.seed is not None:
            torch.manual_seed(self._sampling.seed)

    def opens_thinking(self, prompt: list[dict]) -> bool:
        """Whether the chat template ends this prompt with `<think>`."""
        text = self.processor.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        return text.rstrip().endswith("<think>")

    def complete(self, prompt: list[dict], on_text: Callable[[str], None]) -> Completion:
        """See `reply.Backend`. At temperature 0 the text is that of `evaluation.generate.greedy` for this prompt alone."""
        inputs = self._inputs(prompt)
        self.load()
        room = self._context - inputs["input_ids"].shape[1]
        config = self._config(min(self._sampling.max_new_tokens, room))
        stream = TextStream(self.processor.tokenizer, on_text)
        started = time.monotonic()
        try:
            with torch.no_grad():
                self.model.generate(**inputs.to(self.model.device), generation_config=config, streamer=stream)
            end = DONE if stream.ids[-1:] and stream.ids[-1] in config.eos_token_id else CUT
        except KeyboardInterrupt:
            end = STOPPED
        return Completion(stream.finish(), len(stream.ids), end, time.monotonic() - started)

    def _inputs(self, prompt: list[dict]):
        """The prompt's tokens and pixels; InputError if a picture's shape is refused or no token is left for the reply."""
        for message in prompt:
            for block in message["content"]:
                if block["type"] == "image":
                    self._module.num_image_tokens(self.processor, *image_size(block["image"]))
        inputs = tokenize_prompts(self.processor, [prompt])
        length = inputs["input_ids"].shape[1]
        if length >= self._context:
            raise InputError(
                f"The prompt has {length:,} tokens, and the model takes {self._context:,} with the reply: show fewer passages or smaller pictures (--max_pixels), or begin anew."
            )
        return inputs

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        config = generation_config(self.model, self.processor, max_new_tokens)
        if self._sampling.temperature > 0:
            config.do_sample, config.top_k = True, 0  # of all tokens, as in training
            config.temperature, config.top_p = self._sampling.temperature, self._sampling.top_p
        return config


class TextStream(BaseStreamer):
    """Turns the tokens that `generate` hands over into text, as soon as they make whole characters.

    Attributes:
        ids: the tokens so far, without the prompt's.
    """

    def __init__(self, tokenizer, on_text: Callable[[str], None]):
        self.ids: list[int] = []
        self._tokenizer, self._on_text = tokenizer, on_text
        self._prompt_came = False
        self._given = ""
        self._start = self._end = (
            0  # ids whose text is decoded again beside new ones, since it may depend on its neighbours
        )

    def put(self, value: torch.Tensor) -> None:
        """The prompt's tokens [1, length] the first time, then a new token [1] each time."""
        if not self._prompt_came:
            self._prompt_came = True
            return
        self.ids += value.flatten().tolist()
        before = self._decode(self.ids[self._start : self._end])
        now = self._decode(self.ids[self._start :])
        if len(now) > len(before) and not now.endswith("�"):  # a character's first bytes
            self._start, self._end = self._end, len(self.ids)
            self._give(now[len(before) :])

    def end(self) -> None:
        """`finish` does it, also for a reply that was stopped."""

    def finish(self) -> str:
        """Hands over the rest, and gives the whole text as evaluation decodes it."""
        text = self._decode(self.ids)
        if text.startswith(self._given):
            self._give(text[len(self._given) :])
        return text

    def _give(self, text: str) -> None:
        self._given += text
        self._on_text(text)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
