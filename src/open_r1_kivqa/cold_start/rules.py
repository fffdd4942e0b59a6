"""What makes a response fit to learn from, rule by rule, and what is done where it isn't. All rules of the pipeline are here.

The functions that give a `Drop` are asked one after the other, and the first one counts. docs/bridging.md lists them; each has a test.
"""

import re
from dataclasses import dataclass

from ..data.samples import RESERVED
from ..endpoint import Reply
from ..rewards.answer import normalise
from ..rewards.extraction import FORM_TAG, answer_blocks, strict_answer, think_text
from ..rewards.format import has_format

# ------------------------------------------------------------------------------------------------------------ questions

# What asks for the form of the response spells a tag, or speaks of tags by name. It begins with one of OPENERS, or with its sentence.
INSTRUCTION = re.compile(r"</?(?:think|answer)>|\b(?:think|thinking|answer)\s+tags?\b", re.IGNORECASE)
OPENERS = re.compile(
    r"(?:^|\s)(?:First|Output|Please|Think|Reason|Put|Write|Enclose|Answer|Give|Provide|Use|Your|You|The reasoning|The answer)\b"
)
SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[。！？]|\n|$)\s*", re.DOTALL)


def without_instructions(text: str) -> str:
    """A turn without what asks for tags, "" if it says nothing else: the response carries the tags, the question does not ask for them."""
    if not INSTRUCTION.search(text):
        return text
    kept = ""
    for sentence in SENTENCE.findall(text):
        asks = INSTRUCTION.search(sentence)
        if asks:
            starts = [opener.start() for opener in OPENERS.finditer(sentence[: asks.start()])]
            sentence = f"{sentence[: starts[-1]]} " if starts and starts[-1] else ""
        kept += sentence
    return kept.strip()


# ------------------------------------------------------------------------------------------------------------- refusals

REFUSAL = re.compile(
    r"\A\W*(?:i['’]?m|i am|we['’]?re|we are)?\s*(?:very |so |really )?(?:sorry|afraid)\b[^.\n]{0,60}\b(?:can(?:['’]?t|not)|unable|won['’]?t|not able)\b"
    r"|\A\W*(?:i|we)\s+(?:can(?:['’]?t|not)|am unable to|are unable to|won['’]?t|must decline to|(?:am|are) not able to)\s+(?:assist|help|comply|fulfil|provide|identify|discuss|answer|do that)"
    r"|\A\W*(?:as an ai\b|i must decline\b|i decline\b)",
    re.IGNORECASE,
)


def is_refusal(reply: Reply) -> bool:
    """Whether the model declines: the endpoint says so, or the text opens as refusals do."""
    return (
        bool(reply.refusal.strip()) or reply.end == "content_filter" or bool(REFUSAL.match(reply.text.lstrip()[:300]))
    )


# ----------------------------------------------------------------------------------------------------------- the answer


def assemble(reply: Reply) -> str | None:
    """The response `<think>…</think><answer>…</answer>` that a reply amounts to; None if it has no such form.

    Two kinds of reply are read. With the reasoning beside the text (`reasoning_content`, `reasoning`) that is the thinking; the text must end with one answer block, and what the model writes
    before that block, a summary mostly, ends the thinking. With the reasoning inside the text, the text must have the form itself, except that `<think>` may be missing at its
    start, where a chat template has put it into the prompt.
    """
    text = reply.text.strip()
    if reply.reasoning.strip():
        if len(answer_blocks(text)) != 1 or not text.endswith("</answer>"):
            return None
        before, _, rest = text.partition("<answer>")
        before = FORM_TAG.sub("\n", before)
        thinking = "\n\n".join(part for part in (FORM_TAG.sub(" ", reply.reasoning).strip(), before.strip()) if part)
        text = f"<think>{thinking}</think><answer>{rest}"
    elif not text.startswith("<think>") and "</think>" in text:
        text = f"<think>{text}"
    if not has_format(text):
        return None
    return f"<think>{think_text(text)}</think><answer>{strict_answer(text)}</answer>"


# -------------------------------------------------------------------------------------------------------- contradictions

# The reasoning says that there is nothing to look at. What is denied must be the picture: "I can't see any boat in the picture" is reasoning.
_PICTURE = r"(?:the|this|an?|any|that|your) (?:actual |original )?(?:image|picture|photo|photograph|figure|diagram)s?"
_UNSEEN = r"(?:can(?:['’]?t|not)|could(?:n['’]?t| not)|am unable to|(?:am )?not able to|do(?:n['’]?t| not)) (?:actually |really |directly |physically )?"
BLIND = re.compile(
    rf"\b(?:{_UNSEEN}(?:see|view|access|look at|open|display) {_PICTURE}(?! of| show| contain| depict)"
    rf"|without (?:actually |being able to )?(?:see|seeing|view|viewing) {_PICTURE}"
    rf"|(?:have|has)(?:n['’]?t| not) (?:been )?(?:given|provided|received|seen) {_PICTURE}"
    r"|(?:no|without an?|without the) (?:image|picture|photo) (?:is|was|has been|being)?\s*(?:provided|given|attached|included|available|visible)"
    rf"|{_PICTURE} (?:is|was)(?:n['’]?t| not) (?:provided|given|attached|included|visible to me|available|shown to me)"
    r"|as (?:an? )?(?:ai|text[- ](?:based|only)|language)[- ]+(?:language )?(?:model|ai|assistant))\b",
    re.IGNORECASE,
)
# What rewording should have taken away: the reasoning knows that it read the picture instead of seeing it. A passage's description is another matter.
SOURCE_TEXT = re.compile(
    r"\b(?:(?:the|this|your|given|provided|above|detailed) (?:(?:given|provided|detailed|above|image|picture|visual) )*description"
    r"|(?:image|picture) description|description (?:says|mentions|states))\b(?![^.\n]{0,40}(?:passage|article|section|\[\d))"
    r"|\bdescri(?:bed|ption) (?:to|for) me\b",
    re.IGNORECASE,
)
# Without passages no other text was provided; with them these words mean a passage.
PROVIDED_TEXT = re.compile(
    r"\b(?:the|this) (?:(?:given|provided|above) (?:text|information|context|details)|(?:text|information|context|details) (?:that (?:is|was) )?(?:given|provided|above))\b",
    re.IGNORECASE,
)
# Where the reasoning settles on an answer. What follows up to the end of the sentence is what it settles on.
SETTLES = re.compile(
    r"\b(?:(?:final|correct|right|best) )?(?:answer|choice|option)(?: here| then| to (?:the|this) question)?"
    r"(?:\s*(?::|=)|\s+(?:is|would be|should be|must be|has to be|will be))\s*:?(?! ?(?:not|based|found|given|clear|obvious|correct|right|consistent|supported|confirmed)\b)(?P<answer>[^\n]{1,300}?)(?=[.!?;](?:\s|$)|\n|$)"
    r"|\\boxed\{(?P<boxed>(?:[^{}\n]|\{[^{}\n]{0,100}\}){1,300})\}",
    re.IGNORECASE,
)


def settled_answer(thinking: str, answer: str) -> str | None:
    """What the reasoning settles on at last, if that does not name the answer given: for the scorer to say whether it is as good. None if there is no such contradiction.

    The last "the answer is …" (or `\boxed{…}`) counts. It names the answer if one's words stand in the other's, in a row, or the answer's anywhere after it, since then the reasoning went on.
    """
    found = list(SETTLES.finditer(thinking))
    if not found:
        return None
    last = found[-1]
    settled = (last["answer"] or last["boxed"]).strip(" \t*`\"'“”")
    given, said, rest = normalise(answer), normalise(settled), normalise(thinking[last.start() :])
    if not given or not said or f" {given} " in f" {rest} " or f" {said} " in f" {given} ":
        return None
    return settled


@dataclass(frozen=True)
class Drop:
    """Why a response is not kept: a kind that is counted (OUTCOMES), the rule, and the text that shows it."""

    kind: str
    rule: str
    text: str


def unfit_reply(reply: Reply, step: str) -> Drop | None:
    """Whether a step's reply is of no use whatever it says: a refusal, or cut off at its length."""
    if is_refusal(reply):
        return Drop("refused", step, (reply.refusal or reply.text).strip() or f"ended by {reply.end}")
    if reply.end == "length":
        return Drop("bad_format", f"{step}_cut_off", (reply.text or reply.reasoning)[-200:])
    return None


def malformed(response: str | None, reply: Reply) -> Drop | None:
    """Whether the reasoning's reply lacks the form, or spells a token of a model, which no row may."""
    if response is None:
        return Drop("bad_format", "form", reply.text.strip() or f"{reply.reasoning[-200:]} (and no text)")
    reserved = RESERVED.search(response)
    return Drop("bad_format", "model_token", response[max(0, reserved.start() - 100) :]) if reserved else None


def contradicts_the_picture(thinking: str, *, has_passages: bool) -> Drop | None:
    """Whether the reworded reasoning says that it did not see the picture."""
    rules = [("blind", BLIND), ("source_text", SOURCE_TEXT)]
    rules += [] if has_passages else [("provided_text", PROVIDED_TEXT)]
    for rule, pattern in rules:
        found = pattern.search(thinking)
        if found:
            return Drop("contradiction", rule, thinking[max(0, found.start() - 80) : found.end() + 80])
    return None
