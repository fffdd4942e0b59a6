"""The messages of each step: what the multimodal model and the reasoner are asked about a row."""

import re
from dataclasses import replace

from ..data.samples import IMAGE_MARKER, Sample
from ..knowledge.base import Passage
from ..prompts import Template, build_prompt, neutralise
from .pictures import Pictures
from .prompt_files import Prompts
from .rules import without_instructions

PASSAGES_PARAGRAPH = re.compile(r"\{passages\}\n*")


def plain_sample(sample: Sample) -> Sample:
    """The row with turns that ask for no tags. A system turn that asks for nothing else goes; a question that asks for nothing else stays as it is."""
    turns = []
    for role, text in sample.turns:
        asked = text if role == "assistant" else without_instructions(text)
        if role == "user" and not asked.replace(IMAGE_MARKER, "").strip():
            asked = text
        if asked:
            turns.append((role, asked))
    return replace(sample, turns=tuple(turns))


class Steps:
    """Builds messages as the prompts say: {"role", "content"} with texts, or blocks whose images are paths."""

    def __init__(self, prompts: Prompts):
        self._texts = prompts.texts

    def pseudo_cot(self, sample: Sample, passages: list[Passage]) -> list[dict]:
        return self._messages("pseudo_cot", sample, passages)

    def description(self, sample: Sample, passages: list[Passage], pseudo_cot: str) -> list[dict]:
        return self._messages("description", sample, passages, pseudo_cot=pseudo_cot)

    def reasoning(self, sample: Sample, passages: list[Passage], description: str) -> list[dict]:
        """Without any image."""
        passages = [replace(passage, image=None) for passage in passages]
        messages = self._messages("reasoning", sample, passages, with_images=False, description=description)
        return [{**message, "content": _joined(message["content"])} for message in messages]

    def _messages(
        self, step: str, sample: Sample, passages: list[Passage], *, with_images: bool = True, **written: str
    ) -> list[dict]:
        text = self._texts[step]
        forms = [text.replace("{passages}", self._texts["passages"]), PASSAGES_PARAGRAPH.sub("", text)]
        for name, value in written.items():
            # Braces doubled, since the text goes through the template; tags and special tokens made harmless, as in passages.
            value = neutralise(value.strip()).replace("{", "{{").replace("}", "}}")
            forms = [form.replace(f"{{{name}}}", value) for form in forms]
        template = Template(system="", passage=self._texts["passage"], user=forms[0], no_passages=forms[1])
        return build_prompt(sample, passages, template, with_images=with_images)


def _joined(blocks: list[dict]) -> str:
    return "".join(block["text"] for block in blocks)


def named(messages: list[dict], pictures: Pictures) -> list[dict]:
    """Messages with each image's name in place of its path, for the key of an answer."""
    return _with_images(messages, lambda path: {"type": "image", "image": pictures.name(path)})


def sent(messages: list[dict], pictures: Pictures) -> list[dict]:
    """Messages as OpenAI's chat completions take them: images as data URLs, and a text alone where there is no image.

    Raises:
        InputError: an image cannot be read (any more).
    """
    return _with_images(messages, lambda path: {"type": "image_url", "image_url": {"url": pictures.url(path)}})


def _with_images(messages: list[dict], put) -> list[dict]:
    out = []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            if all(block["type"] == "text" for block in content):
                content = _joined(content)
            else:
                content = [put(block["image"]) if block["type"] == "image" else block for block in content]
        out.append({"role": message["role"], "content": content})
    return out
