"""How a run makes prompts of its rows: which passages stand in them, and how they are written. Training, validation, evaluation and the measuring of prompts are handed one such object, so that they all
show a row alike."""

from dataclasses import dataclass

from .data.samples import Sample
from .knowledge.base import KnowledgeBase, Passage
from .knowledge.budget import PassageBudget
from .knowledge.context import choose_passages
from .knowledge.pictures import PassagePictures
from .prompts import Template, build_prompt


@dataclass(frozen=True)
class Prompting:
    """What flags say of prompts.

    Attributes:
        template, system_prompt: as for `build_prompt`.
        seed, kb, level, num_passages, budget, passage_pictures: as for `choose_passages`.
    """

    template: Template
    seed: int
    kb: KnowledgeBase | None = None
    system_prompt: str | None = None
    level: str = "retrieved"
    num_passages: int = 5
    budget: PassageBudget | None = None
    passage_pictures: PassagePictures | None = None

    def passages(
        self,
        sample: Sample,
        *,
        draw: int | None = None,
        level: str | None = None,
        keep_evidence: bool | None = None,
        with_pictures: bool = True,
    ) -> list[Passage]:
        """The passages to show with a sample, in order.

        Args:
            draw, keep_evidence: as for `choose_passages`.
            level: in place of the attribute; None keeps that.
            with_pictures: False leaves the pictures of articles out.
        """
        return choose_passages(
            sample,
            self.kb,
            level=self.level if level is None else level,
            num_passages=self.num_passages,
            seed=self.seed,
            draw=draw,
            budget=self.budget,
            passage_pictures=self.passage_pictures if with_pictures else None,
            keep_evidence=keep_evidence,
        )

    def prompt(self, sample: Sample, passages: list[Passage], *, with_images: bool = True) -> list[dict]:
        """The messages of a prompt; see `build_prompt`."""
        return build_prompt(sample, passages, self.template, system_prompt=self.system_prompt, with_images=with_images)
