"""From a sample and its passages to the messages of a prompt, by a template of a few lines of yaml."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from string import Formatter

import yaml

from .data.harmless import neutralise
from .data.images import load_image
from .data.samples import IMAGE_MARKER, Sample, refuse_reserved
from .errors import InputError
from .knowledge.base import Passage

__all__ = ["Template", "as_text", "build_completion", "build_prompt", "decode_images", "load_template", "neutralise"]

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Template:
    """How a prompt is written.

    Attributes:
        system: the system message; "" for none. Has no placeholders.
        passage: one passage: {text}, and if wanted {number} (from 1), {title}, {section}.
        user: the last user turn when there are passages: {passages} and {question}.
        no_passages: the last user turn when there are none: {question}.
        separator: stands between two passages.
    """

    system: str
    passage: str
    user: str
    no_passages: str = "{question}"
    separator: str = "\n\n"


REQUIRED = {"passage": {"text"}, "user": {"passages", "question"}, "no_passages": {"question"}}
OPTIONAL = {"passage": {"number", "title", "section"}, "user": set(), "no_passages": set()}


def load_template(name_or_path: str) -> Template:
    """Read a template: a name of this package (`kivqa`, `default`, ...) or the path of a yaml file.

    Raises:
        InputError: no such template, or a field or placeholder is missing, unknown or doubled.
    """
    path = TEMPLATES / f"{name_or_path}.yaml"
    if not re.fullmatch(r"\w+", name_or_path) or not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.yaml")))
        raise InputError(
            f"Prompt template {name_or_path} does not exist; give one of {names} or the path of a yaml file."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"Prompt template {path} is not yaml: {error}") from None
    known = [field.name for field in fields(Template)]
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise InputError(f"Prompt template {path} must map {', '.join(known)} to texts.")
    unknown = sorted(set(values) - set(known))
    missing = sorted({"system", "passage", "user"} - set(values))
    if unknown or missing:
        problem = f"has the unknown field {unknown[0]}" if unknown else f"lacks the field {missing[0]}"
        raise InputError(f"Prompt template {path} {problem}; its fields are {', '.join(known)}.")
    # A yaml block ends with a line break that nobody means.
    values = {name: value if name == "separator" else value.removesuffix("\n") for name, value in values.items()}
    template = Template(**values)
    for name, text in values.items():
        refuse_reserved(text, f"Prompt template {path}: `{name}`")
    for name in REQUIRED:
        _check_placeholders(getattr(template, name), name, path)
    return template


def build_prompt(
    sample: Sample,
    passages: list[Passage],
    template: Template,
    *,
    system_prompt: str | None = None,
    with_images: bool = True,
) -> list[dict]:
    """The messages of a prompt; each content is a list of text and image blocks.

    Images keep the places of their markers; those that open the last user turn stay before the template's text, and a passage's own image (`Passage.image`) stands right before that
    passage. Markers are found before passages are inserted, and passages pass through `neutralise`, so no text of theirs can add an image or a tag.

    Args:
        passages: in the order shown; [] takes the template's `no_passages`.
        system_prompt: replaces the row's and the template's system message; "" removes it.
        with_images: False leaves the row's images out, markers included. The images of passages stay: they are part of what the knowledge base tells.

    Returns:
        [{"role", "content": [{"type": "text", "text"} | {"type": "image", "image": absolute path}]}]
    """
    images = iter(sample.images)
    messages = []
    if sample.turns[0][0] != "system" or system_prompt is not None:
        system = template.system if system_prompt is None else system_prompt
        messages += [_message("system", [_text(system)])] if system else []
    last = len(sample.turns) - 1
    for number, (role, text) in enumerate(sample.turns):
        if role == "system" and system_prompt is not None:
            continue
        if role != "user":
            messages.append(_message(role, [_text(text)]))
            continue
        blocks = _split_markers(text, images)
        if not with_images:
            blocks = _join([block for block in blocks if block["type"] == "text"])
        if number == last:
            blocks = _fill_user(template, passages, blocks)
        messages.append(_message(role, blocks))
    return messages


def image_paths(prompt: list[dict]) -> list[str]:
    """The pictures that a prompt shows, in order: the row's own and the passages'."""
    return [block["image"] for message in prompt for block in message["content"] if block["type"] == "image"]


def as_text(messages: list[dict] | str) -> str:
    """Messages as people read them: the role and text of each on lines of their own, pictures as `<image>`; of a single assistant turn the text alone. A text stays as it is."""
    if isinstance(messages, str):
        return messages
    turns = []
    for message in messages:
        blocks = message["content"]
        if not isinstance(blocks, str):
            blocks = "".join(block["text"] if block["type"] == "text" else IMAGE_MARKER for block in blocks)
        turns.append((message["role"], blocks))
    if [role for role, _ in turns] == ["assistant"]:
        return turns[0][1]
    return "\n".join(f"{role}: {text}" for role, text in turns)


def build_completion(sample: Sample, rewrite: Callable[[str], str] = str) -> list[dict]:
    """The closing assistant turn as a message, for supervised training; `InputError` if the row has none.

    Args:
        rewrite: what the model is to write for the row's text, say with boxes in its own coordinates.
    """
    if not sample.answer:
        raise InputError(f"{sample.source}: the row has no gpt turn to learn from; add one as the last turn.")
    return [_message("assistant", [_text(rewrite(sample.answer))])]


def decode_images(prompts: list[list[dict]]) -> list[list[dict]]:
    """Prompts as a processor gets them: with decoded pictures (`load_image`) in place of paths. A picture that several prompts show is decoded once."""
    pictures = {}

    def decoded(block: dict) -> dict:
        path = block.get("image")
        if not isinstance(path, str):
            return block
        if path not in pictures:
            pictures[path] = load_image(path)
        return {**block, "image": pictures[path]}

    return [
        [{**message, "content": [decoded(block) for block in message["content"]]} for message in prompt]
        for prompt in prompts
    ]


def _check_placeholders(form: str, name: str, path: Path) -> None:
    try:
        parts = [part for part in Formatter().parse(form) if part[1] is not None]
    except ValueError as error:
        raise InputError(
            f"Prompt template {path}: `{name}` has a stray brace ({error}); write {{{{ and }}}}."
        ) from None
    found = [
        f"{field}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
        for _, field, spec, conversion in parts
    ]
    allowed = REQUIRED[name] | OPTIONAL[name]
    unknown = [placeholder for placeholder in found if placeholder not in allowed]
    missing = sorted(REQUIRED[name] - set(found))
    listed = ", ".join(f"{{{placeholder}}}" for placeholder in sorted(allowed))
    if unknown:
        raise InputError(
            f"Prompt template {path}: `{name}` has the unknown placeholder {{{unknown[0]}}}; it can use {listed}."
        )
    if missing:
        raise InputError(f"Prompt template {path}: `{name}` lacks {{{missing[0]}}}.")
    if found.count("question") > 1 or found.count("passages") > 1:
        raise InputError(f"Prompt template {path}: `{name}` has a placeholder twice; name each once.")


def _split_markers(text: str, images) -> list[dict]:
    """Blocks of a user turn; takes one path from `images` for each marker."""
    first, *rest = text.split(IMAGE_MARKER)
    blocks = [_text(first)]
    for piece in rest:
        blocks += [{"type": "image", "image": next(images)}, _text(piece)]
    return _join([block for block in blocks if block["type"] == "image" or block["text"].strip()])


def _fill_user(template: Template, passages: list[Passage], question: list[dict]) -> list[dict]:
    """The template's user turn around the blocks of the question."""
    opening = next((i for i, block in enumerate(question) if block["type"] == "text"), len(question))
    blocks, question = question[:opening], question[opening:]
    if question:
        question = [_text(question[0]["text"].lstrip()), *question[1:]]
    for literal, placeholder, _, _ in Formatter().parse(template.user if passages else template.no_passages):
        blocks = [*blocks, _text(literal)]
        if placeholder == "passages":
            for number, passage in enumerate(passages, 1):
                blocks.append(_text(template.separator if number > 1 else ""))
                blocks += [{"type": "image", "image": passage.image}] if passage.image else []
                blocks.append(_text(_show(template, number, passage)))
        elif placeholder == "question":
            blocks += question
    return _join(blocks)


def _show(template: Template, number: int, passage: Passage) -> str:
    return template.passage.format(
        number=number,
        title=neutralise(passage.title),
        section=neutralise(passage.section),
        text=neutralise(passage.text),
    )


def _join(blocks: list[dict]) -> list[dict]:
    """Neighbouring texts become one block, empty ones go."""
    joined: list[dict] = []
    for block in blocks:
        if block["type"] == "text" and joined and joined[-1]["type"] == "text":
            joined[-1] = _text(joined[-1]["text"] + block["text"])
        elif block["type"] == "image" or block["text"]:
            joined.append(block)
    return joined


def _text(text: str) -> dict:
    return {"type": "text", "text": text}


def _message(role: str, content: list[dict]) -> dict:
    return {"role": role, "content": content}
