"""What a conversion read, wrote, dropped and noticed, in numbers and examples."""

from dataclasses import dataclass, field

EXAMPLES = 20  # kept of each reason


@dataclass
class Tally:
    """How often something came, and its first examples, each once."""

    number: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: object = None) -> str | None:
        """Counts one, and gives its example if it was new and is kept."""
        self.number += 1
        text = None if example is None else str(example)
        if text is None or len(self.examples) >= EXAMPLES or text in self.examples:
            return None
        self.examples.append(text)
        return text

    def take_back(self, example: str | None) -> None:
        """Undoes the last `add`, which gave this."""
        self.number -= 1
        if example is not None:
            self.examples.remove(example)


class Counts:
    """Counts of one conversion.

    Call `drop` when an item gives no row, and `note` for what is worth knowing of one that does; each at most once for an item and reason, since shares are of the items read. What was
    noted of an item that is dropped in the end is taken back: notes are about rows that are there.

    Attributes:
        read: source items (a csv row, a line). written: rows; `RowsFile.write` counts them.
        dropped, noted: reason -> Tally, in the order in which they first came.
    """

    def __init__(self):
        self.read = self.written = 0
        # What was noted of the item that is being dealt with, and the examples kept; `read` at that time.
        self._own: list[tuple[str, str | None]] = []
        self._item = 0
        self.dropped: dict[str, Tally] = {}
        self.noted: dict[str, Tally] = {}

    def drop(self, reason: str, example: object = None) -> None:
        """An item that gives no row: "no image of it was found", for example, and the id as the example."""
        for what, kept in reversed(self._notes_of_item()):
            self.noted[what].take_back(kept)
            if not self.noted[what].number:
                del self.noted[what]
        self._own = []
        self.dropped.setdefault(reason, Tally()).add(example)

    def note(self, what: str, example: object = None) -> None:
        """Something about an item that is kept: "article not in the knowledge base", and its url."""
        self._notes_of_item().append((what, self.noted.setdefault(what, Tally()).add(example)))

    def number(self, what: str) -> int:
        """How often this was noted."""
        return self.noted[what].number if what in self.noted else 0

    @property
    def kept(self) -> int:
        """Items read that gave rows."""
        return self.read - sum(tally.number for tally in self.dropped.values())

    def lines(self) -> list[str]:
        """For the terminal: a line for each reason, with its share of the items read and its examples."""
        groups = (("dropped", self.dropped), ("note", self.noted))
        return [
            f"  {name}: {what}: {tally.number:,} ({100 * tally.number / max(self.read, 1):.1f} % of {self.read:,})"
            + (
                f": {', '.join(tally.examples)}{', …' if tally.number > len(tally.examples) else ''}"
                if tally.examples
                else ""
            )
            for name, group in groups
            for what, tally in group.items()
        ]

    def to_dict(self) -> dict:
        """As JSON values; `from_dict` gives the same counts again."""
        return {
            "read": self.read,
            "written": self.written,
            **{
                name: {what: {"number": tally.number, "examples": tally.examples} for what, tally in group.items()}
                for name, group in (("dropped", self.dropped), ("noted", self.noted))
            },
        }

    @classmethod
    def from_dict(cls, values: dict) -> "Counts":
        """Counts as `to_dict` gave them."""
        counts = cls()
        counts.read, counts.written = values["read"], values["written"]
        for name, group in (("dropped", counts.dropped), ("noted", counts.noted)):
            group.update({what: Tally(tally["number"], tally["examples"]) for what, tally in values[name].items()})
        return counts

    def _notes_of_item(self) -> list[tuple[str, str | None]]:
        if self._item != self.read:  # the one before is dealt with
            self._own, self._item = [], self.read
        return self._own
