import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.answer import normalise, numbers
from open_r1_kivqa.rewards.methods import METHODS, check_methods, score


def sample(answers, method="default", answer_type=None, solution=None):
    first = solution if solution is not None else answers[0] if isinstance(answers, list) else str(answers["range"][0])
    row = {
        "id": "1",
        "conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": first}],
        "answers": answers,
    }
    if answer_type is not None:
        row["answer_type"] = answer_type
    return parse_row(row, image_folder="", reward_method=method, source="rows.jsonl:1")


@pytest.mark.parametrize(
    "text, form",
    [
        ("  The  Eiffel\u00a0Tower. ", "eiffel tower"),
        ("Côte d'Ivoire", "cote divoire"),
        ("Co\u0302te d’Ivoire", "cote divoire"),  # decomposed, curly apostrophe
        ("São Tomé & Príncipe", "sao tome and principe"),
        ("Guinea–Bissau", "guinea bissau"),
        ("Straße", "strasse"),
        ("İstanbul", "istanbul"),
        ("U.S.A.", "usa"),
        ("Ｆｕｌｌ width", "full width"),
        ("1,234,567", "1234567"),
        ("1.5", "1.5"),
        ("15", "15"),
        ("−5", "-5"),
        ("5–7", "5 7"),
        ("٣٤", "34"),
        ("10²", "10^2"),
        ("km²", "km2"),
        ("2½", "2 1⁄2"),
        ("hepatitis A", "hepatitis a"),
        ("an apple", "apple"),
        ("A", "a"),
        ("हिन्दी", "हिन्दी"),  # vowel signs are no accents
        ("\u0301", ""),
        ("…?!", ""),
        ("", ""),
    ],
)
def test_normalise(text, form):
    assert normalise(text) == form


@pytest.mark.parametrize(
    "text, values",
    [
        ("", []),
        ("none", []),
        ("1000", [1000]),
        ("1,000", [1000]),
        ("1 000", [1000]),
        ("1\u202f000\u00a0000", [1000000]),
        ("1'000", [1000]),
        ("1’000", [1000]),
        ("1.000.000", [1000000]),
        ("1.000", [1]),
        ("12,34,567.5", [1234567.5]),
        ("0,125", [0.125]),
        ("0.5", [0.5]),
        (".5", [0.5]),
        ("1,5", [1.5]),
        ("-5", [-5]),
        ("−5", [-5]),
        ("minus 5", [-5]),
        ("-$5", [-5]),
        ("5-7", [5, 7]),
        ("5–7", [5, 7]),
        ("5 - 7", [5, 7]),
        ("5%-7%", [5, 7]),
        ("1e3", [1000]),
        ("1.5E-3", [0.0015]),
        ("1.2×10⁶", [1200000]),
        ("3 x 10^-2", [0.03]),
        ("10⁶", [1000000]),
        ("½", [0.5]),
        ("2½", [2.5]),
        ("2 ½", [2.5]),
        ("1.4 million", [1400000]),
        ("2 Billion people", [2e9]),
        ("1e3 million", [1e9]),
        ("345 km²", [345]),
        ("345 km2", [345]),
        ("5 kg m⁻²", [5]),
        ("CO₂", []),
        ("3rd", [3]),
        ("١٢٣٤", [1234]),
        ("１２３", [123]),
        ("١٬٢٣٤٫٥", [1234.5]),
        ("₹5", [5]),
        ("25 December 1990", [25, 1990]),
        ("In 1990, 3000", [1990, 3000]),
        ("12:30", [12, 30]),
        ("1e999", [math.inf]),
    ],
)
def test_numbers(text, values):
    assert numbers(text) == values


def test_a_division_by_zero_equals_nothing():
    assert math.isnan(numbers("1⁄0")[0])
    assert score("1⁄0", sample(["0"], "numeric")) == 0.0


@pytest.mark.parametrize(
    "answer, answers, right",
    [
        ("paris", ["Paris", "City of Light"], 1.0),
        ("the city of light!", ["Paris", "City of Light"], 1.0),
        ("Paris, France", ["Paris"], 0.0),
        ("Paris / Rome", ["Paris"], 0.0),
        ("15", ["1.5"], 0.0),
        ("5", ["-5"], 0.0),
        ("", ["Paris"], 0.0),
        ("?!", ["?!"], 0.0),  # nothing is left to compare
        ("A", ["A"], 1.0),
    ],
)
def test_exact(answer, answers, right):
    assert score(answer, sample(answers, "exact")) == right


@pytest.mark.parametrize(
    "answer, right",
    [
        ("10", 1.0),
        ("12", 1.0),
        ("12.01", 0.0),
        ("about 11 km", 1.0),
        ("10-12", 1.0),
        ("9-12", 0.0),
        ("12-10", 0.0),
        ("10 or 11", 0.0),
        ("10/11", 0.0),
        ("10; 11", 0.0),
        ("11 | unknown", 0.0),
        ("11 km/h", 1.0),
        ("10, 11, 12", 0.0),
        ("In 1990, 11", 0.0),
        ("unknown", 0.0),
        ("", 0.0),
        ("11 " + "word " * 31, 1.0),
        ("11 " + "word " * 32, 0.0),
    ],
)
def test_numeric_range(answer, right):
    assert score(answer, sample({"range": [10, 12]})) == right


def test_no_number_is_not_zero():
    assert score("unknown", sample({"range": [-1, 1]})) == 0.0
    assert score("0", sample({"range": [-1, 1]})) == 1.0


@pytest.mark.parametrize(
    "answer, answers, right",
    [
        ("1,400,000", ["1.4 million"], 1.0),
        ("1.4", ["1.4 million"], 0.0),
        ("1 000", ["1000"], 1.0),
        ("-5", ["5"], 0.0),
        ("1000 or 2000", ["1000"], 0.0),
        ("1000 2000", ["1000"], 0.0),
        ("10 to 12 cm", ["10–12 cm"], 1.0),
        ("10", ["10–12 cm"], 0.0),
        ("3 or 4", ["3 or 4"], 1.0),
        ("5", ["five", "5"], 1.0),
        ("none", ["five", "5"], 0.0),
    ],
)
def test_numeric_aliases(answer, answers, right):
    assert score(answer, sample(answers, "numeric")) == right


def test_default_follows_the_reference():
    assert score("1000", sample(["1,000.0"], answer_type="Numerical")) == 1.0
    assert score("1000", sample(["1,000.0"])) == 0.0
    assert score("1000", sample(["1,000"])) == 1.0
    assert score("1000", sample({"range": [900, 1100]}, answer_type="String")) == 1.0


def test_a_method_that_does_not_apply_gives_none():
    assert score("5", sample({"range": [1, 9]}, "exact")) is None
    assert score("5", sample(["five"], "numeric")) is None
    assert score("5", replace(sample(["five"], "exact"), answers=())) is None


def test_check_methods_names_the_known_ones():
    check_methods(METHODS)
    with pytest.raises(InputError, match="'ecact'; known are default, exact, numeric"):
        check_methods(["exact", "ecact"])


PIECES = st.sampled_from(
    [
        "½",
        "1 000",
        "٣",
        "-",
        "e",
        "⁄0",
        "×10⁹",
        "é",
        "e\u0301",
        " million",
        "\x00",
        "{",
        '"',
        ".",
        ",",
        "9" * 50,
        "²",
        "\ud800",
        "or",
    ]
)
SAMPLES = [
    sample(["Paris"]),
    sample(["5"], "numeric"),
    sample({"range": [0, 1]}),
    sample(["x"], "numeric"),
    sample({"range": [0, 1]}, "exact"),
]


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_no_answer_raises(text):
    assert [score(text, one) in ((0.0, 1.0) if i < 3 else (None,)) for i, one in enumerate(SAMPLES)] == [True] * 5


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_normalised_text_has_single_spaces(text):
    once = normalise(text)
    assert once == once.strip() and "  " not in once


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_reads_what_python_writes(value):
    assert numbers(repr(value)) == [value]
    assert numbers(f"{value:,}") == [value]


@pytest.mark.parametrize(
    "text",
    [
        "9" * 10**5,
        "1 " * 30_000,
        "1,000" * 20_000,
        "[" * 10**5,
        "a1" * 30_000,
        "-" * 10**5,
        "²" * 10**5,
        "minus" + " " * 10**5,
    ],
)
def test_huge_answers_end(text):
    for one in SAMPLES:
        score(text, one)
    numbers(text)
