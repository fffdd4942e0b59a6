"""The embedded task sets, proved from their files: what the pictures show is read off the pixels, and every answer is found anew."""

import filecmp
import functools
import hashlib
import json
import re
from collections import Counter, defaultdict
from fractions import Fraction
from math import isqrt, sqrt

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.demo import IMAGES, TASKS, build_tasks, pictures
from open_r1_kivqa.rewards.methods import TASK_METHODS, score

SETS = ("rec", "ovd", "math", "gui", "choice")
METHODS = {**TASK_METHODS, "choice": "default"}  # of choice the rows name their own
RGB = {
    "red": (214, 40, 40),
    "green": (40, 160, 70),
    "blue": (40, 80, 200),
    "yellow": (235, 195, 30),
    "purple": (135, 60, 165),
    "orange": (240, 130, 20),
}


def rows_of(task):
    return [json.loads(line) for line in (TASKS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


ROWS = [(task, row) for task in SETS for row in rows_of(task)]


def of(task, *kinds):
    return [row for name, row in ROWS if name == task and (not kinds or row["question_type"] in kinds)]


def names_of(row):
    return row["image"] if isinstance(row["image"], list) else [row["image"]]


def pixels(name):
    return np.asarray(Image.open(TASKS / "images" / name).convert("RGB")).astype(int)


def question(row):
    return row["conversations"][0]["value"].replace("<image>", "").strip()


def answer(row):
    return re.fullmatch(r"<answer>(.*)</answer>", row["conversations"][1]["value"]).group(1)


def sample_of(task, row):
    return parse_row(row, image_folder=str(TASKS / "images"), reward_method=METHODS[task], source="test")


def box_of(row, label):
    (box,) = [thing["bbox_2d"] for thing in row["objects"] if thing["label"] == label]
    return box


def shape_from_pixels(mask):
    """The form by how much of its box is filled, and how much of its top row: circle .79, square 1, cross .56, triangle and diamond .5."""
    filled, bottom, edge = mask.mean(), mask[-1].mean(), mask[0].mean()
    if filled > 0.95:
        return "square"
    if filled > 0.68:
        return "circle"
    if bottom > 0.9:
        return "triangle"
    return "cross" if edge > 0.2 else "diamond"


@functools.cache
def flags():
    keys = sorted(path.stem for path in (IMAGES / "flags").iterdir())
    return keys, np.stack([pictures.features(Image.open(IMAGES / "flags" / f"{key}.png")) for key in keys])


def flag_from_pixels(inside):
    """Key of the knowledge base's flag that looks most like this one."""
    keys, looks = flags()
    found = pictures.features(Image.fromarray(inside.astype(np.uint8)))
    return keys[int(pictures.distances(found[None], looks)[0].argmin())]


@functools.cache
def titles():
    knowledge = (TASKS.parent / "data" / "knowledge.jsonl").read_text(encoding="utf-8").splitlines()
    return {article["title"]: article["key"] for article in map(json.loads, knowledge)}


def label_from_pixels(image, mask):
    """`red circle` or `flag of Japan`: what a box shows, the mask being what is not ground."""
    if len(np.unique(image[mask], axis=0)) > 1:
        key = flag_from_pixels(image[1:-1, 1:-1])
        (title,) = [title for title, other in titles().items() if other == key]
        return f"flag of {title}"
    inside = image[mask][0]
    colour = min(RGB, key=lambda name: np.abs(inside - RGB[name]).sum())
    return f"{colour} {shape_from_pixels(mask)}"


# All sets


def test_sizes_ids_and_splits():
    assert len({row["id"] for _, row in ROWS}) == len(ROWS)
    for task in SETS:
        assert Counter(row["split"] for row in of(task)) == {"train": 48, "test": 12}
        assert set(Counter(row["question_type"] for row in of(task)).values()) == {15}
    files = [path for path in TASKS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1.5e6
    assert {path.name for path in files if path.suffix == ".jsonl"} == {f"{task}.jsonl" for task in SETS}


def test_every_picture_is_shown_by_one_row():
    shown = [name for _, row in ROWS for name in names_of(row)]
    on_disk = {str(path.relative_to(TASKS / "images")) for path in (TASKS / "images").rglob("*.png")}
    assert len(shown) == len(set(shown)) and set(shown) == on_disk
    assert {Image.open(TASKS / "images" / name).mode for name in shown} == {"RGB"}
    for name in shown:
        height, width, _ = pixels(name).shape
        assert 140 <= width <= 260 and 80 <= height <= 240


def test_no_picture_is_on_both_sides():
    """By content; of two screenshots both together, since a window alone can come back."""
    split = defaultdict(set)
    for _, row in ROWS:
        shown = b"".join(pixels(name).tobytes() for name in names_of(row))
        split[hashlib.sha256(shown).hexdigest()].add(row["split"])
    assert all(len(sides) == 1 for sides in split.values())


@pytest.mark.parametrize("task", SETS)
def test_rows_parse_and_only_mixed_files_name_methods(task):
    for row in of(task):
        sample = sample_of(task, row)
        assert len(sample.images) == (2 if task == "gui" else 1)
        assert sample.answers == (answer(row),)
        assert ("accu_reward_method" in row) == (task == "choice")
        assert sample.turns[-1][1].startswith("<image>")


@pytest.mark.parametrize("task", SETS)
def test_own_answers_score_1_and_others_less(task):
    """Under the task's method: a row's own answer, none, and that of the next row of its kind that has another."""
    for row in of(task):
        sample = sample_of(task, row)
        others = [answer(other) for other in of(task, row["question_type"]) if answer(other) != answer(row)]
        assert score(answer(row), sample) == 1.0
        assert score("", sample) == 0.0
        assert score(others[0], sample) < (0.9 if task == "rec" else 1.0)


def test_building_again_gives_the_committed_files(tmp_path):
    """Rows to the letter, twice the same bytes, and the committed pictures but for what another version of the type renderer changes."""
    build_tasks.build(tmp_path / "one")
    build_tasks.build(tmp_path / "two")
    names = sorted(str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*.*"))
    assert names == sorted(str(path.relative_to(TASKS)) for path in TASKS.rglob("*.*"))
    assert filecmp.cmpfiles(tmp_path / "one", tmp_path / "two", names, shallow=False)[0] == names
    for name in names:
        if name.endswith(".jsonl"):
            assert (tmp_path / "one" / name).read_text("utf-8") == (TASKS / name).read_text("utf-8")
        else:
            drawn = np.asarray(Image.open(tmp_path / "one" / name).convert("RGB")).astype(int)
            assert np.abs(drawn - pixels(name.removeprefix("images/"))).mean() < 2


# Scenes


@pytest.mark.parametrize("task", ["rec", "ovd", "math", "choice"])
def test_objects_are_what_the_pixels_show(task):
    """Everything that is not the ground is a listed thing, which touches all four sides of its box, in its colour and form."""
    for row in of(task):
        if "objects" not in row:
            assert task == "math"
            continue
        image = pixels(row["image"])
        stuff = (image != image[0, 0]).any(axis=2)
        pieces, number = ndimage.label(ndimage.binary_fill_holes(stuff))
        found = {(across.start, down.start, across.stop, down.stop) for down, across in ndimage.find_objects(pieces)}
        assert found == {tuple(thing["bbox_2d"]) for thing in row["objects"]} and number == len(row["objects"])
        for thing in row["objects"]:
            left, top, right, bottom = thing["bbox_2d"]
            assert 0 < left < right < image.shape[1] and 0 < top < bottom < image.shape[0]
            assert thing["label"] == label_from_pixels(image[top:bottom, left:right], stuff[top:bottom, left:right])


def test_a_phrase_fits_one_thing():
    for row in of("rec"):
        assert question(row) == f"Where is {row['phrase']}?"
        (box,) = [thing["bbox_2d"] for thing in row["objects"] if fits(thing, row)]
        assert json.loads(answer(row)) == {"bbox_2d": box}


def fits(thing, row):
    """Whether the row's phrase can mean this thing, judged by labels and boxes alone."""
    words = row["phrase"].split()
    if row["question_type"] in ("attribute", "flag"):
        return thing["label"] == " ".join(words[1:])
    which, shape = words[1:]
    alike = [other["bbox_2d"] for other in row["objects"] if other["label"].endswith(f" {shape}")]
    if thing["bbox_2d"] not in alike:
        return False
    assert len(alike) == (2 if which in ("larger", "smaller") else 3)
    rest = [box for box in alike if box != thing["bbox_2d"]]
    left, top, right, bottom = thing["bbox_2d"]
    if which in ("larger", "smaller"):
        side, other = right - left, rest[0][2] - rest[0][0]
        return side >= 1.4 * other if which == "larger" else other >= 1.4 * side
    return {
        "leftmost": all(left < box[0] and left + right + 30 <= box[0] + box[2] for box in rest),
        "rightmost": all(right > box[2] and left + right - 30 >= box[0] + box[2] for box in rest),
        "topmost": all(top < box[1] and top + bottom + 30 <= box[1] + box[3] for box in rest),
        "bottommost": all(bottom > box[3] and top + bottom - 30 >= box[1] + box[3] for box in rest),
    }[which]


def test_referents_have_rivals():
    """No phrase can be settled by one of its words: another thing has its colour, another its shape."""
    for row in of("rec", "attribute"):
        colour, shape = row["phrase"].split()[1:]
        labels = [thing["label"] for thing in row["objects"]]
        assert sum(label.startswith(f"{colour} ") for label in labels) > 1
        assert sum(label.endswith(f" {shape}") for label in labels) > 1
    for row in of("rec", "flag"):
        assert sum(thing["label"].startswith("flag of ") for thing in row["objects"]) == 3


def test_no_fixed_box_is_worth_much():
    """Mean IoU of the whole picture, its middle, and the box that the training rows have on average."""

    def iou(a, b):
        across = max(0, min(a[2], b[2]) - max(a[0], b[0]))
        down = max(0, min(a[3], b[3]) - max(a[1], b[1]))
        area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
        return across * down / (area - across * down)

    targets = [json.loads(answer(row))["bbox_2d"] for row in of("rec")]
    sizes = [Image.open(TASKS / "images" / row["image"]).size for row in of("rec")]
    mean = np.mean(targets, axis=0)
    assert np.mean([iou(box, (0, 0, *size)) for box, size in zip(targets, sizes, strict=True)]) < 0.1
    middle = [(w / 4, h / 4, 3 * w / 4, 3 * h / 4) for w, h in sizes]
    assert np.mean([iou(box, one) for box, one in zip(targets, middle, strict=True)]) < 0.15
    assert np.mean([iou(box, mean) for box in targets]) < 0.15


def test_detections_are_the_things_asked_for():
    nothing = 0
    for row in of("ovd"):
        asked = question(row).removeprefix("Find every thing of these kinds: ").removesuffix(".").split(", ")
        assert asked == row["asked"] and len(set(asked)) == len(asked)
        wanted = [thing for thing in row["objects"] if thing["label"] in asked]
        nothing += not wanted
        assert wanted == json.loads(answer(row)) if wanted else answer(row) == "None"
        assert len(wanted) < len(row["objects"])  # something that nobody asks for is always there
    assert nothing == 8
    several = of("ovd", "several")
    assert all(len({thing["label"] for thing in json.loads(answer(row))}) == 2 for row in several)
    assert all(len(row["asked"]) == 3 for row in several)


# Choices


def test_the_right_option_is_the_only_right_one():
    for row in of("choice", "flag", "missing"):
        options = dict(re.findall(r"^([A-D])\. (.+)$", question(row), re.MULTILINE))
        assert len(set(options.values())) == 4 and row["accu_reward_method"] == "mcq"
        shown = {thing["label"].removeprefix("flag of ") for thing in row["objects"]}
        there = {letter for letter, value in options.items() if value in shown}
        assert answer(row) in options
        assert {answer(row)} == (there if row["question_type"] == "flag" else set(options) - there)


def test_yes_and_no():
    for row in of("choice", "there", "larger"):
        assert row["accu_reward_method"] == "yes_no"
        if row["question_type"] == "there":
            label = re.fullmatch(r"Is there an? (.+)\?", question(row)).group(1)
            yes = label in {thing["label"] for thing in row["objects"]}
            words = " ".join(thing["label"] for thing in row["objects"]).split()
            assert set(label.split()) <= set(words)  # neither colour nor shape alone decides
        else:
            one, two = re.fullmatch(r"Is the (.+) larger than the (.+)\?", question(row)).groups()
            first, second = box_of(row, one), box_of(row, two)
            ratio = (first[2] - first[0]) / (second[2] - second[0])
            assert max(ratio, 1 / ratio) >= 1.25
            yes = ratio > 1
        assert answer(row) == ("yes" if yes else "no")


def test_answers_cannot_be_guessed():
    """The most frequent answer of each kind of question, over both splits."""
    for task, kind, most in [
        ("choice", "flag", 4 / 15),
        ("choice", "missing", 4 / 15),
        ("choice", "there", 8 / 15),
        ("choice", "larger", 8 / 15),
        ("gui", "click", 8 / 15),
        ("gui", "fault", 5 / 15),
        ("gui", "difference", 4 / 15),
        ("gui", "move", 4 / 15),
        ("math", "expression", 2 / 15),
        ("math", "equation", 3 / 15),
        ("math", "count", 4 / 15),
        ("math", "figure", 2 / 15),
    ]:
        counts = Counter(answer(row) for row in of(task, kind))
        assert counts.most_common(1)[0][1] <= most * 15, (task, kind, counts)


# Mathematics


def number(text):
    """A whole number or a fraction from a row's answer."""
    match = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", text)
    return Fraction(f"{match[1]}{match[2]}/{match[3]}") if match else Fraction(int(text))


def test_expressions_and_equations():
    for row in of("math", "expression"):
        product = re.fullmatch(r"(\d+) \* (\d+) ([+-]) (\d+)", row["text"])
        if product:
            a, b, c = int(product[1]), int(product[2]), int(product[3] + product[4])
            assert number(answer(row)) == a * b + c
        else:
            first, second = row["text"].split(" + ")
            assert number(answer(row)) == Fraction(first) + Fraction(second)
    whole = 0
    for row in of("math", "equation"):
        a, b, c = map(int, re.fullmatch(r"(\d+)x \+ (\d+) = (-?\d+)", row["text"]).groups())
        x = number(answer(row))
        assert a * x + b == c
        whole += x.denominator == 1
    assert whole == 8


def test_counts_and_shares():
    forms = {
        "circles": "circle",
        "squares": "square",
        "triangles": "triangle",
        "diamonds": "diamond",
        "crosses": "cross",
    }
    for row in of("math", "count"):
        labels = [thing["label"] for thing in row["objects"]]
        many = re.fullmatch(r"How many (\w+) are there\?", question(row))
        if many:
            assert int(answer(row)) == sum(label.endswith(forms[many[1]]) for label in labels)
        else:
            colour = re.match(r"What fraction of all shapes is (\w+)\?", question(row))[1]
            share = Fraction(sum(label.startswith(f"{colour} ") for label in labels), len(labels))
            assert 0 < share < 1 and number(answer(row)) == share


def test_figures():
    for row in of("math", "figure"):
        a, b = row["sides"]
        if "area" in question(row):
            assert int(answer(row)) == a * b
        elif "perimeter" in question(row):
            assert int(answer(row)) == a + a + b + b
        else:
            outer, inner = re.fullmatch(r"(\d*)(?:\\sqrt\{(\d+)\})?", answer(row)).groups()
            inner = int(inner or 1)
            assert int(outer or 1) * sqrt(inner) == pytest.approx(sqrt(a * a + b * b), rel=1e-12)
            assert not any(inner % (n * n) == 0 for n in range(2, isqrt(inner) + 1))


# Screenshots


def changed_controls(row):
    """Labels of the check boxes in which the two screenshots differ; any other difference is "elsewhere"."""
    before, after = map(pixels, row["image"])
    different = (before != after).any(axis=2)
    changed = set()
    for control in row["controls"]:
        left, top, right, bottom = control["bbox_2d"]
        if different[top:bottom, left:right].any():
            changed.add(control["label"])
            different[top:bottom, left:right] = False
    return changed | ({"elsewhere"} if different.any() else set())


def test_clicks_and_faults():
    for row in of("gui", "click", "fault"):
        clicked = re.search(r'check box "([\w ]+)"', question(row))[1]
        changed = changed_controls(row)
        assert clicked == row["clicked"] and len(changed) <= 1 and "elsewhere" not in changed
        if row["question_type"] == "click":
            assert answer(row) == ("yes" if changed == {clicked} else "no")
        elif changed:
            assert answer(row) == ("no fault" if changed == {clicked} else "wrong control")
        else:
            assert answer(row) == "no response"


def test_differences():
    for row in of("gui", "difference"):
        assert changed_controls(row) == {answer(row)}


def test_moves():
    """The button is what has the title bar's colour below it."""
    for row in of("gui", "move"):
        assert changed_controls(row) == {"elsewhere"}
        middles = []
        for name in row["image"]:
            image = pixels(name)
            down, across = np.nonzero((np.abs(image - image[12, 12]).sum(axis=2) < 6)[30:])
            middles.append((across.mean(), down.mean()))
        right, down = np.subtract(middles[1], middles[0])
        assert min(abs(right), abs(down)) < 1 and max(abs(right), abs(down)) > 5
        found = ("right" if right > 0 else "left") if abs(right) > abs(down) else ("down" if down > 0 else "up")
        assert answer(row) == found
