"""What the pictures of the embedded task sets show: shapes and flags strewn over a plain ground, and short texts.

Nothing is smoothed, so a box ends exactly where its thing does: [left, top, right, bottom] in pixels, right and bottom being the first column and row beyond it. Everything is a function of its arguments;
random choices come from the `random.Random` that a row brings along.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFont

from . import IMAGES

COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 70),
    "blue": (40, 80, 200),
    "yellow": (235, 195, 30),
    "purple": (135, 60, 165),
    "orange": (240, 130, 20),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross")
GROUNDS = [(252, 251, 247), (230, 237, 243), (236, 243, 231), (245, 236, 227)]
INK = (40, 40, 45)
GAP = 5  # pixels of plain ground between two things, and between a thing and the edge

# Flags that most people, and most models, know; keys and titles of knowledge.jsonl.
FLAGS = {
    "ar": "Argentina",
    "au": "Australia",
    "br": "Brazil",
    "ca": "Canada",
    "ch": "Switzerland",
    "cl": "Chile",
    "cn": "China",
    "cu": "Cuba",
    "de": "Germany",
    "eg": "Egypt",
    "es": "Spain",
    "fi": "Finland",
    "fr": "France",
    "gb": "United Kingdom",
    "gr": "Greece",
    "il": "Israel",
    "in": "India",
    "it": "Italy",
    "jm": "Jamaica",
    "jp": "Japan",
    "ke": "Kenya",
    "kr": "South Korea",
    "mx": "Mexico",
    "ng": "Nigeria",
    "pk": "Pakistan",
    "pt": "Portugal",
    "se": "Sweden",
    "tr": "Turkey",
    "ua": "Ukraine",
    "us": "United States",
    "vn": "Vietnam",
    "za": "South Africa",
}
FLAG_OF = "flag of "
KEYS = {title: key for key, title in FLAGS.items()}

Made = tuple[list[Image.Image], str, str, dict]  # what a row is made of: pictures, question, answer, further fields


@dataclass(frozen=True)
class Thing:
    """A shape ("red circle") or flag ("flag of Japan") of a picture, and its box."""

    label: str
    box: tuple[int, int, int, int]

    @property
    def centre(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


def shape_size(rng: Random, smallest: int = 24, largest: int = 52) -> tuple[int, int]:
    """Width and height of a shape: equal and odd, so that a triangle has its tip in the middle."""
    side = rng.randrange(smallest // 2, largest // 2) * 2 + 1
    return side, side


def flag_size(rng: Random) -> tuple[int, int]:
    """Width and height of a flag with its frame, about 4 to 3."""
    width = rng.randrange(52, 80)
    return width, round(width * 0.75)


def canvas_size(rng: Random) -> tuple[int, int]:
    return rng.randrange(160, 250), rng.randrange(150, 230)


def place(rng: Random, size: tuple[int, int], wanted: list[tuple[str, tuple[int, int]]]) -> list[Thing] | None:
    """A place for each of the wanted (label, (width, height)), in their order, apart from each other; None if chance left no room."""
    things: list[Thing] = []
    for label, (width, height) in wanted:
        for _ in range(60):
            left = rng.randrange(GAP, size[0] - width - GAP)
            top = rng.randrange(GAP, size[1] - height - GAP)
            box = (left, top, left + width, top + height)
            if all(apart(box, other.box) for other in things):
                things.append(Thing(label, box))
                break
        else:
            return None
    return things


def apart(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[2] + GAP <= b[0] or b[2] + GAP <= a[0] or a[3] + GAP <= b[1] or b[3] + GAP <= a[1]


def draw_scene(size: tuple[int, int], things: list[Thing], ground: tuple[int, int, int]) -> Image.Image:
    """The things on a plain ground; RGB."""
    picture = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(picture)
    for thing in things:
        if thing.label.startswith(FLAG_OF):
            draw_flag(picture, KEYS[thing.label.removeprefix(FLAG_OF)], thing.box)
        else:
            colour, shape = thing.label.split()
            draw_shape(draw, shape, COLOURS[colour], thing.box)
    return picture


def draw_shape(draw: ImageDraw.ImageDraw, shape: str, colour: tuple[int, int, int], box) -> None:
    """One of SHAPES that touches all four sides of its box."""
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1  # Pillow's corners are the last pixels inside
    middle, centre = (left + right) // 2, (top + bottom) // 2
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=colour)
    elif shape == "triangle":
        draw.polygon([(left, bottom), (middle, top), (right, bottom)], fill=colour)
    elif shape == "diamond":
        draw.polygon([(left, centre), (middle, top), (right, centre), (middle, bottom)], fill=colour)
    elif shape == "cross":
        third = (right - left) // 3
        draw.rectangle((left + third, top, right - third, bottom), fill=colour)
        draw.rectangle((left, top + third, right, bottom - third), fill=colour)


def draw_flag(picture: Image.Image, key: str, box) -> None:
    """The knowledge base's flag in 32 colours, in a dark frame of one pixel, which fills the box."""
    flag = Image.open(IMAGES / "flags" / f"{key}.png").convert("RGB")
    size = box[2] - box[0] - 2, box[3] - box[1] - 2
    ImageDraw.Draw(picture).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=INK)
    flag = flag.resize(size, Image.Resampling.BOX).quantize(32, dither=Image.Dither.NONE)
    picture.paste(flag.convert("RGB"), (box[0] + 1, box[1] + 1))


def write(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int = 12, anchor: str = "mm", fill=INK):
    """`text` at a point in Pillow's own typeface; `anchor` as Pillow names it."""
    draw.text(at, text, font=ImageFont.load_default(size), anchor=anchor, fill=fill)


def draw_text(text: str, ground: tuple[int, int, int]) -> Image.Image:
    """A card of 180 x 90 pixels with one line of text."""
    picture = Image.new("RGB", (180, 90), ground)
    write(ImageDraw.Draw(picture), (90, 45), text, size=24)
    return picture


def draw_rectangle(width: int, height: int, ground: tuple[int, int, int]) -> Image.Image:
    """A rectangle in 200 x 160 pixels whose sides are labelled with their lengths, drawn in about those proportions."""
    picture = Image.new("RGB", (200, 160), ground)
    draw = ImageDraw.Draw(picture)
    unit = min(120 / width, 90 / height)
    right, bottom = 50 + round(width * unit), 20 + round(height * unit)
    draw.rectangle((50, 20, right, bottom), outline=INK, width=2)
    write(draw, ((50 + right) / 2, bottom + 14), str(width), size=18)
    write(draw, (28, (20 + bottom) / 2), str(height), size=18)
    return picture


def draw_right_triangle(base: int, height: int, ground: tuple[int, int, int]) -> Image.Image:
    """A right triangle in 200 x 160 pixels whose legs are labelled with their lengths, the right angle marked."""
    picture = Image.new("RGB", (200, 160), ground)
    draw = ImageDraw.Draw(picture)
    unit = min(120 / base, 100 / height)
    right, top = 50 + round(base * unit), 125 - round(height * unit)
    draw.polygon([(50, 125), (50, top), (right, 125)], outline=INK, width=2)
    draw.rectangle((50, 115, 60, 125), outline=INK)
    write(draw, ((50 + right) / 2, 142), str(base), size=18)
    write(draw, (28, (125 + top) / 2), str(height), size=18)
    return picture


def save(picture: Image.Image, path: Path) -> None:
    """As a PNG, pixel for pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, optimize=True)
