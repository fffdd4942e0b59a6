"""Judges of Encyclopedic-VQA's answers that match no reference exactly: whether candidate and reference answer a question alike.

A judge is called with a list of (candidate, reference, question) and gives one bool each, in order. It has a `name`, which stands in every output, and `cut`: how many candidates it did not see whole.
The official judge is BEM of TensorFlow Hub (answer_equivalence/bem/1). It needs TensorFlow and is not run here; `Bem` runs retrainings of it in PyTorch, whose verdicts are their own.
"""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from ..rewards.judge import Judge as RewardJudge

Pair = tuple[str, str, str]  # candidate, reference, question
KINDS = "exact, bem:PATH or llm"
NO_JUDGE = "exact match only (no BEM): a lower bound of the published figures"
EQUIVALENT = 0.5  # least probability that counts, as in Encyclopedic-VQA's evaluation
LLM_FLAGS = ("judge_model", "judge_api_key_env", "judge_timeout", "judge_retries", "judge_concurrency", "judge_cache")
LLM_FLAGS += ("judge_max_answer_chars", "judge_request")


class Judge(Protocol):
    """What scoring needs of a judge."""

    name: str
    cut: int

    def __call__(self, pairs: Sequence[Pair]) -> list[bool]: ...


def add_flags(flags: argparse.ArgumentParser) -> None:
    """--judge and what belongs to each kind of it."""
    judge = flags.add_argument_group("judge of what matches no reference exactly")
    judge.add_argument(
        "--judge",
        default="exact",
        help="exact: none, what doesn't match is wrong; bem:PATH: a PyTorch retraining of BEM in the folder PATH; llm: a model behind --judge_url (default: %(default)s)",
    )
    judge.add_argument("--bem_label", type=int, help="bem: which of the two outputs means equivalent (default: 1)")
    judge.add_argument("--bem_batch_size", type=int, help="bem: pairs judged at once (default: 64)")
    judge.add_argument("--bem_device", help="bem: cpu, cuda, … (default: a GPU if there is one)")
    judge.add_argument("--judge_url", help="llm: base URL of an endpoint that speaks OpenAI's chat completions")
    judge.add_argument("--judge_model", help="llm: name of its model")
    judge.add_argument("--judge_api_key_env", help="llm: NAME of the environment variable that holds its key")
    judge.add_argument("--judge_timeout", type=float, help="llm: seconds for one try (default: 30)")
    judge.add_argument("--judge_retries", type=int, help="llm: more tries after a failed one (default: 3)")
    judge.add_argument("--judge_concurrency", type=int, help="llm: most questions open at once (default: 16)")
    judge.add_argument("--judge_cache", help="llm: folder that keeps verdicts for later runs (default: memory only)")
    judge.add_argument("--judge_max_answer_chars", type=int, help="llm: longer answers are cut (default: 1000)")
    judge.add_argument("--judge_request", help="llm: more fields of each request, as JSON; null takes one out")


def load_judge(flags: argparse.Namespace) -> "Judge | None":
    """The judge that the flags name, ready to be called; None for `exact`.

    Raises:
        InputError: there is no such judge, it can't be loaded, it doesn't answer, or a flag belongs to another one.
    """
    kind, _, path = flags.judge.partition(":")
    if kind not in ("exact", "bem", "llm") or (kind == "bem") != bool(path):
        raise InputError(f"--judge {flags.judge!r} is no judge; give {KINDS}.")
    _refuse_flags_of_others(flags, kind)
    if kind == "bem":
        path = os.path.expanduser(path)  # the shell leaves "bem:~/…" as it is
        label, batch_size = _or(flags.bem_label, 1), _or(flags.bem_batch_size, 64)
        return Bem(path, equivalent=label, batch_size=batch_size, device=flags.bem_device)
    return Llm.from_flags(flags) if kind == "llm" else None


class Bem:
    """A BERT for sequence classification that was trained on the Answer Equivalence data, as kortukov/answer-equivalence-bem.

    Its input is `[CLS] candidate [SEP] reference [SEP] question [SEP]`, segment 0 up to the first [SEP] and 1 from there on; candidates that spell such tokens get plain pieces. An input of more pieces than the
    model has positions (512) loses the end of its candidate.

    Args:
        path: folder of the checkpoint.
        equivalent: which of the two outputs means "equivalent"; 1 in BEM and in its published retraining.
        batch_size: pairs in one forward pass.
        device: None takes a GPU if there is one.

    Raises:
        InputError: no checkpoint of such a model lies there.
    """

    def __init__(self, path: str, *, equivalent: int = 1, batch_size: int = 64, device: str | None = None):
        if equivalent not in (0, 1):
            raise InputError(f"--bem_label {equivalent}: 0 or 1 is wanted.")
        if batch_size < 1:
            raise InputError(f"--bem_batch_size {batch_size}: at least 1 is wanted.")
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise InputError(
                f"--judge bem:{path}: no config.json lies there. Download a PyTorch BEM, as kortukov/answer-equivalence-bem, and give its folder."
            )
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            self._model, info = AutoModelForSequenceClassification.from_pretrained(
                path, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError) as error:
            raise InputError(f"--judge bem:{path} cannot be loaded: {' '.join(str(error).split())}") from error
        config = self._model.config
        if info["missing_keys"] or config.num_labels != 2 or self._tokenizer.cls_token_id is None:
            raise InputError(
                f"--judge bem:{path} holds a {config.model_type} without a trained head of two classes (missing: {', '.join(sorted(info['missing_keys'])[:3]) or 'nothing'}; classes: {config.num_labels}). Give a model trained to tell equivalent answers."
            )
        try:
            self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            self._model.to(self._device).eval()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"--bem_device {device} cannot be used ({reason}); give cpu, cuda or cuda:N.") from error
        self.name = f"BEM (PyTorch retraining, {path})"
        self.cut = 0
        self._equivalent, self._batch_size = equivalent, batch_size
        self._limit = config.max_position_embeddings
        self._segments = min(2, config.type_vocab_size)

    def __call__(self, pairs: Sequence[Pair]) -> list[bool]:
        return (self.probabilities(pairs) >= EQUIVALENT).tolist()

    def probabilities(self, pairs: Sequence[Pair]) -> "np.ndarray":
        """(pairs,) float32: the probability in [0, 1] that candidate and reference are equivalent. Counts the cuts."""
        import numpy as np
        import torch

        inputs = self._inputs(pairs)
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i][0]))  # little padding
        out = np.zeros(len(inputs), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), self._batch_size):
                batch = order[start : start + self._batch_size]
                longest = max(len(inputs[i][0]) for i in batch)
                ids = torch.full((len(batch), longest), self._tokenizer.pad_token_id or 0)
                segments, mask = torch.zeros_like(ids), torch.zeros_like(ids)
                for row, i in enumerate(batch):
                    pieces, first = inputs[i]
                    ids[row, : len(pieces)] = torch.tensor(pieces)
                    segments[row, first : len(pieces)] = self._segments - 1
                    mask[row, : len(pieces)] = 1
                given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
                logits = self._model(**{name: value.to(self._device) for name, value in given.items()}).logits
                out[batch] = logits.softmax(dim=-1)[:, self._equivalent].cpu().numpy()
        return out

    def _inputs(self, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
        """Of each pair its pieces, and how many of them belong to the first segment."""
        if not pairs:
            return []
        texts = [text for pair in pairs for text in pair]
        encoded = self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True).input_ids
        cls, sep = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        inputs = []
        for i in range(0, len(encoded), 3):
            candidate, reference, question = encoded[i : i + 3]
            reference = reference[: self._limit - 4]
            question = question[: self._limit - 4 - len(reference)]
            room = self._limit - 4 - len(reference) - len(question)
            self.cut += len(candidate) > room
            first = [cls, *candidate[:room], sep]
            inputs.append(([*first, *reference, sep, *question, sep], len(first)))
        return inputs


class Llm:
    """A language model behind an endpoint, asked by the judge of the rewards (docs/llm_judge.md): same question, same cache.

    Attributes:
        unclear: replies that were neither of the two words; their candidates count as wrong.
    """

    def __init__(self, judge: "RewardJudge"):
        self._judge = judge
        self.name = f"language model {judge.model} at {judge.url}"
        self.cut = 0
        self.unclear = 0

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> "Llm":
        """Checks the flags, reads the cache and asks one small question; InputError where one of these fails."""
        from ..rewards.arguments import JudgeArguments
        from ..rewards.judge import Judge

        if flags.judge_url is None:
            raise InputError("--judge llm needs --judge_url and --judge_model: where the judge is, and its name there.")
        given = {name: getattr(flags, name) for name in LLM_FLAGS if getattr(flags, name) is not None}
        judge = Judge.from_flags(JudgeArguments(judge_url=flags.judge_url, **given))
        judge.check()
        return cls(judge)

    def __call__(self, pairs: Sequence[Pair]) -> list[bool]:
        return self.grade([(candidate, (reference,), question) for candidate, reference, question in pairs])

    def grade(self, cases: Sequence[tuple[str, tuple[str, ...], str]]) -> list[bool]:
        """Of each (candidate, references, question) whether the candidate says the same as one of the references.

        Raises:
            InputError: the endpoint fails on one; without its verdict the figure would be another one.
        """
        candidates, references, questions = ([case[part] for case in cases] for part in range(3))
        self.cut += sum(len(" ".join(text.split())) > self._judge.max_answer_chars for text in candidates)
        before = self._judge.failures.copy()
        grades = self._judge.grade(questions, references, candidates)
        failures = self._judge.failures - before
        self.unclear += failures.pop("no verdict", 0)
        if failures:
            raise InputError(
                f"The judge {self._judge.model!r} at {self._judge.url} failed on {failures.total():,} of {len(cases):,} answers ({dict(failures)}), so there is no figure. Start the same command again; with --judge_cache the verdicts given so far are kept."
            )
        return [grade == 1.0 for grade in grades]


def _refuse_flags_of_others(flags: argparse.Namespace, kind: str) -> None:
    for name, value in vars(flags).items():
        owner = "bem" if name.startswith("bem_") else "llm" if name.startswith("judge_") else kind
        if value is not None and owner != kind:
            raise InputError(
                f"--{name} acts only with --judge {owner}{':PATH' if owner == 'bem' else ''}: leave it out."
            )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
