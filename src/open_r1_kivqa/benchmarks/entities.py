"""The article that a question is about, and its section that holds the answer, as a conversion writes them into rows."""

import argparse
from collections.abc import Sequence

from ..data.samples import IMAGE_MARKER
from ..errors import InputError
from ..retrieval.sections import load_section_scorer
from .articles import Articles
from .counts import Counts
from .evidence import EvidenceFinder

FOUND = {  # what a report calls the sources of evidence
    "alias": "evidence that holds an alias of the answer",
    "number": "evidence that holds a number of the answer's range",
    "weak": "weak evidence: no section holds the answer, the one that fits the question best is taken",
}
DEFAULTS = {"section_scorer": "bm25", "weak_evidence": "keep"}


def add_evidence_flags(flags: argparse.ArgumentParser) -> None:
    """--section_scorer and --weak_evidence."""
    flags.add_argument(
        "--section_scorer",
        default=DEFAULTS["section_scorer"],
        help="how well sections fit a question: bm25, or the folder of a text encoder (default: %(default)s)",
    )
    flags.add_argument(
        "--weak_evidence",
        choices=("keep", "drop"),
        default=DEFAULTS["weak_evidence"],
        help="keep: where no section holds the answer, the one that fits the question best is the evidence; drop: such rows have none, so that no level forces it in. Both are marked "
        "evidence_source: weak. Default: %(default)s",
    )


def check_evidence_flags(flags: argparse.Namespace) -> None:
    """InputError for flags that have no effect without --knowledge_base."""
    for name, default in DEFAULTS.items():
        if getattr(flags, name) != default and not flags.knowledge_base:
            raise InputError(f"--{name} looks into a knowledge base; give --knowledge_base too, or leave it out.")


class Entities(Articles):
    """Articles with evidence.

    Attributes:
        kb: the knowledge base.
        evidence: its sections by question and answer.
    """

    def __init__(self, flags: argparse.Namespace):
        """
        Args:
            flags: --knowledge_base and --redirects of `articles`, and those of `add_evidence_flags`.

        Raises:
            InputError: a file that can't be read, or an unknown scorer.
        """
        scorer = load_section_scorer(flags.section_scorer)
        super().__init__(flags.knowledge_base, flags.redirects)
        self.kb = self._kb
        self.evidence = EvidenceFinder(self.kb, scorer)
        self._matches: dict[str, list[str]] = {}
        self._drop_weak = flags.weak_evidence == "drop"
        self.identity = [self.identity, scorer.fingerprint, flags.weak_evidence]

    def matches(self, name: str) -> list[str]:
        """Keys of the articles that a name (key, title, url, alias) means equally well."""
        if name not in self._matches:
            self._matches[name] = self._titles.matches(name)
        return self._matches[name]

    def add(
        self,
        row: dict,
        names: Sequence[str],
        question: str,
        answers: list[str] | dict,
        counts: Counts,
        *,
        several: bool = False,
    ) -> None:
        """Adds `entity`, `evidence` and `evidence_source` to a row, as far as they are found.

        Args:
            names: of the row's entity, the surest first: the first that an article has counts.
            answers: [] for a row without; it gets no evidence.
            several: the names are of several entities: the first that has an article is `entity`, the first whose article holds an answer gives the evidence.
        """
        matches = [keys for keys in map(self.matches, names) if keys][: None if several else 1]
        if not matches:
            counts.note("entity not in the knowledge base", " ".join(names) or f"{row['id']} names none")
            return
        if len(matches[0]) > 1:
            counts.note("entity that several articles fit; the first is taken", f"{' '.join(names)}: {matches[0][:3]}")
        keys = list(dict.fromkeys(keys[0] for keys in matches))
        row["entity"] = keys[0]
        found = [self.evidence.find(key, question, answers) for key in keys] if answers else []
        found = sorted(filter(None, found), key=lambda evidence: evidence.source == "weak")
        if not found:
            return
        key, source = found[0]
        counts.note(FOUND[source], f"{row['id']}: {key}" if source == "weak" else None)
        row["evidence_source"] = source
        if source != "weak" or not self._drop_weak:
            row["evidence"] = [key]


def conversation(question: str, answer: str) -> list[dict]:
    """The turns of a question about one image; without an answer the question alone."""
    turns = [{"from": "human", "value": f"{IMAGE_MARKER}\n{question.replace(IMAGE_MARKER, '').strip()}"}]
    return [*turns, {"from": "gpt", "value": answer}] if answer.strip() else turns
