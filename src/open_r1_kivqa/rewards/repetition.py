"""A penalty for repeating oneself, as a share of what was said before."""

import re
from collections import Counter
from typing import Any

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.boxes import read_json, unfenced
from open_r1_kivqa.rewards.detection import Detection, expected_detections, parse_detections
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


def repetition_reward(
    prompts: list, completions: list[Any], *, sample: list[Sample] | None = None, ngram: int = 6, **kwargs
) -> list[float]:
    """From 0.0 (nothing repeated) down to above -1.0 for each completion.

    Minus `repeated_share` of the whole completion, unless its answer (read leniently) is a JSON list of detections and nothing else, which repeats by nature: then minus
    `repeated_labels`, or minus `repeated_share` of all that stands outside the list if that is more.

    Source: VLM-R1's `repetition` reward. There, five cats listed where five cats are cost as much as one cat listed five times, words ended at spaces only, and the text around a list
    did not count.
    """
    rows = [None] * len(completions) if sample is None else sample
    return [
        0.0 - _repeated(completion_text(completion), row, ngram)
        for completion, row in zip(completions, rows, strict=True)
    ]


def repeated_labels(found: list[Detection], expected: list[Detection]) -> float:
    """Share of the detections found whose label came before, and as often as the row's own list has it; 0 to below 1."""
    wanted = Counter(detection.kind for detection in expected)
    counts = Counter(detection.kind for detection in found)
    return sum(max(0, number - max(1, wanted[kind])) for kind, number in counts.items()) / len(found)


def _repeated(text: str, row: Sample | None, ngram: int) -> float:
    answer = lenient_answer(text) or ""
    found = parse_detections(answer)
    if not found or read_json(unfenced(answer).strip(), alone=True) is None:
        return repeated_share(text, ngram)
    expected = expected_detections(row) if row is not None else None
    before, _, after = text.rpartition(answer)
    return max(repeated_labels(found, expected or []), repeated_share(f"{before} {after}", ngram))
