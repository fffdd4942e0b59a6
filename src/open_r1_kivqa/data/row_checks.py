"""What can be wrong with one row, seen from the row alone and the knowledge base: ids, question, answer, passages."""

from dataclasses import dataclass

from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..knowledge.context import WHOLE_ARTICLE, gold_articles, may_be_first
from ..knowledge.pictures import PassagePictures
from ..rewards.boxes import box_problem
from ..rewards.methods import BOX_METHODS, JUDGED, KNOWN, score
from ..rewards.official import as_answer
from .samples import Sample
from .sources import Row, split_remedy
from .verdicts import PIXEL_LIMIT


@dataclass(frozen=True)
class Limits:
    """What a row must keep to.

    Attributes:
        pixels: most pixels of an image.
        context: most tokens of prompt and completion together; None if not known.
        completion: tokens kept free for the completion.
        needs_response: whether a row must end with a gpt turn, as supervised training wants.
        needs_answer: whether a row must have a reference answer; evaluation answers rows without one too, and scores none of them.
        has_judge: whether there is a judge for rows of the method `llm`.
    """

    pixels: int = PIXEL_LIMIT
    context: int | None = None
    completion: int = 0
    needs_response: bool = False
    needs_answer: bool = True
    has_judge: bool = True


@dataclass(frozen=True)
class ShownPictures:
    """Which pictures of articles a run shows: those of `pictures`, at any of the levels."""

    pictures: PassagePictures
    levels: tuple[str, ...]
    num_passages: int


def has_boxes(row: Row) -> bool:
    """Whether the row can be read, and its answers hold boxes."""
    return row.sample is not None and bool(row.sample.answers) and row.sample.reward_method in BOX_METHODS


class RowJudge:
    """Looks at one row after the other for what needs no file but the knowledge base. Remembers the ids, passage keys and articles it has seen.

    Attributes:
        unanswered: rows without a reference answer so far, where they may be.
    """

    def __init__(self, kb: KnowledgeBase | None, limits: Limits, shown: ShownPictures | None = None):
        self.kb, self.limits, self.shown = kb, limits, shown
        self.unanswered = 0
        self._ids: dict[str, tuple[int, str]] = {}  # id -> number and place of its first row
        self._keys: dict[str, tuple[str, str] | None] = {}  # passage key -> message and remedy, None if it is there
        self._pictures: dict[str, str | tuple[str, str] | None] = {}  # article -> its picture, or message and remedy

    def look_at(self, row: Row) -> None:
        """Adds to `row.problems`."""
        if row.id is not None:
            first, place = self._ids.setdefault(row.id, (row.number, f"{row.path}:{row.line}"))
            if first != row.number:
                row.add(
                    "id_repeated", f"this id was given before, at {place}", "give every row its own, over all files"
                )
        sample = row.sample
        if sample is None:
            return
        if not sample.question:
            row.add("question_empty", "the last human turn has no text", "write the question")
        if self.limits.needs_response and not sample.answer:
            row.add("response_missing", "there is no gpt turn to learn from", "add one as the last turn")
        if sample.reward_method == JUDGED and not self.limits.has_judge:
            row.add(
                "judge_missing",
                f"its reward method {JUDGED!r} asks a judge, and none is named",
                "give --judge_url and --judge_model",
            )
        problem = answer_problem(sample)
        if problem is not None and problem[0] == "answer_missing" and not self.limits.needs_answer:
            self.unanswered += 1
        elif problem is not None:
            row.add(*problem)
        if self.kb is not None:
            keys = dict.fromkeys([*sample.evidence, *(key for keys in sample.candidates for key in keys)])
            for key in keys:
                if (problem := self._passage_problem(key)) is not None:
                    row.add("passage_missing", *problem)
        for found in self._pictures_of(row):
            if isinstance(found, tuple):
                row.add("passage_picture", *found)

    def pictures(self, row: Row) -> list[str]:
        """Paths of the articles' pictures that the row's prompts may show."""
        return [found for found in self._pictures_of(row) if isinstance(found, str)]

    def _pictures_of(self, row: Row) -> list[str | tuple[str, str]]:
        if self.shown is None or self.kb is None or row.sample is None:
            return []
        asked = (self.shown.num_passages, self.shown.pictures.number)
        levels = [level for level in self.shown.levels if level != WHOLE_ARTICLE]
        keys = [key for level in levels for key in may_be_first(row.sample, level, *asked)]
        whole = gold_articles(row.sample) if WHOLE_ARTICLE in self.shown.levels else []
        articles = dict.fromkeys([*(key.rpartition("#")[0] for key in keys), *whole])
        return [found for article in articles if (found := self._picture(article)) is not None]

    def _picture(self, article: str) -> str | tuple[str, str] | None:
        if article not in self._pictures:
            self._pictures[article] = None  # also where there is no such article, of which its passages tell
            if self.kb.has_article(article):
                try:
                    self._pictures[article] = self.shown.pictures.path(self.kb, article)
                except InputError as error:
                    self._pictures[article] = split_remedy(str(error))
        return self._pictures[article]

    def _passage_problem(self, key: str) -> tuple[str, str] | None:
        if key not in self._keys:
            self._keys[key] = None
            try:
                self.kb.passage(key)
            except InputError as error:
                self._keys[key] = split_remedy(str(error))
        return self._keys[key]


def answer_problem(sample: Sample) -> tuple[str, str, str] | None:
    """(kind, message, remedy) if no answer could earn the row's accuracy reward: its own answers don't score 1. None if all is well."""
    method, known = sample.reward_method, ", ".join(KNOWN)
    if method not in KNOWN:
        return "reward_method", f"unknown reward method {method!r}", f"set accu_reward_method to one of {known}"
    if not sample.answers:
        remedy = "add a gpt turn with the answer, or `answers`; evaluate_jsonl.py alone takes rows without (kivqa check --answers_optional)"
        return "answer_missing", "the row has no answer", remedy
    if method == JUDGED:
        return None  # only the judge could say
    problem = box_problem(sample, []) if method in BOX_METHODS else None
    if problem is not None:
        return "box", *problem
    if isinstance(sample.answers, dict):
        answers = [repr(sample.answers["range"][0])]
    else:
        answers = [as_answer(reference, sample) for reference in sample.answers]
    scores = [score(answer, sample) for answer in answers]
    if 1.0 in scores:
        return None
    message = f"reward method {method!r} gives the row's own answer {answers[0][:60]!r} {'no score' if scores[0] is None else scores[0]}"
    return "answer_unscorable", message, f"correct the answer, or set accu_reward_method to another of {known}"
