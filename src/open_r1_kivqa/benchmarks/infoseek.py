"""InfoSeek's official rules (Chen et al. 2023; edchengg/infoseek_eval, `infoseek_eval.py`): whether one prediction is right, and the scores of a split.

Results are those of the official code, oddities too; each is marked with a comment. `rewards.official` puts guards before these rules where a model is trained on them.
"""

import math
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InputError

QUESTION_TYPES = ("String", "Time", "Numerical")
SPLITS = ("unseen_question", "unseen_entity")
TOLERANCE = 0.1  # of a reference that is one number
LEAST_OVERLAP = 0.5  # intersection over union of two ranges
EPSILON = 1e-12  # the official code's: added to widths, taken from LEAST_OVERLAP

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NUMBER = re.compile(
    r"""
    [-+]? \.? \d+          # a sign, a point; digits of any script
    (?: , \d{3} )*         # thousands
    \.? \d*                # decimals, or the digits that are left: 1,2345 is 12345
    (?: [eE] [-+]? \d+ )?
    """,
    re.VERBOSE,
)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces: SQuAD's form. May be empty."""
    # Punctuation goes first, so "A.N." is an article; other scripts' punctuation and accents stay.
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def score(prediction: str, answer_eval: Any, question_type: str) -> bool:
    """The official verdict on one prediction; no prediction raises.

    String and Time: equal to an alias after `normalise`. Numerical: one number inside the reference's range, ends included; or a range, both of whose ends are inside, or whose
    intersection over union with the reference is 0.5 or more.

    Args:
        answer_eval: of String and Time the aliases; of Numerical what `bounds` takes.
        question_type: one of QUESTION_TYPES, in any case.

    Raises:
        InputError: the reference, or its type, is none.
    """
    if _type_of(question_type) == "Numerical":
        return _number_is_right(numbers(prediction), *bounds(answer_eval))
    # A prediction and an alias of which both nothing is left ("the", "A") are equal.
    return normalise(prediction) in {normalise(alias) for alias in _aliases(answer_eval)}


def bounds(answer_eval: Any) -> tuple[float, float]:
    """The ends of a numerical reference: of `{"wikidata": 1.0, "range": [0.9, 1.1]}` or a list of it, of two numbers, or of one number, 10 % around it.

    Raises:
        InputError: it is none of these.
    """
    is_list = isinstance(answer_eval, Sequence) and len(answer_eval) > 0
    # Of several ranges the official code takes the first.
    reference = (
        answer_eval[0] if is_list and (len(answer_eval) == 1 or isinstance(answer_eval[0], dict)) else answer_eval
    )
    try:
        ends = reference["range"][:2] if isinstance(reference, dict) else reference
        if isinstance(ends, list | tuple):
            low, high = map(float, ends)
        else:
            # The ends of a negative number are the wrong way round, so that no single number lies between them.
            low, high = float(ends) * (1 - TOLERANCE), float(ends) * (1 + TOLERANCE)
    except (KeyError, TypeError, ValueError, OverflowError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(
            f'The numerical reference {str(answer_eval)[:100]!r} is none; write {{"range": [low, high]}}, a list of it, or one number.'
        )
    return low, high


def numbers(text: str) -> list[float]:
    """All numbers that the official code reads in a prediction, in order; too large ones are inf. It looks at the first two alone."""
    if "-" in text:  # after a digit, also ², it parts two numbers
        text = "".join(" - " if char == "-" and i and text[i - 1].isdigit() else char for i, char in enumerate(text))
    found = []
    for match in NUMBER.findall(text):
        digits = match.replace(",", "").strip(".")  # so ".5" is 5, while "0.5" and "-.5" are what they say
        if digits.count(".") < 2:  # "-.5.3" alone has two: the official code stops there with an error
            found.append(float(digits))
    return found


def split_of(data_split: str) -> str:
    """The split that a question counts for: "unseen_question" if its `data_split` ends so, else "unseen_entity"."""
    return SPLITS[0] if data_split.endswith(SPLITS[0]) else SPLITS[1]


def summarise(rows: Iterable[tuple[str, str, bool]]) -> dict:
    """Scores in per cent with two decimals, as the official code rounds them.

    Args:
        rows: (data_split, question type, verdict) of each question.

    Returns:
        score: harmonic mean of the two splits' rounded scores: 0.0 if one of them is 0, None if one has no question. mean: over all questions. count: of questions.
        splits: of each split its score, count and types. types: of each type its score and count over both splits. The score of no question is None.

    Raises:
        InputError: a type is none of QUESTION_TYPES.
    """
    rows = [(split_of(split), _type_of(kind), float(correct)) for split, kind, correct in rows]
    splits = {name: _part([row for row in rows if row[0] == name], with_types=True) for name in SPLITS}
    whole = _part(rows, with_types=True)
    return {
        "score": harmonic_mean([split["score"] for split in splits.values()]),
        "mean": whole["score"],
        "count": whole["count"],
        "splits": splits,
        "types": whole["types"],
    }


def harmonic_mean(scores: Sequence[float | None]) -> float | None:
    """With two decimals. 0.0 if one score is 0; None if one is None, where the official code takes 0 for it and so has 0.0 in all."""
    if None in scores:
        return None
    if 0 in scores:
        return 0.0
    return round(len(scores) / sum(1 / score for score in scores), 2)


def _type_of(question_type: str) -> str:
    """The type as QUESTION_TYPES spells it."""
    name = question_type.capitalize()
    if name not in QUESTION_TYPES:  # the official code would take it for String
        raise InputError(f"Unknown InfoSeek question type {question_type!r}; known are {', '.join(QUESTION_TYPES)}.")
    return name


def _aliases(answer_eval: Any) -> list[str]:
    if isinstance(answer_eval, list | tuple) and answer_eval and all(isinstance(alias, str) for alias in answer_eval):
        return list(answer_eval)
    raise InputError(
        f"The reference {str(answer_eval)[:100]!r} is no list of texts; write all accepted answers in one."
    )


def _number_is_right(given: list[float], low: float, high: float) -> bool:
    if not given:
        given = [0.0, 0.0]  # so no number at all is right where the range contains 0
    first, second = given[0], given[-1] if len(given) < 2 else given[1]
    if len(given) == 1 or first > second:  # of two descending numbers the first counts
        return low <= first <= high
    if low <= first <= high and low <= second <= high:
        return True
    low, high = min(low, high), max(low, high)
    overlap = max(0.0, min(second, high) - max(first, low))
    union = (second - first + EPSILON) + (high - low + EPSILON) - overlap
    return overlap / union >= LEAST_OVERLAP - EPSILON


def _part(rows: list[tuple[str, str, float]], with_types: bool) -> dict:
    part: dict[str, Any] = {
        "score": round(100 * (sum(row[2] for row in rows) / len(rows)), 2) if rows else None,
        "count": len(rows),
    }
    if with_types:
        part["types"] = {
            name: _part([row for row in rows if row[1] == name], with_types=False) for name in QUESTION_TYPES
        }
    return part
