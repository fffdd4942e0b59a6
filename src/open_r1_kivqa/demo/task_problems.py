"""Rows of mathematical problems, each with one exact result: a whole number, a fraction or a root."""

import math
from fractions import Fraction
from random import Random

from .task_pictures import COLOURS, GROUNDS, SHAPES, Made, draw_rectangle, draw_right_triangle, draw_text, shape_size
from .task_scenes import boxes, other, scene


def latex(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    whole = value.denominator == 1
    return str(value) if whole else rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def latex_root(square: int) -> str:
    """The square root of a whole number with the largest square taken out of it."""
    outer = max(n for n in range(1, math.isqrt(square) + 1) if square % (n * n) == 0)
    inner = square // (outer * outer)
    return str(outer) if inner == 1 else f"{outer if outer > 1 else ''}\\sqrt{{{inner}}}"


def math_expression(rng: Random, turn: int) -> Made:
    """Whole numbers, and every third time fractions."""
    if turn % 3 == 2:
        a, b = (Fraction(rng.randint(1, 4), rng.randint(5, 9)) for _ in range(2))
        text, value = f"{a} + {b}", a + b
    else:
        a, b, c = rng.randint(12, 59), rng.randint(2, 9), rng.randint(3, 48)
        sign = rng.choice("+-")
        text, value = f"{a} * {b} {sign} {c}", Fraction(a * b + (c if sign == "+" else -c))
    return [draw_text(text, rng.choice(GROUNDS))], "Calculate this.", latex(value), {"text": text}


def math_equation(rng: Random, turn: int) -> Made | None:
    """a x + b = c; every second time with a whole solution."""
    a, b, x = rng.randint(2, 9), rng.randint(1, 30), rng.randint(-6, 15)
    c = a * x + b + (rng.randint(1, a - 1) if turn % 2 and a > 2 else 0)
    solution = Fraction(c - b, a)
    if (solution.denominator == 1) == bool(turn % 2):
        return None
    text = f"{a}x + {b} = {c}"
    return [draw_text(text, rng.choice(GROUNDS))], "Solve for x.", latex(solution), {"text": text}


def math_count(rng: Random, turn: int) -> Made | None:
    """How many of a shape there are, or what share of all shapes has a colour."""
    shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
    number, rest = 1 + turn // 2 % 6, rng.randint(2, 4)
    if turn % 2:
        labels = [f"{rng.choice(list(COLOURS))} {shape}" for _ in range(number)]
        labels += [f"{rng.choice(list(COLOURS))} {other(rng, SHAPES, shape)}" for _ in range(rest)]
        question, answer = f"How many {shape}{'es' if shape == 'cross' else 's'} are there?", str(number)
    else:
        labels = [f"{colour} {rng.choice(SHAPES)}" for _ in range(number)]
        labels += [f"{other(rng, COLOURS, colour)} {rng.choice(SHAPES)}" for _ in range(rest)]
        question = f"What fraction of all shapes is {colour}? Give it in lowest terms."
        answer = latex(Fraction(number, number + rest))
    made = scene(rng, labels, [shape_size(rng, 18, 30) for _ in labels])
    return made and ([made[0]], question, answer, {"objects": boxes(made[1])})


def math_figure(rng: Random, turn: int) -> Made:
    ground = rng.choice(GROUNDS)
    a, b = rng.sample(range(2, 13), 2)
    sides = {"sides": [a, b]}
    if turn % 3 == 0:
        return [draw_rectangle(a, b, ground)], "What is the area of the rectangle?", str(a * b), sides
    if turn % 3 == 1:
        question = "How long is the perimeter of the rectangle?"
        return [draw_rectangle(a, b, ground)], question, str(2 * (a + b)), sides
    question = "How long is the longest side of the triangle?"
    return [draw_right_triangle(a, b, ground)], question, latex_root(a * a + b * b), sides
