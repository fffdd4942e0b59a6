"""Rows about scenes of shapes and flags: referring expressions, detection, choices.

Every maker takes the row's random numbers and its turn among the rows of its kind, and returns the row's content, or None if chance left no room or no single answer.
"""

import json
import math
from random import Random

from . import task_pictures as pictures
from .task_pictures import COLOURS, FLAG_OF, FLAGS, GROUNDS, SHAPES, Made, Thing


def colour_of(label: str) -> str:
    return label.split()[0]


def shape_of(label: str) -> str:
    return label.split()[-1]


def draw_shape_label(rng: Random) -> str:
    return f"{rng.choice(list(COLOURS))} {rng.choice(SHAPES)}"


def other(rng: Random, values, *without: str) -> str:
    return rng.choice([value for value in values if value not in without])


def scene(rng: Random, labels: list[str], sizes: list[tuple[int, int]] | None = None):
    """(picture, things in the labels' order), or None if they found no room. Sizes are drawn unless given."""
    size = pictures.canvas_size(rng)
    if sizes is None:
        sizes = [pictures.flag_size(rng) if label.startswith(FLAG_OF) else pictures.shape_size(rng) for label in labels]
    things = pictures.place(rng, size, list(zip(labels, sizes, strict=True)))
    return things and (pictures.draw_scene(size, things, rng.choice(GROUNDS)), things)


def boxes(things: list[Thing]) -> list[dict]:
    """What the picture shows, as a row tells it: boxes in pixels with labels, in reading order."""
    return [
        {"bbox_2d": list(thing.box), "label": thing.label} for thing in sorted(things, key=lambda t: (t.box[1], t.box))
    ]


# rec: each maker returns the row of one referent


def referent(picture, things: list[Thing], target: Thing, phrase: str) -> Made:
    answer = json.dumps({"bbox_2d": list(target.box)})
    return [picture], f"Where is {phrase}?", answer, {"phrase": phrase, "objects": boxes(things)}


def rec_attribute(rng: Random, turn: int) -> Made | None:
    """Another thing has the target's colour, another its shape, none has both."""
    label = draw_shape_label(rng)
    colour, shape = label.split()
    labels = [
        label,
        f"{colour} {other(rng, SHAPES, shape)}",
        f"{other(rng, COLOURS, colour)} {shape}",
        draw_shape_label(rng),
        draw_shape_label(rng),
    ]
    made = scene(rng, labels)
    if made is None or labels.count(label) > 1:
        return None
    return referent(*made, made[1][0], f"the {label}")


def rec_size(rng: Random, turn: int) -> Made | None:
    """Two things of one shape, one with sides 1.4 times the other's at least, among other shapes."""
    shape = rng.choice(SHAPES)
    word = ("larger", "smaller")[turn % 2]
    small = pictures.shape_size(rng, 22, 36)
    large = pictures.shape_size(rng, math.ceil(small[0] * 1.4), 64)
    rest = [f"{rng.choice(list(COLOURS))} {other(rng, SHAPES, shape)}" for _ in range(2)]
    labels = [f"{rng.choice(list(COLOURS))} {shape}" for _ in range(2)] + rest
    sizes = [large, small] if word == "larger" else [small, large]
    made = scene(rng, labels, sizes + [pictures.shape_size(rng) for _ in rest])
    return made and referent(*made, made[1][0], f"the {word} {shape}")


def rec_place(rng: Random, turn: int) -> Made | None:
    """Three things of one shape; the target's middle is 15 pixels beyond the others' and its edge too is the outermost."""
    shape = rng.choice(SHAPES)
    labels = [f"{rng.choice(list(COLOURS))} {shape}" for _ in range(3)] + [
        f"{rng.choice(list(COLOURS))} {other(rng, SHAPES, shape)}"
    ]
    word, axis, sign = [("leftmost", 0, 1), ("rightmost", 0, -1), ("topmost", 1, 1), ("bottommost", 1, -1)][turn % 4]
    made = scene(rng, labels)
    if made is None:
        return None
    target, second, third = sorted(made[1][:3], key=lambda thing: sign * thing.centre[axis])
    edge = axis if sign > 0 else axis + 2
    clear = sign * (second.centre[axis] - target.centre[axis]) >= 15
    if not clear or not all(sign * (thing.box[edge] - target.box[edge]) > 0 for thing in (second, third)):
        return None
    return referent(*made, target, f"the {word} {shape}")


def rec_flag(rng: Random, turn: int) -> Made | None:
    titles = rng.sample(list(FLAGS.values()), 3)
    made = scene(rng, [FLAG_OF + title for title in titles] + [draw_shape_label(rng)])
    return made and referent(*made, made[1][0], f"the {FLAG_OF}{titles[0]}")


# ovd


def detection(rng: Random, counts: dict[str, int], asked: list[str]) -> Made | None:
    made = scene(rng, [label for label, count in counts.items() for _ in range(count)])
    if made is None:
        return None
    rng.shuffle(asked)
    found = [entry for entry in boxes(made[1]) if entry["label"] in asked]
    answer = json.dumps(found) if found else "None"
    question = f"Find every thing of these kinds: {', '.join(asked)}."
    return [made[0]], question, answer, {"asked": asked, "objects": boxes(made[1])}


def distinct_labels(rng: Random, count: int) -> list[str]:
    return rng.sample([f"{colour} {shape}" for colour in COLOURS for shape in SHAPES], count)


def ovd_one_kind(rng: Random, turn: int) -> Made | None:
    asked, *rest = distinct_labels(rng, 3)
    return detection(rng, {asked: 1 + turn % 3, **dict.fromkeys(rest, 1)}, [asked])


def ovd_several_kinds(rng: Random, turn: int) -> Made | None:
    """Two kinds that are there, one that is not, and things that nobody asks for."""
    first, second, rest, absent = distinct_labels(rng, 4)
    return detection(rng, {first: 2, second: 1, rest: rng.randint(1, 2)}, [first, second, absent])


def ovd_flags(rng: Random, turn: int) -> Made | None:
    """Two flags and a shape that are there, a flag that is not, and one that nobody asks for."""
    labels = [FLAG_OF + title for title in rng.sample(list(FLAGS.values()), 4)]
    shape = draw_shape_label(rng)
    return detection(rng, {**dict.fromkeys(labels[:3], 1), shape: 1}, [labels[0], labels[1], labels[3], shape])


def ovd_none_or_one(rng: Random, turn: int) -> Made | None:
    """Every second one shows none of the kinds asked for, but their colours and shapes."""
    one, two = distinct_labels(rng, 2)
    mixed = {f"{colour_of(one)} {shape_of(two)}", f"{colour_of(two)} {shape_of(one)}"}
    if len({one, two, *mixed}) < 4:
        return None
    counts = dict.fromkeys(sorted(mixed), 1) | ({one: 1} if turn % 2 else {})
    return detection(rng, counts, [one, two])


# choice: the rows name their methods

LETTERS = "ABCD"


def options(rng: Random, turn: int, right: str, wrong: list[str]) -> tuple[str, str]:
    """The lines of four options and the letter of the right one, which takes turns."""
    rng.shuffle(wrong)
    place = turn % 4
    values = wrong[:place] + [right] + wrong[place:3]
    lines = "\n".join(f"{letter}. {value}" for letter, value in zip(LETTERS, values, strict=True))
    return lines, LETTERS[place]


def choice_flag(rng: Random, turn: int) -> Made | None:
    title, *wrong = rng.sample(list(FLAGS.values()), 4)
    made = scene(rng, [FLAG_OF + title])
    lines, letter = options(rng, turn, title, wrong)
    question = f"Whose flag is this?\n{lines}\nAnswer with the letter of the right option."
    return made and ([made[0]], question, letter, {"accu_reward_method": "mcq", "objects": boxes(made[1])})


def choice_missing(rng: Random, turn: int) -> Made | None:
    """Three of four options are in the picture."""
    missing, *shown = distinct_labels(rng, 4)
    made = scene(rng, shown + [draw_shape_label(rng)])
    if made is None or any(thing.label == missing for thing in made[1]):
        return None
    lines, letter = options(rng, turn, missing, shown)
    question = f"Which of these is not in the image?\n{lines}\nAnswer with the letter of the right option."
    return [made[0]], question, letter, {"accu_reward_method": "mcq", "objects": boxes(made[1])}


def choice_there(rng: Random, turn: int) -> Made | None:
    """Colour and shape are there in either case, together only if the answer is yes."""
    label = draw_shape_label(rng)
    colour, shape = label.split()
    labels = [f"{colour} {other(rng, SHAPES, shape)}", f"{other(rng, COLOURS, colour)} {shape}"]
    third = label if turn % 2 else f"{other(rng, COLOURS, colour)} {other(rng, SHAPES, shape)}"
    made = scene(rng, [*labels, third])
    more = {"accu_reward_method": "yes_no", "phrase": label}
    answer = "yes" if turn % 2 else "no"
    return made and (
        [made[0]],
        f"Is there {'an' if label[0] in 'aeiou' else 'a'} {label}?",
        answer,
        more | {"objects": boxes(made[1])},
    )


def choice_larger(rng: Random, turn: int) -> Made | None:
    """Which of two shapes is the larger one, of sides that differ by a quarter at least."""
    first, second = distinct_labels(rng, 2)
    if shape_of(first) == shape_of(second):
        return None
    small = pictures.shape_size(rng, 24, 40)
    large = pictures.shape_size(rng, math.ceil(small[0] * 1.25), 64)
    made = scene(rng, [first, second], [large, small] if turn % 2 else [small, large])
    more = {"accu_reward_method": "yes_no", "phrase": f"{first}, {second}"}
    question = f"Is the {first} larger than the {second}?"
    answer = "yes" if turn % 2 else "no"
    return made and ([made[0]], question, answer, more | {"objects": boxes(made[1])})
