"""Rows of this library as a target of `kivqa score` (see `score_targets`): each row by its own method, with the official verdict where the method is a benchmark's."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..data.jsonl import Rows, split_paths
from ..data.samples import Sample, row_id
from ..errors import InputError
from ..rewards.methods import JUDGED, check_methods, references, score
from ..rewards.official import OFFICIAL
from . import evqa
from .infoseek import SPLITS, harmonic_mean
from .judges import NO_JUDGE, Judge, Llm
from .score_files import digests, same
from .score_targets import Verdict, ask, judged

NO_SPLIT = "all"  # of rows that name none, as in evaluation
WHOLE = "all rows"  # over several splits
WITH_JUDGE = {"evqa", JUDGED}  # methods
ANYWHERE = "/"  # images aren't opened, so any path will do


class OwnRows:
    """The rows of one or several jsonl files. Predictions name a row's `data_id`, or its `id` if it has none; rows with the same `data_id` show several images of one question, and take one prediction for all of them or one each."""

    name = "rows"
    several = True
    canonical = staticmethod(same)

    def __init__(self, references: str, reward_method: str | None, judge: Judge | None):
        paths = split_paths(references)
        self._rows = Rows.open(paths, [ANYWHERE], split_paths(reward_method or "") or None)
        self._judge, self._pairs = judge, 0
        self._methods: Counter[str] = Counter()
        self.files = {"references": paths}

    @property
    def rule(self) -> str:
        told = (
            f"{name}{' (official verdict)' if name in OFFICIAL else ''}, {count:,}"
            for name, count in sorted(self._methods.items())
        )
        return f"each row by its own method: {'; '.join(told)}"

    @property
    def judge(self) -> str:
        if not WITH_JUDGE & self._methods.keys():
            return "none; no row's method has one"
        return NO_JUDGE if self._judge is None else self._judge.name

    def ids(self) -> Iterator[str]:
        """Refuses, before a judge is asked, methods that aren't there, and a judge without rows or rows without a judge."""
        methods = set()
        for sample in self._rows:
            methods.add(sample.reward_method)
            if sample.reward_method == JUDGED and not isinstance(self._judge, Llm):
                raise InputError(f"{sample.source}: a row of method {JUDGED} needs a language model: give --judge llm.")
            check_methods([sample.reward_method])
            yield _data_id(sample)
        if self._judge is not None and not methods & WITH_JUDGE:
            raise InputError(
                f"--judge acts on rows of {' and '.join(sorted(WITH_JUDGE))}, and there are none; leave it out."
            )

    def questions(self) -> Iterator[tuple[str, Sample]]:
        """(id, row) of each."""
        return ((_data_id(sample), sample) for sample in self._rows)

    def missing(self, question: tuple[str, Sample]) -> Verdict:
        """No prediction is wrong, where any prediction could be right."""
        _, sample = question
        self._methods[sample.reward_method] += 1
        has_rule = bool(sample.answers) if sample.reward_method == JUDGED else self._score("", sample) is not None
        return {"correct": 0.0 if has_rule else None}

    def verdicts(self, batch: Sequence[tuple[tuple[str, Sample], str]]) -> list[Verdict]:
        samples, predictions = [sample for (_, sample), _ in batch], [prediction for _, prediction in batch]
        self._methods.update(sample.reward_method for sample in samples)
        found = [{"correct": self._score(*one)} for one in zip(predictions, samples, strict=True)]
        asked = [
            evqa.judge_inputs(sample.question, prediction, "|".join(sample.answers), sample.question_type)
            if sample.reward_method == "evqa" and verdict["correct"] == 0.0
            else []
            for sample, prediction, verdict in zip(samples, predictions, found, strict=True)
        ]
        if self._judge is not None:
            ask(self._judge, found, asked, right={"correct": 1.0})
            self._pairs += sum(map(len, asked))
        own = [i for i, sample in enumerate(samples) if sample.reward_method == JUDGED and references(sample)]
        if own:
            grades = self._judge.grade(
                [(predictions[i], references(samples[i]), samples[i].question) for i in own]
            )  # as in training, all references at once
            self._pairs += len(own)
            for i, grade in zip(own, grades, strict=True):
                found[i] = {"correct": float(grade)}
        return found

    def counted(self, question: tuple[str, Sample], verdict: Verdict) -> tuple[str, str, float | None]:
        _, sample = question
        return sample.split or NO_SPLIT, sample.question_type, verdict["correct"]

    def summarise(self, counted: Counter[tuple[str, str, float | None]]) -> dict:
        """Scores in per cent.

        Returns:
            splits: of each split and of all together its mean over rows, its macro mean (over question types, of the mean over a type's rows), its count and its types. harmonic: the harmonic means of the mean
            and the macro mean of unseen_question and unseen_entity, by what stands before these words in the splits' names. without_verdict: rows that no rule applies to; they count for nothing.
        """
        splits = sorted({split for split, _, _ in counted})
        parts = {split: _part({key: n for key, n in counted.items() if key[0] == split}) for split in splits}
        if len(splits) > 1:
            parts[WHOLE] = _part(counted)
        harmonic = {}
        for name in splits:
            pair = [parts.get(name.removesuffix(SPLITS[0]) + split) for split in SPLITS]
            if name.endswith(SPLITS[0]) and all(pair):
                harmonic[name.removesuffix(SPLITS[0])] = {
                    kind: harmonic_mean([part[kind] for part in pair]) for kind in ("mean", "macro")
                }
        without = sum(n for (_, _, value), n in counted.items() if value is None)
        return {"splits": parts, "harmonic": harmonic, "without_verdict": without} | judged(self._judge, self._pairs)

    def refuse_mixed(self) -> None:
        """InputError if rows share a `data_id` that don't ask the same: a prediction could belong to any of them."""
        ids = digests(self.ids())
        order = np.argsort(ids, kind="stable")
        contents = digests(map(_asked, self._rows))[order]
        mixed = np.flatnonzero((ids[order][1:] == ids[order][:-1]) & (contents[1:] != contents[:-1]))
        if len(mixed):
            one, two = sorted(order[mixed[0] : mixed[0] + 2].tolist())
            raise InputError(
                f"{self._rows.source(one)} and {self._rows.source(two)} have the same data_id {_data_id(self._rows[one])!r} but not the same question and answers; score the files one by one, or give ids that tell the rows apart."
            )

    def _score(self, prediction: str, sample: Sample) -> float | None:
        return OFFICIAL.get(sample.reward_method, score)(prediction, sample)


def _data_id(sample: Sample) -> str:
    return row_id(sample.row, "data_id", sample.source) if "data_id" in sample.row else sample.id


def _asked(sample: Sample) -> str:
    return json.dumps([sample.question, sample.answers, sample.question_type, sample.reward_method], ensure_ascii=False)


def _part(counted: dict[tuple[str, str, float | None], int]) -> dict:
    sums: dict[str, tuple[float, int]] = {}  # of each question type
    for (_, kind, value), n in counted.items():
        if value is not None:
            total, count = sums.get(kind, (0.0, 0))
            sums[kind] = total + n * value, count + n
    whole = [sum(parts) for parts in zip(*sums.values(), strict=True)] or [0.0, 0]
    return {
        "mean": _percent(*whole),
        "macro": _percent(sum(total / count for total, count in sums.values()), len(sums)),
        "count": whole[1],
        "types": {kind: {"score": _percent(*sums[kind]), "count": sums[kind][1]} for kind in sorted(sums)},
    }


def _percent(total: float, count: int) -> float | None:
    """A mean in per cent, with two decimals as InfoSeek's official code has it; None of nothing."""
    return round(100 * total / count, 2) if count else None
