"""Rows about two screenshots, and the mock-up of a window that they show: check boxes, some of them ticked, and one button."""

from dataclasses import dataclass, replace
from random import Random

from PIL import Image, ImageDraw

from .task_pictures import INK, Made, write

SIZE = (190, 150)
TITLES = ["Settings", "Options", "Privacy", "Alarms", "Display", "Account"]
CONTROLS = [
    "Sound",
    "Updates",
    "Location",
    "Camera",
    "Backup",
    "Dark mode",
    "Bluetooth",
    "Printer",
    "Reminders",
    "Autosave",
]
BUTTONS = ["OK", "Save", "Apply", "Close"]
PLAIN, BAR, DESK, ACCENT = (250, 250, 250), (60, 90, 140), (205, 212, 220), (45, 120, 80)
FIRST_ROW, ROW, LEFT, TICK = 40, 20, 20, 11  # of the check boxes: top of the first, distance, left edge, side
BUTTON = (44, 20)


@dataclass(frozen=True)
class Window:
    """What the window shows.

    Attributes:
        title, button: texts of title bar and button.
        ticked: label of each check box, from top to bottom, and whether it is ticked.
        at: left top corner of the button, in pixels.
    """

    title: str
    button: str
    ticked: tuple[tuple[str, bool], ...]
    at: tuple[int, int] = (130, 112)

    def toggled(self, label: str) -> "Window":
        """The same window with that check box changed."""
        return replace(self, ticked=tuple((name, on != (name == label)) for name, on in self.ticked))

    def box_of(self, label: str) -> tuple[int, int, int, int]:
        """Edges of that check box, in pixels."""
        number = [name for name, _ in self.ticked].index(label)
        top = FIRST_ROW + ROW * number
        return LEFT, top, LEFT + TICK, top + TICK


def draw_window(window: Window) -> Image.Image:
    """A screenshot of SIZE, RGB: the window on a desktop."""
    picture = Image.new("RGB", SIZE, DESK)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((8, 8, SIZE[0] - 9, SIZE[1] - 9), fill=PLAIN, outline=INK)
    draw.rectangle((9, 9, SIZE[0] - 10, 27), fill=BAR)
    write(draw, (16, 18), window.title, anchor="lm", fill=PLAIN)
    for label, on in window.ticked:
        left, top, right, bottom = window.box_of(label)
        draw.rectangle((left, top, right - 1, bottom - 1), fill=ACCENT if on else PLAIN, outline=INK)
        if on:
            draw.line([(left + 2, top + 5), (left + 4, top + 8), (left + 8, top + 2)], fill=PLAIN, width=2)
        write(draw, (right + 7, (top + bottom) / 2), label, anchor="lm")
    left, top = window.at
    draw.rounded_rectangle((left, top, left + BUTTON[0] - 1, top + BUTTON[1] - 1), 4, fill=BAR)
    write(draw, (left + BUTTON[0] / 2, top + BUTTON[1] / 2), window.button, fill=PLAIN)
    return picture


def draw_content(rng: Random) -> Window:
    """A window with four check boxes, its words and ticks at random."""
    ticked = tuple((label, rng.random() < 0.5) for label in rng.sample(CONTROLS, 4))
    return Window(rng.choice(TITLES), rng.choice(BUTTONS), ticked)


def comparison(before: Window, after: Window, question: str, answer: str, **more) -> Made:
    """The row of two screenshots; it tells where the check boxes are."""
    controls = [{"bbox_2d": list(before.box_of(label)), "label": label} for label, _ in before.ticked]
    return [draw_window(before), draw_window(after)], question, answer, {**more, "controls": controls}


NOTHING, AS_IT_SHOULD, ANOTHER = range(3)


def after_click(rng: Random, before: Window, clicked: str, outcome: int) -> Window:
    """The window after a click on that check box: nothing changed, the box did as it should, or another one did."""
    if outcome == NOTHING:
        return before
    others = [label for label, _ in before.ticked if label != clicked]
    return before.toggled(clicked if outcome == AS_IT_SHOULD else rng.choice(others))


def gui_click(rng: Random, turn: int) -> Made:
    before = draw_content(rng)
    clicked = rng.choice(before.ticked)[0]
    outcome = AS_IT_SHOULD if turn % 2 else rng.choice((NOTHING, ANOTHER))
    after = after_click(rng, before, clicked, outcome)
    question = f'The user clicked the check box "{clicked}". Did the window change as it should? Answer yes or no.'
    return comparison(before, after, question, "yes" if outcome == AS_IT_SHOULD else "no", clicked=clicked)


def gui_fault(rng: Random, turn: int) -> Made:
    before = draw_content(rng)
    clicked = rng.choice(before.ticked)[0]
    after = after_click(rng, before, clicked, turn % 3)
    answer = {NOTHING: "no response", AS_IT_SHOULD: "no fault", ANOTHER: "wrong control"}[turn % 3]
    question = (
        f'The user clicked the check box "{clicked}". Which fault do the screenshots show: '
        '"no response", "wrong control" or "no fault"?'
    )
    return comparison(before, after, question, answer, clicked=clicked)


def gui_difference(rng: Random, turn: int) -> Made | None:
    before = draw_content(rng)
    changed = before.ticked[turn % 4][0]
    if changed != CONTROLS[turn % len(CONTROLS)]:  # every label is as often the answer
        return None
    question = "Which check box differs between the screenshots? Answer with its label."
    return comparison(before, before.toggled(changed), question, changed)


def gui_move(rng: Random, turn: int) -> Made:
    """The button moves by 6 to 9 pixels, on the right half of the window, where no check box is."""
    direction = ("left", "right", "up", "down")[turn % 4]
    x, y, far = rng.randint(118, 128), rng.randint(70, 85), rng.randint(6, 9)
    step = {"left": (-far, 0), "right": (far, 0), "up": (0, -far), "down": (0, far)}[direction]
    content = draw_content(rng)
    before, after = replace(content, at=(x, y)), replace(content, at=(x + step[0], y + step[1]))
    question = f'Which way did the button "{content.button}" move: left, right, up or down?'
    return comparison(before, after, question, direction)
