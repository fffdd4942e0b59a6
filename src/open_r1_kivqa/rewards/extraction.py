"""What a completion says: its text, its reasoning and its answer.

The expected form is `<think>reasoning</think><answer>answer</answer>`. Two readings exist side by side, and reports always show both:

strict   exactly one `</think>`, then exactly one answer block, nothing after it but whitespace;
lenient  the last answer block wherever it stands, else the last line that is not empty.

Every function takes any string and never raises.
"""

import re
from typing import Any

ANSWER_TAG = re.compile(r"(</?answer>)")
BOX_TOKEN = re.compile(r"<\|(?:begin|end)_of_box\|>")  # GLM-4.1V writes them around its answer
FORM_TAG = re.compile(r"</?(?:think|answer)>")


def completion_text(completion: Any) -> str:
    """The text of a completion as TRL hands it to a reward: a string, or messages whose content is a string or a list of blocks.

    Blocks and messages are joined without a separator; what is not text (images, None) counts as empty.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, dict):  # a message, or a block of one
        return completion_text(completion.get("content", completion.get("text")))
    if isinstance(completion, (list, tuple)):
        return "".join(completion_text(part) for part in completion)
    return ""


def answer_blocks(text: str) -> list[str]:
    """Contents of all `<answer>…</answer>` blocks in order; of nested ones the innermost. Contents are stripped and may be empty."""
    parts = ANSWER_TAG.split(text)  # text, tag, text, tag, …, text
    return [
        _bare(parts[i + 1])
        for i in range(1, len(parts) - 2, 2)
        if parts[i] == "<answer>" and parts[i + 2] == "</answer>"
    ]


def strict_answer(text: str) -> str | None:
    """The answer if the completion has exactly one `</think>`, followed by one answer block and nothing else; otherwise None."""
    _, closed, rest = text.partition("</think>")
    rest = rest.strip()
    if not closed or not rest.startswith("<answer>") or not rest.endswith("</answer>"):
        return None
    answer = rest.removeprefix("<answer>").removesuffix("</answer>")
    if FORM_TAG.search(answer):  # a second block, a second </think>, or a tag inside the answer
        return None
    return _bare(answer)


def _bare(answer: str) -> str:
    return BOX_TOKEN.sub("", answer).strip()


def lenient_answer(text: str) -> str | None:
    """The last answer block, else the last fenced block if the text ends with one, else the last line that is not empty (after `</think>` if anything stands there, tags removed); None if nothing is left."""
    blocks = answer_blocks(text)
    if blocks:
        return blocks[-1]
    after_thinking = FORM_TAG.sub(" ", text.rpartition("</think>")[2])
    for part in (after_thinking, FORM_TAG.sub(" ", text)):
        part = _bare(part)
        if part.endswith("```") and (opened := part.rfind("```", 0, -3)) >= 0:
            return part[opened:]  # a fenced answer has its last line in front of the fence
        lines = part.splitlines()
        if lines:
            return lines[-1].strip()
    return None


def think_text(text: str) -> str | None:
    """The reasoning: what stands before the first `</think>`, without an opening tag (a chat template may have put that into the prompt); None without `</think>`."""
    before, closed, _ = text.partition("</think>")
    return before.rpartition("<think>")[2].strip() if closed else None


EXTRACTIONS = {"strict": strict_answer, "lenient": lenient_answer}
