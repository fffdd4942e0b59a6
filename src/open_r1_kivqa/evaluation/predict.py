"""From rows to records: builds each row's prompt under a setting, has it answered, and scores the answer as training does."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from ..data.samples import Sample
from ..knowledge.base import KnowledgeBase, Passage
from ..prompting import Prompting
from ..prompts import Template, neutralise
from ..rewards import has_format, lenient_answer, strict_answer, think_text
from ..rewards.answer import normalise
from ..rewards.judge import Judge
from ..rewards.methods import BOX_METHODS, JUDGED, SAME, Scale, scale_of, score_all
from ..rewards.official import OFFICIAL
from .boxes import box_record, verdict
from .shown import show


def predict(
    samples: Sequence[Sample],
    setting: str,
    prompting: Prompting,
    *,
    generate: Callable[[list[list[dict]]], list[str | None]],
    pictures: dict[str, list[tuple[str, str]]] | None = None,
    box_scale: Callable[[Sample], Scale] | None = None,
    judge: Judge | None = None,
) -> list[dict]:
    """Answers the rows under one of SETTINGS, in one call of `generate`.

    Args:
        generate: prompts to the texts of their answers, in order; None where there is no answer now, as of a server that fails: such a row gets no record.
        pictures: as for `shown.show`.
        box_scale: from the model's coordinates to a row's original pixels; None if they are the same.
        judge: grades the rows of the method `llm`; without one, and where it fails, they count as not scored.

    Returns:
        A record for each row, in order: "id", "split", "setting", "question_type", "entity", "prediction" (the whole text), what `score_texts` says of it, "pick" and "copy" (see
        `quoted`; None without knowledge base), and what `Shown.record` says of the prompt.
    """
    shown = show(samples, setting, prompting, pictures)
    texts = generate([one.prompt for one in shown])
    answered = [i for i, text in enumerate(texts) if text is not None]
    # The row's own picture decides what its boxes mean, whatever the prompt shows.
    scales = [scale_of(samples[i], box_scale) for i in answered]
    verdicts = score_texts([texts[i] for i in answered], [samples[i] for i in answered], scales, judge)
    return [
        {
            "id": samples[i].id,
            "split": samples[i].split,
            "setting": setting,
            "question_type": samples[i].question_type,
            "entity": samples[i].entity,
            "prediction": texts[i],
            **verdict_of_text,
            **quoted(texts[i], samples[i], shown[i].passages, prompting.kb, prompting.template),
            **shown[i].record(),
        }
        for i, verdict_of_text in zip(answered, verdicts, strict=True)
    ]


def score_texts(
    texts: Sequence[str], samples: Sequence[Sample], scales: Sequence[Scale] | None = None, judge: Judge | None = None
) -> list[dict]:
    """The parts of the records that tell what was answered and whether it is right, for each text.

    "answer_strict" and "answer_lenient" (None if there is none), "correct_strict" and "correct_lenient" (in [0, 1]; None where the method doesn't apply to the row): the official verdict
    where the row's method has one (`rewards.official`), else the score that training gives; "format" (bool). With an official verdict also "guarded_strict" and "guarded_lenient", what
    training gives. For rows of boxes also what `boxes.box_record` tells.
    """
    scales = [SAME] * len(texts) if scales is None else scales
    readings = {"strict": [strict_answer(text) for text in texts], "lenient": [lenient_answer(text) for text in texts]}
    rewards = {
        form: score_all([answer or "" for answer in found], samples, scales, judge) for form, found in readings.items()
    }
    verdicts = []
    for i, (text, sample) in enumerate(zip(texts, samples, strict=True)):
        answers = {form: found[i] for form, found in readings.items()}
        verdicts.append(
            {f"answer_{form}": answer for form, answer in answers.items()}
            | _correct(answers, {form: found[i] for form, found in rewards.items()}, sample)
            | {"format": has_format(text)}
            | (box_record(answers["lenient"], sample, scales[i]) if _has_boxes(sample) else {})
        )
    return verdicts


def _has_boxes(sample: Sample) -> bool:
    return bool(sample.answers) and sample.reward_method in BOX_METHODS


def _correct(answers: dict[str, str | None], rewards: dict[str, float | None], sample: Sample) -> dict:
    """The verdicts on the two readings of a text, "strict" and "lenient", and where these are official ones, the rewards whose place they take."""
    official = OFFICIAL.get(sample.reward_method)
    if official is None:
        return {f"correct_{form}": verdict(reward, sample) for form, reward in rewards.items()}
    verdicts = {f"correct_{form}": official(answer or "", sample) for form, answer in answers.items()}
    return verdicts | {f"guarded_{form}": reward for form, reward in rewards.items()}


def judge_again(records: list[dict], samples: Sequence[Sample], judge: Judge) -> int:
    """Asks the judge about the records that it gave no verdict on, whose texts are there already, and puts what it says into them. Returns how many still have none.

    Args:
        samples: the records' rows, in their order.
    """
    open_ = [i for i, sample in enumerate(samples) if sample.reward_method == JUDGED and sample.answers]
    open_ = [i for i in open_ if None in (records[i]["correct_strict"], records[i]["correct_lenient"])]
    verdicts = score_texts([records[i]["prediction"] for i in open_], [samples[i] for i in open_], judge=judge)
    for i, verdict_of_text in zip(open_, verdicts, strict=True):
        records[i] |= verdict_of_text
    return sum(None in (one["correct_strict"], one["correct_lenient"]) for one in verdicts)


def quoted(
    text: str, sample: Sample, passages: list[Passage], kb: KnowledgeBase | None, template: Template
) -> dict[str, bool | None]:
    """Whether the reasoning quotes the gold passage ("pick"), and whether the answer is the fact quoted ("copy").

    The quote is the last line of the reasoning that isn't empty. Quote and passages are compared word by word, as `rewards.answer.normalise` writes them.

    pick  the quote stands in a gold passage as the prompt shows it and in no other passage shown. Where no gold passage is shown, the row's evidence takes its place. None without
          knowledge base, or if the row names no evidence.
    copy  the answer (lenient) is the fact quoted: what follows the quote's last ": ", or in a quote without one, the words it ends with. None without knowledge base.

    Without reasoning both are False.
    """
    if kb is None:
        return {"pick": None, "copy": None}
    lines = (think_text(text) or "").strip().splitlines()
    quote = lines[-1].strip() if lines else ""
    _, colon, fact = quote.rpartition(": ")
    answer = normalise(lenient_answer(text) or "")
    copy = bool(answer) and (answer == normalise(fact) if colon else _has_end(normalise(quote), answer))
    if not sample.evidence:
        return {"pick": None, "copy": copy}
    gold = [passage for passage in passages if passage.key in sample.evidence]
    gold = gold or [kb.passage(key) for key in sample.evidence]
    others = [passage for passage in passages if passage.key not in sample.evidence]
    words = normalise(quote)
    pick = (
        bool(words)
        and any(_has_words(_shown(passage, template), words) for passage in gold)
        and not any(_has_words(_shown(passage, template), words) for passage in others)
    )
    return {"pick": pick, "copy": copy}


@lru_cache(maxsize=4096)  # each setting shows the same passages
def _shown(passage: Passage, template: Template) -> str:
    """A passage as the prompt shows it, but for its number."""
    return normalise(
        template.passage.format(
            number="",
            title=neutralise(passage.title),
            section=neutralise(passage.section),
            text=neutralise(passage.text),
        )
    )


def _has_words(text: str, words: str) -> bool:
    return f" {words} " in f" {text} "


def _has_end(text: str, words: str) -> bool:
    return f" {text}".endswith(f" {words}")
