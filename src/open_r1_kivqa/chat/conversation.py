"""What has been said so far, and the prompt of the next question: built as a row's is in training and evaluation."""

import os

from ..data.images import load_image
from ..data.samples import IMAGE_MARKER, RESERVED, parse_row, refuse_reserved
from ..errors import InputError
from ..knowledge.base import KnowledgeBase, Passage
from ..knowledge.budget import PassageBudget
from ..knowledge.pictures import PassagePictures
from ..prompts import Template, build_prompt, neutralise


class Conversation:
    """Turns, pictures and passages.

    Attributes:
        pending: absolute paths of the pictures that the next question shows.
        passages: shown with every question from now on.
        turns: (role, text) of what was asked and answered, questions with their image markers.
        images: pictures of the turns, in the order of the markers.
        budget: cuts the passages that are shown; None shows them whole.

    Args:
        knowledge, passage_pictures: of the passages' articles, and which of these are shown with a picture.
    """

    def __init__(
        self,
        template: Template,
        *,
        system_prompt: str | None = None,
        knowledge: KnowledgeBase | None = None,
        passage_pictures: PassagePictures | None = None,
    ):
        refuse_reserved(system_prompt or "", "--system_prompt")
        self._template, self._system_prompt = template, system_prompt
        self._knowledge, self._passage_pictures = knowledge, passage_pictures
        self.budget: PassageBudget | None = None
        self.new()

    def new(self) -> None:
        """Forgets turns, pictures and passages."""
        self.turns: list[tuple[str, str]] = []
        self.images: list[str] = []
        self.pending: list[str] = []
        self.passages: list[Passage] = []

    def add_image(self, path: str) -> tuple[int, int]:
        """Shows a picture with the next question; gives its width and height. InputError if it cannot be decoded."""
        path = os.path.abspath(os.path.expanduser(path))
        if not os.path.isfile(path):
            raise InputError(f"The picture {path} {'is a folder' if os.path.isdir(path) else 'does not exist'}.")
        size = load_image(path).size
        self.pending.append(path)
        return size

    def prompt(self, question: str) -> list[dict]:
        """The messages for this question after the turns so far, as `build_prompt` writes those of a row with these turns, pictures and passages.

        Pictures stand where the question says `<image>`, or before it. Raises InputError for an empty question, one that spells a model token, or another number of markers than pictures.
        """
        sample = parse_row(
            {
                "id": "chat",
                "image": [path.lstrip(os.sep) for path in (*self.images, *self.pending)],
                "conversations": [{"from": role, "value": text} for role, text in (*self.turns, self._asked(question))],
            },
            image_folder=os.sep,
            reward_method="",
            source="chat",
        )
        return build_prompt(sample, self._shown(), self._template, system_prompt=self._system_prompt)

    def _shown(self) -> list[Passage]:
        """The passages, cut and with pictures as wanted."""
        passages = self.passages if self.budget is None else [self.budget.cut(passage) for passage in self.passages]
        if self._passage_pictures is not None and self._knowledge is not None:
            passages = self._passage_pictures.add(passages, self._knowledge)
        return passages

    def keep(self, question: str, reply: str) -> None:
        """Adds a question and its reply to the turns; both are left out, and pictures go on waiting, if the reply is empty."""
        if not reply.strip():
            return
        # A server's text may spell a token that would end the turn in the next prompt.
        reply = RESERVED.sub(lambda token: neutralise(token.group()), reply)
        self.turns += [self._asked(question), ("assistant", reply)]
        self.images += self.pending
        self.pending = []

    def _asked(self, question: str) -> tuple[str, str]:
        if not question.replace(IMAGE_MARKER, "").strip():
            raise InputError("The question is empty.")
        refuse_reserved(question, "The question")
        markers = question.count(IMAGE_MARKER)
        if markers and markers != len(self.pending):
            raise InputError(
                f"The question has {markers} {IMAGE_MARKER} marker(s) for {len(self.pending)} new picture(s): write one for each, or none to show all of them first."
            )
        return "user", question if markers else IMAGE_MARKER * len(self.pending) + question
