import itertools

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards.choice import mcq, options_of, yes_no

CITIES = {"A": "Paris", "B": "Rome", "C": "New York", "D": "Buenos Aires"}


def sample(answers, question="Which one?", **fields):
    row = {"id": "1", "conversations": [{"from": "human", "value": question}], "answers": answers, **fields}
    return parse_row(row, image_folder="", reward_method="mcq", source="rows.jsonl:1")


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "b",
        "(B)",
        "[B]",
        "B)",
        "B.",
        "b)",
        " B \n",
        "**B**",
        "**B.**",
        "`B`",
        "'B'",
        '"B"',
        r"\boxed{B}",
        r"$\boxed{\text{B}}$",
        r"\text{B}",
        r"\(\text{(B)}\)",
        r"A is tempting, but \boxed{B}",
        "Paris?\n\\boxed{B}",
        "B, not A",
        "Ｂ",
        "（Ｂ）",
        "answer is B",
        "The answer is (B).",
        "the correct answer is: B",
        "Answer: B",
        "The correct option is B.",
        "Option B",
        "option b",
        "Choice (B)",
        "I think the answer is B.",
        "It shows the Colosseum, so B",
        "B is correct.",
        "B: Rome",
        "B. Rome",
        "(B) Rome",
        "B) the Rome",
        "B - Rome",
        "B Rome",
        "B, Rome",
        "Rome",
        "rome.",
        "The answer is Rome.",
        "The answer is (B) Rome.",
        "B. It is a city in Italy.",
        "I see a dome, hence (B)",
        "Based on the image, the capital is Rome, so the correct choice is B.",
        r"The final answer is: $\boxed{B}$. I hope it is correct.",
        "B is right because Rome is in Italy.",
        "(B) Rome, because of the Colosseum.",
        "**Answer:** B",
        "_B_",
        "“B”",
        "The answer is\n\nB",
        "B。",
        "答案是B",
    ],
)
def test_one_option_in_any_form(answer):
    assert mcq(answer, sample(["B"], options=CITIES)) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "A",
        "C: Rome",  # letter and text disagree
        "A: Rome",
        "A, Rome",
        "B or Paris",
        "Paris, so B",
        "A vs B",
        "A-B",
        "A->B",
        "A xor option B",
        "B: Paris",
        "A or B",
        "B or A",
        "A, B",
        "B B A",
        "AB",
        "(A) (B)",
        "A/B",
        "A B C D",
        "B and C",
        "B, maybe C",
        "B. Or C.",
        "The answer is B or C",
        "The answer is B. No, C.",
        "Option B or option C",
        r"\boxed{A} \boxed{B}",
        "not B",
        "It isn't B.",
        "Paris or Rome",
        "Rome Rome",
        "E",
        "(E)",
        "Boring",
        "a bus",
        "b-movie",
        "f(B)",
        "U.S.B.",
        "B" * 5000,
        "Rome" + " " * 5000,
    ],
)
def test_no_option_or_several_or_another(answer):
    assert mcq(answer, sample(["B"], options=CITIES)) == 0.0


FORMS = ["{}", "({})", "{}.", "**{}**", "Option {}", "The answer is {}", "[{}]", r"\text{{{}}}", "Answer: {}"]
BETWEEN = [
    " or ",
    ", ",
    " ",
    "/",
    "; ",
    "\n",
    ". ",
    " and ",
    " | ",
    ". No, ",
    " (or ",
    " -> ",
    "... actually ",
    " vs ",
    "&",
    "–",
]


def test_two_options_in_any_two_forms_are_wrong():
    one = sample(["B"], options=CITIES)
    for first, between, second in itertools.product(FORMS, BETWEEN, FORMS):
        for letters in ("AB", "BA", "BD"):
            answer = first.format(letters[0]) + between + second.format(letters[1])
            assert mcq(answer, one) == 0.0, answer


@pytest.mark.parametrize("answer", ["A dog", "A small dog on a hill", "a", "I", "I see A dog", "The answer is a dog"])
def test_articles_are_no_choices(answer):
    assert mcq(answer, sample(["A"], options=["cat", "horse", "bird"])) == float(answer == "a")


@pytest.mark.parametrize("answer", ["I think it is a cat", "I", "I am sure"])
def test_the_pronoun_is_no_choice(answer):
    assert mcq(answer, sample(["I"], options=list("0123456789"))) == float(answer == "I")


def test_a_choice_before_a_verb_is_no_article():
    for answer in (
        "A is right",
        "A because of the ears",
        "Option A",
        "The answer is a",
        "The answer is A because it barks",
    ):
        assert mcq(answer, sample(["A"], options=["dog", "cat"])) == 1.0


@pytest.mark.parametrize(
    "reference", ["B", "b", "(B)", "B.", "B. Rome", "(B) Rome", "Rome", r"\boxed{B}", "The answer is B.", "Ｂ"]
)
def test_a_reference_in_any_form(reference):
    one = sample([reference], options=CITIES)
    assert [mcq(answer, one) for answer in ("B", "(B)", "Rome", "C", "Paris", "B or C")] == [1, 1, 1, 0, 0, 0]


def test_a_reference_that_explains_itself_without_known_options():
    assert mcq("C", sample(["C. Vitamin B"])) == 1.0
    assert mcq("B", sample(["C. Vitamin B"])) == 0.0


def test_a_reference_that_names_several():
    one = sample(["A, C"], options=CITIES)
    assert [mcq(answer, one) for answer in ("A, C", "C and A", "AC", "A", "(A) (C)", "A, B, C")] == [1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("reference", ["A dog", "Lisbon", "?", "C major", "42"])
def test_a_reference_that_names_none_does_not_apply(reference):
    assert mcq("A", sample([reference])) is None
    assert mcq("A", sample({"range": [1, 2]})) is None


def test_letters_without_known_options():
    assert mcq("(J)", sample(["J"])) == 1.0
    assert mcq("A or J", sample(["J"])) == 0.0
    assert mcq("K", sample(["K"])) is None
    assert mcq("K", sample(["K"], options=list("0123456789x"))) == 1.0


def test_texts_that_are_letters():
    one = sample(["C"], options=["X", "Y", "A"])  # the letter A is the text of C
    assert [mcq(answer, one) for answer in ("C", "A", "C. A", "X")] == [1, 0, 1, 0]


def test_texts_that_hold_letters():
    one = sample(["B"], options={"A": "Vitamin C", "B": "Vitamin A", "C": "A"})
    assert [
        mcq(answer, one) for answer in ("Vitamin A", "B: Vitamin A", "Vitamin C", "The answer is (B) vitamin A.")
    ] == [1, 1, 0, 1]


def test_a_text_that_begins_like_a_letter():
    one = sample(["A. Lincoln"], options=["G. Washington", "B. Franklin", "A. Lincoln", "T. Jefferson"])
    assert [mcq(answer, one) for answer in ("C", "A. Lincoln", "C: A. Lincoln", "A", "A: G. Washington")] == [
        1,
        1,
        1,
        0,
        0,
    ]


ABC = {"A": "a cat", "B": "the dog", "C": "none of these"}


@pytest.mark.parametrize(
    "question, options",
    [
        ("What is it?\nA. a cat\nB. the dog\nC. none of these", ABC),
        ("What is it?\n(A) a cat\n(B) the dog\n(C) none of these\nAnswer with the letter.", ABC),
        ("What is it?\nA) a cat\nB) the dog\nC) none of these\n\nAnswer with (A) and so on.", ABC),
        ("<b>What is it?\n**A:** a cat\n**B:** the dog\n**C:** none of these", ABC),
        ("What is it? A. a cat B. the dog C. none of these. Answer with the letter.", ABC),
        ("What is it? (A) a cat (B) the dog (C) none of these", ABC),
        ("What is it? (A)a cat, (B)the dog, (C)none of these", ABC),
        ("What is it? A) a cat; B) the dog; C) none of these", ABC),
        ("What is it? Options: A: a cat, B: the dog, C: none of these", ABC),
        ("What is it?\na) a cat\nb) the dog\nc) none of these", ABC),
        ("What is it?\nＡ．a cat\nＢ．the dog\nＣ．none of these", ABC),
        ("What is it?\nA.a cat\nB.the dog\nC.none of these", ABC),
        ("Is vitamin A. in it?", {}),
        ("Which plan, A or B?", {}),
        ("", {}),
    ],
)
def test_options_from_the_question(question, options):
    assert options_of(sample(["A"], question or "?")) == options


def test_options_from_the_row():
    assert options_of(sample(["A"], options=["Paris", 12, None])) == {"A": "Paris", "B": "12", "C": "None"}
    assert options_of(sample(["A"], options=["A. Paris", "B. Rome"])) == {"A": "Paris", "B": "Rome"}
    assert options_of(sample(["A"], options={"a": "Paris", " B ": "Rome", "note": "x"})) == {"A": "Paris", "B": "Rome"}
    assert options_of(sample(["A"], "A. x B. y", options=7)) == {"A": "x", "B": "y"}


@pytest.mark.parametrize(
    "answer, says",
    [
        ("Yes", "yes"),
        ("no.", "no"),
        ("Yes, it is.", "yes"),
        ("No, it is not.", "no"),
        ("**Yes**", "yes"),
        (r"\boxed{yes}", "yes"),
        (r"$\boxed{\text{No}}$", "no"),
        ("The answer is yes.", "yes"),
        ("The answer is: No", "no"),
        ("No dog is here.", "no"),
        ("Yes, there is no dog", "yes"),
        ("Ｙｅｓ", "yes"),
        ("yes yes", "yes"),
        ("", None),
        ("I do not know", None),
        ("unknown", None),
        ("none", None),
        ("no idea", None),
        ("I have no idea", None),
        ("There is no-one", None),
        ("yes and no", None),
        ("yes or no", None),
        ("yes/no", None),
        ("The answer is no or yes", None),
        ("The answer is no because it barks", "no"),
        ("I would say no it isn't", "no"),
        ("a yes-no question", None),
        ("No. Yes.", None),
        ("Yes? No!", None),
        ("not yes", None),
        ("true", None),
        ("yesterday", None),
        ("yes " * 5000, None),
    ],
)
def test_yes_no(answer, says):
    assert [yes_no(answer, sample([word])) for word in ("yes", "No.")] == [float(says == "yes"), float(says == "no")]


def test_true_and_false_where_the_reference_says_so():
    assert [yes_no(answer, sample(["True"])) for answer in ("true.", "false", "yes", "not true", "true or false")] == [
        1,
        0,
        0,
        0,
        0,
    ]


def test_yes_no_of_other_references_does_not_apply():
    for answers in (["Paris"], ["not sure"], ["no idea"], {"range": [0, 1]}):
        assert yes_no("no", sample(answers)) is None
    assert yes_no("no", sample(["Paris", "No, never."])) == 1.0
