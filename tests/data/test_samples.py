"""Rows: what is kept, what is refused, and what the refusal says."""

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError


def row(**changes):
    """A good row; a change to None removes the field."""
    fields = {
        "id": "q1",
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>Which city?"},
            {"from": "gpt", "value": "<think>a tower</think><answer> Paris </answer>"},
        ],
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def parse(fields, folder="/images", method=""):
    return parse_row(fields, image_folder=folder, reward_method=method, source="rows.jsonl:7")


def human(*texts):
    return [{"from": "human", "value": text} for text in texts]


def test_a_plain_row_keeps_its_fields():
    sample = parse(row(entity="Q90", split="val", question_type="city", answer_type="name", level_hint=3))
    assert sample.id == "q1"
    assert sample.images == ("/images/a.png",)
    assert sample.turns == (("user", "<image>Which city?"),)
    assert sample.question == "Which city?"
    assert sample.answer == "<think>a tower</think><answer> Paris </answer>"
    assert sample.answers == ("Paris",)
    assert (sample.entity, sample.split, sample.question_type, sample.answer_type) == ("Q90", "val", "city", "name")
    assert sample.evidence == () and sample.candidates == ()
    assert sample.source == "rows.jsonl:7"
    assert sample.row["level_hint"] == 3


def test_absent_fields():
    sample = parse({"id": 12, "conversations": human("Hello?")}, folder="")
    assert sample.id == "12"
    assert sample.images == () and sample.answer == "" and sample.answers == () and sample.entity is None
    assert (sample.split, sample.question_type, sample.answer_type) == ("", "", "")


@pytest.mark.parametrize(
    ("own", "of_file", "method"), [(None, "", "default"), (None, "exact", "exact"), ("numeric", "exact", "numeric")]
)
def test_the_rows_own_reward_method_goes_first(own, of_file, method):
    assert parse(row(accu_reward_method=own), method=of_file).reward_method == method


def test_history_and_system_turns_are_kept_in_order():
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "user", "value": "One <image>"},
        {"from": "assistant", "value": "first <image>"},
        {"from": "human", "value": "Two <image>"},
        {"from": "gpt", "value": "second"},
    ]
    sample = parse(row(image=["a.png", "b/c.png"], conversations=turns))
    assert sample.turns == (
        ("system", "Be brief."),
        ("user", "One <image>"),
        ("assistant", "first <image>"),  # not a marker: only user turns place images
        ("user", "Two <image>"),
    )
    assert sample.answer == "second" and sample.question == "Two"
    assert sample.images == ("/images/a.png", "/images/b/c.png")


def test_a_row_that_ends_with_a_question_has_no_answer():
    turns = [*human("One"), {"from": "gpt", "value": "first"}, *human("Two")]
    sample = parse(row(image=None, conversations=turns))
    assert sample.answer == "" and len(sample.turns) == 3


def test_rows_without_markers_show_their_images_first():
    turns = [{"from": "system", "value": "s"}, *human("Compare.", "Well?")]
    sample = parse(row(image=["a.png", "b.png"], conversations=turns))
    assert sample.turns == (("system", "s"), ("user", "<image><image>Compare."), ("user", "Well?"))


@pytest.mark.parametrize(
    ("image", "text"), [("a.png", "<image> <image>"), (["a.png", "b.png"], "<image>"), (None, "<image>")]
)
def test_another_number_of_markers_is_refused(image, text):
    with pytest.raises(InputError, match=r"rows.jsonl:7: \d <image> marker\(s\) .* for \d image\(s\); write"):
        parse(row(image=image, conversations=human(text)))


@pytest.mark.parametrize(
    "name",
    ["../a.png", "x/../../a.png", "/etc/passwd", "/images2/a.png", ".", "/images", "a\0.png", "../images2/a.png"],
)
def test_an_image_outside_its_folder_is_refused(name):
    with pytest.raises(InputError, match="lies outside its image folder /images"):
        parse(row(image=name))


def test_absolute_and_dotted_image_paths_inside_the_folder_are_fine():
    assert parse(row(image="/images/x/../a.png")).images == ("/images/a.png",)
    assert parse(row(image="/data/a.png"), folder="/").images == ("/data/a.png",)


def test_the_last_answer_block_is_the_default_answer():
    turns = [*human("<image>?"), {"from": "gpt", "value": "<answer>no</answer> <answer>1\n2</answer>"}]
    assert parse(row(conversations=turns)).answers == ("1\n2",)
    turns[-1] = {"from": "gpt", "value": " plain "}
    assert parse(row(conversations=turns)).answers == ("plain",)


def test_answers_and_keys():
    sample = parse(row(answers=["Paris", "City of Paris"], evidence="a#1", candidates=["a#1", "b#1"]))
    assert sample.answers == ("Paris", "City of Paris")
    assert sample.evidence == ("a#1",) and sample.candidates == (("a#1", "b#1"),)
    sample = parse(row(answers={"range": [1, 2.5]}, evidence=["a#1", "b#1"], candidates=[["a#1"], ["b#1", "a#1"]]))
    assert sample.answers == {"range": [1.0, 2.5]}
    assert sample.evidence == ("a#1", "b#1") and sample.candidates == (("a#1",), ("b#1", "a#1"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "`id` is missing; give every row"),
        ({"id": ""}, "`id` is a text"),
        ({"id": True}, "`id` is a truth value"),
        ({"id": 1.5}, "`id` is a number"),
        ({"image": ""}, "`image` is a text"),
        ({"image": [1]}, "`image` is a list"),
        ({"image": {"path": "a.png"}}, "`image` is an object"),
        ({"conversations": None}, "`conversations` is missing; write a list"),
        ({"conversations": []}, "`conversations` is a list"),
        ({"conversations": "Hello"}, "`conversations` is a text"),
        ({"conversations": [{"from": "human", "text": "Hi"}]}, "turn 1 is not of the form"),
        ({"conversations": [{"from": "robot", "value": "Hi"}]}, "turn 1 is from 'robot'; use one of human"),
        ({"conversations": [{"from": ["human"], "value": "Hi"}]}, "turn 1 is from"),
        ({"conversations": human("<image>a", " \n")}, "turn 2 is empty"),
        ({"conversations": [*human("<image>?"), {"from": "gpt", "value": ""}]}, "turn 2 is empty"),
        ({"conversations": [{"from": "gpt", "value": "Hi"}]}, "does not end with a human turn"),
        (
            {"conversations": [*human("<image>"), *[{"from": "gpt", "value": "x"}] * 2]},
            "does not end with a human turn",
        ),
        (
            {"conversations": [*human("<image>a"), {"from": "system", "value": "x"}, *human("b")]},
            "can only be the first",
        ),
        ({"conversations": human("<image> <|image_pad|>")}, r"spells the model token <\|image_pad\|>"),
        ({"conversations": human("<image> <IMG_CONTEXT>")}, "spells the model token <IMG_CONTEXT>"),
        ({"answers": []}, r"`answers` is \[\]; write a list"),
        ({"answers": "Paris"}, "`answers` is 'Paris'"),
        ({"answers": [1945]}, r"`answers` is \[1945\]"),
        ({"answers": {"range": [2, 1]}}, "low <= high"),
        ({"answers": {"range": [1]}}, "a range is"),
        ({"answers": {"range": [0, float("nan")]}}, "a range is"),
        ({"answers": {"range": [0, 10**400]}}, "a range is"),
        ({"answers": {"wikidata": 1}}, "a range is"),
        ({"evidence": [3]}, "`evidence` is a list"),
        ({"evidence": ["a#1", "a#1"]}, "names 'a#1' twice"),
        ({"candidates": "a#1"}, "`candidates` is a text"),
        ({"candidates": [["a#1"], "b#1"]}, "`candidates` is a list"),
        ({"candidates": [["a#1"], []]}, "`candidates` is a list"),
        ({"candidates": [["a#1", "b#1", "a#1"]]}, "names 'a#1' twice"),
        ({"entity": 90}, "`entity` is a number"),
        ({"split": ["val"]}, "`split` is a list"),
        ({"accu_reward_method": 1}, "`accu_reward_method` is a number"),
    ],
)
def test_a_bad_row_is_refused_by_place_and_field(changes, message):
    with pytest.raises(InputError, match="rows.jsonl:7: .*" + message):
        parse(row(**changes))


@pytest.mark.parametrize("value", [[1], "text", None, 3])
def test_a_row_must_be_an_object(value):
    with pytest.raises(InputError, match="rows.jsonl:7: a row is a JSON object"):
        parse(value)


def test_an_image_needs_a_folder():
    with pytest.raises(InputError, match="set --image_folders"):
        parse(row(), folder="")


def test_model_tokens_that_carry_no_image_and_end_no_turn_are_the_rows_own_business():
    assert parse(row(conversations=human("<image><|box_start|>(1,2)<|box_end|> <b>?</b>"))).question.startswith(
        "<|box_start|>"
    )
