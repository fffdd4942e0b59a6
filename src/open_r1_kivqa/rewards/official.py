"""The official rules of InfoSeek, Encyclopedic-VQA and ViQuAE, on any row.

`OFFICIAL` gives the verdict that the published scores count, for evaluation. It can be fooled: InfoSeek reads no number at all as the range 0 to 0, and takes a range twice as wide as
the reference. So the methods `infoseek`, `evqa` and `viquae`, which training pays for, put guards before it; they are never above it. docs/rewards.md lists them.

A verdict is 1.0 or 0.0, or None where the rule does not apply: to a row without references, for `evqa` and `viquae` to one whose references are a range. Nothing raises, whatever the
answer's text. No judge is asked: `evqa` is exact match.
"""

from collections.abc import Callable

from ..benchmarks import evqa as evqa_rules
from ..benchmarks import infoseek as infoseek_rules
from ..benchmarks import viquae as viquae_rules
from ..data.samples import ANSWER_BLOCK, Sample
from .answer import MAX_NUMERIC_WORDS, hedges, numbers, too_long

MAX_WORDS = MAX_NUMERIC_WORDS  # or those of the longest reference
SPARE_ITEMS = 1  # that a list may hold beyond the reference's


def infoseek(answer: str, sample: Sample) -> float | None:
    """InfoSeek's verdict behind the guards; a range among the row's references takes its rule for numbers, a list that for strings."""
    if not sample.answers:
        return None
    if _is_suspect(answer, sample):
        return 0.0
    if isinstance(sample.answers, dict):
        given = infoseek_rules.numbers(answer)[:2]
        is_range = len(given) == 2 and given[0] < given[1]
        if not given or is_range and not _is_written_as_range(sample):
            return 0.0
    elif not infoseek_rules.normalise(answer):
        return 0.0
    return _official_infoseek(answer, sample)


def evqa(answer: str, sample: Sample) -> float | None:
    """Encyclopedic-VQA's exact match behind the guards; rows of the question type multi_answer take its rule for lists."""
    accepted = _evqa_answers(sample)
    if not accepted:
        return None
    if _is_suspect(answer, sample):
        return 0.0
    if sample.question_type == evqa_rules.LIST_TYPE:
        given = len(evqa_rules.given_items(answer))  # those that come again too
        accepted = [text for text in accepted if given <= len(evqa_rules.items(text)) + SPARE_ITEMS]
    elif not evqa_rules.normalise(answer):
        return 0.0
    return float(evqa_rules.exact_any(answer, accepted, _evqa_type(sample)))


def viquae(answer: str, sample: Sample) -> float | None:
    """ViQuAE's exact match behind the guards."""
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    if not viquae_rules.normalise(answer) or _is_suspect(answer, sample):
        return 0.0
    return _official_viquae(answer, sample)


def as_answer(reference: str, sample: Sample) -> str:
    """A reference as an answer to its row would write it: the items of a list that `evqa` scores stand with commas."""
    is_list = sample.reward_method == "evqa" and sample.question_type == evqa_rules.LIST_TYPE
    return reference.replace("&&", ", ") if is_list else reference


def _official_infoseek(answer: str, sample: Sample) -> float | None:
    if not sample.answers:
        return None
    kind = "Numerical" if isinstance(sample.answers, dict) else "String"  # Time has the rule of String
    return float(infoseek_rules.score(answer, sample.answers, kind))


def _official_evqa(answer: str, sample: Sample) -> float | None:
    accepted = _evqa_answers(sample)
    return float(evqa_rules.exact_any(answer, accepted, _evqa_type(sample))) if accepted else None


def _official_viquae(answer: str, sample: Sample) -> float | None:
    if isinstance(sample.answers, dict) or not sample.answers:
        return None
    return viquae_rules.exact_match(answer, sample.answers)


OFFICIAL: dict[str, Callable[[str, Sample], float | None]] = {
    "infoseek": _official_infoseek,
    "evqa": _official_evqa,
    "viquae": _official_viquae,
}


def _evqa_answers(sample: Sample) -> list[str]:
    """The row's accepted answers, without those that the official code refuses: nothing is left of them after `normalise`."""
    return [] if isinstance(sample.answers, dict) else evqa_rules.usable(sample.answers, sample.question_type)


def _evqa_type(sample: Sample) -> str:
    """Every type but that of lists has the same rule, so any other stands for them; rows of ours have types of their own."""
    return evqa_rules.LIST_TYPE if sample.question_type == evqa_rules.LIST_TYPE else evqa_rules.QUESTION_TYPES[0]


def _is_suspect(answer: str, sample: Sample) -> bool:
    """Whether the answer is longer than answers are, or gives alternatives ("A or B") that no reference does; of a range the row's own answer tells."""
    references = () if isinstance(sample.answers, dict) else sample.answers
    most = max([MAX_WORDS, *(len(text.replace("&&", " and ").split()) for text in references)])
    written = references or (_own(sample),)
    return too_long(answer, written) or len(answer.split()) > most or hedges(answer, written)


def _is_written_as_range(sample: Sample) -> bool:
    """Whether the row's own answer gives a range: two ascending numbers, both inside the reference. The reference itself may be no more than a tolerance around one number."""
    low, high = sample.answers["range"]
    given = numbers(_own(sample))
    return len(given) == 2 and low <= given[0] < given[1] <= high


def _own(sample: Sample) -> str:
    """What the row's gpt turn gives as the answer."""
    blocks = ANSWER_BLOCK.findall(sample.answer)
    return blocks[-1] if blocks else sample.answer
