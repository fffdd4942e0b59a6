"""A penalty for repeating oneself, as a share of what was said before."""

import re
from typing import Any

from open_r1_kivqa.rewards.boxes import read_json, unfenced
from open_r1_kivqa.rewards.detection import parse_detections
from open_r1_kivqa.rewards.extraction import completion_text, lenient_answer

# Scripts written without spaces between words: Thai, Lao, Tibetan, Myanmar, Khmer, kana, Han with its extensions.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# One such character is a word, and so are at most 32 others in a row: "!!!!!!…" without end is repetition too.
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]{{1,32}}")


def repeated_share(text: str, ngram: int = 6) -> float:
    """Share of the text's runs of `ngram` words that occurred before in it, 0 to below 1; 0 for a text of fewer words. Case does not matter. Linear in the text."""
    words = WORD.findall(text.lower())
    total = len(words) - ngram + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(words[i:] for i in range(ngram)), strict=False))) / total


def repetition_reward(prompts: list, completions: list[Any], *, ngram: int = 6, **kwargs) -> list[float]:
    """From 0.0 (nothing repeated) down to above -1.0 for each completion.

    Minus `repeated_share` of the whole completion, unless its answer (read leniently) is a JSON list of detections and nothing else, which repeats by nature: then minus the share of
    detections whose label an earlier one has, or minus `repeated_share` of all that stands outside the list if that is more. So several objects of one kind cost as much as one listed
    several times.

    Source: VLM-R1's `repetition` reward; words of scripts without spaces and words without an end are cut here, and the text around a list counts.
    """
    return [0.0 - _repeated(completion_text(completion), ngram) for completion in completions]


def _repeated(text: str, ngram: int) -> float:
    answer = lenient_answer(text) or ""
    detections = parse_detections(answer)
    if not detections or read_json(unfenced(answer).strip(), alone=True) is None:
        return repeated_share(text, ngram)
    labels = {detection.kind for detection in detections}
    before, _, after = text.rpartition(answer)
    return max(1 - len(labels) / len(detections), repeated_share(f"{before} {after}", ngram))
