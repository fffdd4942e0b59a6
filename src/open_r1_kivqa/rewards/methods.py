"""All methods that score an answer, by the names rows and `--reward_method` give them.

A row names its method in `accu_reward_method`; `--reward_method` names one for a whole file, and without both the task decides (`TASK_METHODS`). A method is `f(answer, sample) -> float | None`: a score in
[0, 1], or None where it does not apply to the row (no number in any reference, say); TRL then leaves that reward out for the row. None raises, whatever the answer's text.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..data.samples import Sample
from ..errors import InputError
from .answer import default, exact, numeric
from .boxes import iou_score, scale_boxes
from .choice import mcq, yes_no
from .detection import od_ap, od_ap50, od_length, weighted_sum
from .maths import math
from .official import evqa, infoseek, viquae
from .text import all_match, similarity

if TYPE_CHECKING:
    from .judge import Judge

Scale = tuple[float, float]
SAME: Scale = (1.0, 1.0)  # the answer's boxes are in original pixels already

METHODS: dict[str, Callable[[str, Sample], float | None]] = {
    "default": default,
    "exact": exact,
    "numeric": numeric,
    "similarity": similarity,
    "all_match": all_match,
    "infoseek": infoseek,
    "evqa": evqa,
    "viquae": viquae,
    "mcq": mcq,
    "yes_no": yes_no,
    "math": math,
    "iou": iou_score,
    "od_ap": od_ap,
    "od_ap50": od_ap50,
    "map": od_ap,  # VLM-R1's older name
    "odLength": od_length,
    "weighted_sum": weighted_sum,
}
JUDGED = "llm"  # scored by a language model, all answers of a batch at once
KNOWN = (*METHODS, JUDGED)
BOX_METHODS = frozenset({"iou", "od_ap", "od_ap50", "map", "odLength", "weighted_sum"})  # whose answers hold boxes
TASK_METHODS = {"rec": "iou", "ovd": "od_ap", "math": "math", "gui": "all_match"}  # --task_type to method


def check_methods(names: Iterable[str]) -> None:
    """Raises InputError for the first name that is no method."""
    for name in names:
        if name not in KNOWN:
            raise InputError(
                f"Unknown reward method {name!r}; known are {', '.join(KNOWN)}. Set --reward_method, or accu_reward_method in the row, to one of them."
            )


def scale_of(sample: Sample, box_scale: Callable[[Sample], Scale] | None) -> Scale:
    """What turns the boxes of an answer to this row into original pixels; SAME for a row whose answers hold none, so that its image isn't opened.

    Args:
        box_scale: the family's own (`vlm_modules.boxes.BoxScale`), or None where answers are in original pixels.
    """
    return box_scale(sample) if box_scale is not None and sample.reward_method in BOX_METHODS else SAME


def score(answer: str, sample: Sample, scale: Scale = SAME) -> float | None:
    """The answer's score under the row's own method; None where the method does not apply to the row, as to one without a reference, and for JUDGED, which `score_all` alone asks.

    Args:
        scale: what turns the coordinates of the answer's boxes into original pixels, (x, y); see `vlm_modules.boxes`.
    """
    method = sample.reward_method
    if method == JUDGED or not sample.answers:
        return None
    if method in BOX_METHODS:
        answer = scale_boxes(answer, scale)
    return METHODS[method](answer, sample)


def score_all(
    answers: Sequence[str],
    samples: Sequence[Sample],
    scales: Sequence[Scale] | None = None,
    judge: "Judge | None" = None,
) -> list[float | None]:
    """`score` of each answer, in order; the judge is asked once for all rows of the method JUDGED, which without a judge, and where it fails, are None."""
    scales = [SAME] * len(answers) if scales is None else scales
    scores = [score(*one) for one in zip(answers, samples, scales, strict=True)]
    judged = [i for i, sample in enumerate(samples) if sample.reward_method == JUDGED]
    if judged and judge is not None:
        grades = judge.grade(
            [samples[i].question for i in judged],
            [references(samples[i]) for i in judged],
            [answers[i] for i in judged],
        )
        for i, grade in zip(judged, grades, strict=True):
            scores[i] = grade
    return scores


def references(sample: Sample) -> tuple[str, ...]:
    """The row's accepted answers as texts; of a range "from low to high"."""
    if isinstance(sample.answers, dict):
        low, high = sample.answers["range"]
        return (f"from {low:g} to {high:g}",)
    return sample.answers
