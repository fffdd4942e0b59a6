"""Texts from outside, such as an encyclopedia's, in which no tag and no special token begins."""

import re

# Where a tag or a special token could begin: "<" before a letter, a bar, a slash and the like, or at the very end, where
# the template's own text follows. "a < b" and "<5" stay. GLM has a token in brackets.
TAG_START = re.compile(r"<(?=[^\W\d]|[/|｜!?\[]|$)|\[(?=gMASK\])")
HARMLESS = "‹"


def neutralise(text: str) -> str:
    """Text in which no tag and no special token begins: "<image>", "</think>", "<|im_end|>" become "‹image>", ... Its length stays."""
    return TAG_START.sub(HARMLESS, text)
