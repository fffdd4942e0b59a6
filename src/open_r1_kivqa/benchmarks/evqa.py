"""Encyclopedic-VQA's official rules (Mensink et al. 2023; google-research, `encyclopedic_vqa/evaluation_utils.py`): exact match after `normalise`, else a judge of equivalence.

Results are those of the official code, oddities too; each is marked with a comment. `rewards.official` puts guards before these rules where a model is trained on them.
"""

import re
import string
from collections.abc import Callable, Iterable, Sequence

from ..errors import InputError

LIST_TYPE = "multi_answer"
QUESTION_TYPES = ("templated", "automatic", LIST_TYPE, "2_hop")
LEAST_OVERLAP = 0.5  # intersection over union of two sets of items

Judge = Callable[[list[tuple[str, str, str]]], Sequence[bool]]  # of (candidate, reference, question) each

PREFIX = "<extra_id_0> "  # what T5 opens an answer with
NO_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’´")
ARTICLES = re.compile(r"\b(?:the answer is|an?|the)\b")
WORDS = {
    word: str(number) for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
}
WORDS |= {"none": "0", "true": "yes", "entailment": "yes", "false": "no", "contradiction": "no"}
# VQA's contractions get their apostrophes back. Of the official table only these can come up: the other keys hold an apostrophe or a capital, and both are gone by then.
CONTRACTIONS = """
    ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's isn't it'd it'll ma'am mightn't might've mustn't must've needn't
    not've o'clock oughtn't shan't should've shouldn't somebody'll somebody's someone'd someone'll someone's something'd something'll that's there'd there're there's they'd they'll
    they're they've 'twas wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll who's who've why'll why're why's won't would've wouldn't
    y'all you'd you'll you're you've
"""
WORDS |= {word.replace("'", ""): word for word in CONTRACTIONS.split()}


def normalise(text: str) -> str:
    """The form in which answers are compared. May be empty."""
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    if text.startswith(PREFIX):
        text = text.replace(PREFIX, "")  # wherever it stands
    # Punctuation is deleted, not made a space: "1,000" is 1000, "north-east" is northeast.
    words = ARTICLES.sub(" ", text.translate(NO_PUNCTUATION)).split()
    return " ".join(WORDS.get(word, word) for word in words)


def alternatives(reference: str) -> list[str]:
    """The accepted answers of a cell of the column `answer`, which "|" separates; raw."""
    return reference.split("|")


def items(reference: str) -> list[str]:
    """The items of one accepted answer of the type multi_answer, which "&&" separates, after `normalise`; those of which nothing is left go."""
    return _kept(reference.split("&&"))


def usable(accepted: Iterable[str], question_type: str) -> list[str]:
    """Those of the accepted answers that `exact` takes: something is left of them after `normalise`."""
    read = items if question_type == LIST_TYPE else normalise
    return [text for text in accepted if read(text)]


def given_items(prediction: str) -> list[str]:
    """The items of a prediction for a question of the type multi_answer, after `normalise`; those of which nothing is left go."""
    # Upper case " And " and an "and" at a line break separate nothing; a comma within an item or a number does.
    return _kept(prediction.replace(" and ", ",").replace(" & ", ",").split(","))


def exact(prediction: str, reference: str, question_type: str) -> bool:
    """Whether the prediction is right without a judge; no prediction raises.

    One answer: equal after `normalise`. multi_answer: the sets of items have an intersection over union of 0.5 or more.

    Args:
        reference: a cell of the column `answer`: "a|b", of multi_answer "x&&y|z".

    Raises:
        InputError: nothing is left of one of the accepted answers after `normalise`, or the type is none of QUESTION_TYPES.
    """
    return exact_any(prediction, alternatives(reference), question_type)


def exact_any(prediction: str, accepted: Sequence[str], question_type: str) -> bool:
    """`exact`, given the accepted answers one by one."""
    check_type(question_type)
    if question_type == LIST_TYPE:
        given = set(given_items(prediction))
        return any([_overlap(given, set(_demand(items(text), text))) >= LEAST_OVERLAP for text in accepted])
    return normalise(prediction) in {_demand(normalise(text), text) for text in accepted}


def score(question: str, prediction: str, reference: str, question_type: str, judge: Judge | None = None) -> bool:
    """The official verdict: `exact`, else whether the judge finds the prediction equivalent to any of the accepted answers.

    Args:
        reference: a cell of the column `answer`.
        judge: takes (candidate, reference, question) of each accepted answer, and says of each whether they are equivalent; None for exact match alone. The official one is BEM.

    Raises:
        InputError: as `exact` does.
    """
    if exact(prediction, reference, question_type):
        return True
    return judge is not None and any(judge(judge_inputs(question, prediction, reference, question_type)))


def judge_inputs(question: str, prediction: str, reference: str, question_type: str) -> list[tuple[str, str, str]]:
    """What a judge is asked: (candidate, reference, question) for each accepted answer, all as they stand; in lists of the type multi_answer "&&" becomes a comma."""
    accepted = alternatives(reference)
    if question_type == LIST_TYPE:
        accepted = [text.replace("&&", ",") for text in accepted]
    return [(prediction, text, question) for text in accepted]


def check_type(question_type: str) -> None:
    """Raises InputError for what is no type of the data set."""
    if question_type not in QUESTION_TYPES:
        raise InputError(
            f"Unknown Encyclopedic-VQA question type {question_type!r}; known are {', '.join(QUESTION_TYPES)}."
        )


def summarise(rows: Iterable[tuple[str, float]]) -> dict:
    """Mean scores in per cent.

    Args:
        rows: (question type, score in [0, 1]) of each question.

    Returns:
        all, single_hop (every type but 2_hop), and types, by the names of QUESTION_TYPES; each with score (None of no question) and count.

    Raises:
        InputError: a type is none of QUESTION_TYPES.
    """
    rows = [(kind, float(correct)) for kind, correct in rows]
    for kind, _ in rows:
        check_type(kind)
    return {
        "all": _part(correct for _, correct in rows),
        "single_hop": _part(correct for kind, correct in rows if kind != "2_hop"),
        "types": {name: _part(correct for kind, correct in rows if kind == name) for name in QUESTION_TYPES},
    }


def _kept(texts: Iterable[str]) -> list[str]:
    return [form for form in map(normalise, texts) if form]


def _demand(form: str | list[str], text: str) -> str | list[str]:
    if not form:
        raise InputError(
            f"The accepted answer {text[:100]!r} is empty, or nothing is left of it without punctuation and articles; correct the reference."
        )
    return form


def _overlap(given: set[str], wanted: set[str]) -> float:
    return len(given & wanted) / len(given | wanted)


def _part(scores: Iterable[float]) -> dict:
    scores = list(scores)
    return {"score": 100 * sum(scores) / len(scores) if scores else None, "count": len(scores)}
