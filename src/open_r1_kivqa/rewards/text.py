"""Answers compared as texts: equal after VLM-R1's cleaning (`all_match`), or by how many characters they share (`similarity`).

Both return None for rows whose references are a range, or that have none.
"""

import re
import unicodedata

from rapidfuzz.distance import Indel

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.answer import normalise

MAX_SIMILAR = 5_000  # characters of an answer that `similarity` still looks at: some 30 ms

BRACES = re.compile(r"\\(?:boxed|fbox)\s*+\{|\\.|[{}]", re.DOTALL)


def similarity(answer: str, sample: Sample) -> float | None:
    """The largest share of characters, in order, that the answer has in common with a reference, in [0, 1]: 2 · common / (both lengths), of the texts after `normalise`.

    This is VLM-R1's Levenshtein ratio (insertions and deletions only). It pays near misses: "1997" for "1998" gets 0.75, any wrong name about 0.3. So it is never a default, and a
    model trained on it learns to sound alike; name it for rows whose answers are whole sentences or transcribed text. An answer of more than 5,000 characters gets 0.
    """
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    if len(answer) > MAX_SIMILAR:
        return 0.0
    answer = normalise(answer)
    if not answer:
        return 0.0
    return max(Indel.normalized_similarity(answer, normalise(reference)) for reference in sample.answers)


def all_match(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer equals a reference after `cleaned`, else 0.0, also for an answer of which nothing is left. VLM-R1's rule for its defects between two screenshots."""
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    answer = cleaned(answer)
    return float(answer != "" and any(answer == cleaned(reference) for reference in sample.answers))


def cleaned(text: str) -> str:
    """VLM-R1's cleaning: line breaks are spaces, one full stop at the end goes, lower case. Runs of spaces count as one, and so do the two spellings of an accented letter."""
    text = " ".join(text.split()).removesuffix(".")
    return unicodedata.normalize("NFC", text.rstrip().lower())


def boxed(text: str) -> list[str]:
    r"""Contents of every `\boxed{…}` (or `\fbox{…}`) that is closed, in order and stripped; of nested ones the innermost. Linear in the text's length."""
    if "box" not in text:
        return []
    contents, open_braces = [], []  # of each open brace: (is it a box, where its content starts)
    last_box_start = -1
    for match in BRACES.finditer(text):
        if match.group() == "}":
            if open_braces:
                is_box, start = open_braces.pop()
                if is_box and start > last_box_start:
                    contents.append(text[start : match.start()].strip())
                    last_box_start = start
        elif match.group().endswith("{") and match.group() != r"\{":
            open_braces.append((match.group() != "{", match.end()))
    return contents
