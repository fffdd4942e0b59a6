"""Several sampled answers to each row: how often the model is right on average, whether it is right at all, and rows whose own references may be wrong.

A row whose references lack the right answer scores 0 for ever. To a curriculum it looks like a very hard one, and by its graph it makes its neighbours look hard as well. Such a row
shows when a model, sampled often, keeps giving one same answer that is never counted.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from ..data.samples import Sample
from ..prompting import Prompting
from ..rewards.answer import normalise
from ..rewards.judge import Judge
from ..rewards.methods import JUDGED, Scale, references, scale_of
from .predict import score_texts
from .shown import prompt_hash, show
from .summary import macro_average

SETTING = "normal"  # what is sampled under
LEAST_ROLLOUTS = 16  # of a row, to suspect its references
LEAST_SHARE = 0.75  # of its rollouts that give one same answer


def roll_out(
    samples: Sequence[Sample],
    number: int,
    prompting: Prompting,
    *,
    sample_texts: Callable[[list[list[dict]], list[int]], list[str | None]],
    box_scale: Callable[[Sample], Scale] | None = None,
    judge: Judge | None = None,
) -> list[dict]:
    """Has each row answered `number` times, in one call of `sample_texts`.

    Args:
        sample_texts: prompts and a seed for each to texts, in order; None where there is no answer now: such a row gets no record.
            A completion's seed is made of that of `prompting`, the row's id and the completion's number.
        box_scale, judge: as for `predict`.

    Returns:
        A record for each row, in order: "id", "setting", "split", "question_type", "entity", "prompt_hash", "texts" and "answers" (lenient, None if there is none), and "scores" (as
        `correct_lenient`, None where there is no verdict), each a list of `number`.
    """
    prompts = [one.prompt for one in show(samples, SETTING, prompting)]
    seeds = [row_seed(prompting.seed, sample.id, j) for sample in samples for j in range(number)]
    texts = sample_texts([prompt for prompt in prompts for _ in range(number)], seeds)
    of_row = [texts[i * number : (i + 1) * number] for i in range(len(samples))]
    answered = [i for i, its_texts in enumerate(of_row) if None not in its_texts]
    records = [
        {
            "id": samples[i].id,
            "setting": SETTING,
            "split": samples[i].split,
            "question_type": samples[i].question_type,
            "entity": samples[i].entity,
            "prompt_hash": prompt_hash(prompts[i]),
            "texts": of_row[i],
        }
        for i in answered
    ]
    score_records(records, [samples[i] for i in answered], box_scale=box_scale, judge=judge)
    return records


def row_seed(seed: int, id: str, number: int) -> int:
    """Of completion `number` of a row; below 2**31, which every server takes."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{id}/{number}".encode()).digest()[:4], "big") >> 1


def score_records(
    records: Sequence[dict],
    samples: Sequence[Sample],
    *,
    box_scale: Callable[[Sample], Scale] | None = None,
    judge: Judge | None = None,
) -> None:
    """Puts "answers" and "scores" of its texts into each record, all in one call of the scorer."""
    texts = [text for record in records for text in record["texts"]]
    rows = [sample for sample, record in zip(samples, records, strict=True) for _ in record["texts"]]
    scales = [
        scale
        for sample, record in zip(samples, records, strict=True)
        for scale in [scale_of(sample, box_scale)] * len(record["texts"])
    ]
    verdicts = iter(score_texts(texts, rows, scales, judge))
    for record in records:
        its = [next(verdicts) for _ in record["texts"]]
        record["answers"] = [one["answer_lenient"] for one in its]
        record["scores"] = [one["correct_lenient"] for one in its]


def judge_again(records: Sequence[dict], samples: Sequence[Sample], judge: Judge) -> int:
    """Asks the judge about the completions that it gave no verdict on. Returns how many still have none."""
    open_ = [
        (record, sample)
        for record, sample in zip(records, samples, strict=True)
        if sample.reward_method == JUDGED and sample.answers and None in record["scores"]
    ]
    score_records([record for record, _ in open_], [sample for _, sample in open_], judge=judge)
    return sum(record["scores"].count(None) for record, _ in open_)


def summarise_rollouts(records: Sequence[dict]) -> dict[str, dict]:
    """{split: {"rows", "rollouts", "avg", "pass"}}: `avg` is the mean score of a row's completions, `pass` the share of rows of which one is wholly right (score 1), both in [0, 1],
    averaged over question types as all scores are; None where nothing is scored. Rows without a split are in "all"."""
    splits: dict[str, list[dict]] = {}
    for record in records:
        scores = [score for score in record["scores"] if score is not None]
        row = {name: record[name] for name in ("id", "entity", "question_type")}
        row["avg"] = sum(scores) / len(scores) if scores else None
        row["pass"] = float(max(scores) == 1.0) if scores else None
        splits.setdefault(record["split"] or "all", []).append(row | {"rollouts": len(record["texts"])})
    return {
        split: {
            "rows": len(rows),
            "rollouts": rows[0]["rollouts"],
            "avg": macro_average(rows, "avg"),
            "pass": macro_average(rows, "pass"),
        }
        for split, rows in sorted(splits.items())
    }


def suspect_labels(records: Sequence[dict], samples: Sequence[Sample]) -> list[dict]:
    """Rows whose references may be wrong, in order: of at least LEAST_ROLLOUTS completions, LEAST_SHARE or more give one same answer (as `rewards.answer.normalise` writes it), and every
    completion scores 0.

    Args:
        samples: the records' rows, in their order.

    Returns:
        {"id", "source" (file and line), "question", "references", "answer" (in its most frequent spelling), "share"} of each.
    """
    suspects = []
    for record, sample in zip(records, samples, strict=True):
        answers = [answer for answer in record["answers"] if answer and normalise(answer)]
        if len(record["texts"]) < LEAST_ROLLOUTS or not answers or any(score != 0 for score in record["scores"]):
            continue
        form, count = Counter(map(normalise, answers)).most_common(1)[0]
        if count < LEAST_SHARE * len(record["texts"]):
            continue
        spelling = Counter(answer for answer in answers if normalise(answer) == form).most_common(1)[0][0]
        suspects.append(
            {
                "id": record["id"],
                "source": sample.source,
                "question": sample.question,
                "references": list(references(sample)),
                "answer": spelling,
                "share": count / len(record["texts"]),
            }
        )
    return suspects
