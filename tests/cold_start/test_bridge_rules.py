"""Every rule by which a response is cleaned or dropped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.cold_start import rules
from open_r1_kivqa.cold_start.prompt_files import load_prompts, reword
from open_r1_kivqa.endpoint import Reply
from open_r1_kivqa.rewards.format import has_format

REWORDING = load_prompts(None).replacements


# Questions


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("What is it?", "What is it?"),
        ("What is it? Output the thinking process in <think> </think> and final answer in <answer> </answer> tags.", "What is it?"),
        ("<image>Where is the man? First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> tags. Output the final answer in JSON format.", "<image>Where is the man? Output the final answer in JSON format."),
        ("Find x.\nPut your reasoning between <think> ... </think> and the result between <answer> ... </answer>.\n", "Find x."),
        ("Where is the red ball Output the thinking process in <think> </think> tags.", "Where is the red ball"),
        ("Please use think tags.", ""),
        ("Which tag does the price tag show? Answer with a number.", "Which tag does the price tag show? Answer with a number."),
        ("Is 3 < 4? Think about it.", "Is 3 < 4? Think about it."),
        ("問題は何ですか。<think>タグを使ってください。", "問題は何ですか。"),
    ],
)  # fmt: skip
def test_without_instructions(text, plain):
    assert rules.without_instructions(text) == plain


# Refusals


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I cannot identify people in pictures.",
        "Sorry, I am unable to do this.",
        "I am very sorry, but I'm not able to answer.",
        "I cannot assist with this request.",
        "I can't identify the person in this image.",
        "**I must decline to answer this.**",
        "As an AI, I have no opinion.",
        "We are unable to comply.",
    ],
)
def test_refusals(text):
    assert rules.is_refusal(Reply(text))
    assert rules.unfit_reply(Reply(text), "description") == rules.Drop("refused", "description", text)


@pytest.mark.parametrize(
    "text",
    [
        "The sign says: I'm sorry, I can't come.",
        "Caption: a man who cannot help laughing.",
        "I can see a flag.",
        "<think>I cannot tell yet. Let me look again.</think><answer>Paris</answer>",
        "Sorry! is the title of the board game.",
    ],
)
def test_no_refusals(text):
    assert not rules.is_refusal(Reply(text))


def test_refusals_that_the_endpoint_tells():
    assert rules.unfit_reply(Reply("", refusal="No."), "reasoning") == rules.Drop("refused", "reasoning", "No.")
    filtered = rules.unfit_reply(Reply("", end="content_filter"), "pseudo_cot")
    assert filtered == rules.Drop("refused", "pseudo_cot", "ended by content_filter")


def test_cut_off():
    drop = rules.unfit_reply(Reply("", "and so on", "length"), "reasoning")
    assert drop == rules.Drop("bad_format", "reasoning_cut_off", "and so on")
    assert rules.unfit_reply(Reply("A flag."), "description") is None


# The form

RIGHT = "<think>It is a flag.</think><answer>Paris</answer>"


@pytest.mark.parametrize(
    ("text", "reasoning", "response"),
    [
        (RIGHT, "", RIGHT),
        ("<think>\nIt is a flag.\n</think>\n\n<answer> Paris </answer>\n", "", RIGHT),
        ("It is a flag.</think><answer>Paris</answer>", "", RIGHT),  # the chat template wrote <think>
        ("<answer>Paris</answer>", "It is a flag.\n", RIGHT),
        ("\n\nSo:\n\n<answer>Paris</answer>", "It is a flag.", "<think>It is a flag.\n\nSo:</think><answer>Paris</answer>"),
        ("<think>In short.</think><answer>Paris</answer>", "It is a flag.", "<think>It is a flag.\n\nIn short.</think><answer>Paris</answer>"),
        ("<answer>Paris</answer>", "<think>It is a flag.</think>", RIGHT),
        ("Paris", "", None),
        ("Paris", "It is a flag.", None),
        ("<answer>Paris</answer>", "", None),
        ("It is a flag. <answer>Paris</answer>", "", None),
        ("<think></think><answer>Paris</answer>", "", None),
        ("<think>It is a flag.</think><answer> </answer>", "", None),
        ("<think>It is a flag.</think>So <answer>Paris</answer>", "", None),
        ("<think>It is a flag.</think><answer>Paris</answer> I hope this helps.", "", None),
        ("<answer>Paris</answer> I hope this helps.", "It is a flag.", None),
        ("<think>It is a flag.</think><answer>Paris</answer><answer>Lyon</answer>", "", None),
        ("<answer>Paris</answer><answer>Lyon</answer>", "It is a flag.", None),
        ("<think>It is a <think>flag.</think><answer>Paris</answer>", "", None),
        ("</think><answer>Paris</answer>", "", None),
        ("", "It is a flag.", None),
    ],
)  # fmt: skip
def test_assemble(text, reasoning, response):
    assert rules.assemble(Reply(text, reasoning)) == response


@settings(max_examples=300, deadline=None)
@given(
    st.text(), st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", " ", "\n"])).map("".join)
)
def test_what_is_assembled_has_the_form(noise, text):
    for reply in (Reply(text), Reply(text, noise), Reply(noise, text)):
        response = rules.assemble(reply)
        assert response is None or has_format(response)


def test_a_token_of_a_model_is_no_text():
    drop = rules.malformed("<think>It <|im_end|> ends.</think><answer>Paris</answer>", Reply(""))
    assert (drop.kind, drop.rule) == ("bad_format", "model_token")
    assert rules.malformed(RIGHT, Reply("")) is None
    assert rules.malformed(None, Reply(" ", "hm")).text == "hm (and no text)"
    assert rules.malformed(None, Reply("Paris")) == rules.Drop("bad_format", "form", "Paris")


# Rewording


@pytest.mark.parametrize(
    ("text", "reworded"),
    [
        ("According to the description, it is a flag.", "As the picture shows, it is a flag."),
        ("It is, based on the given image description, blue.", "It is, as the picture shows, blue."),
        ("The description says that it is blue.", "The picture shows that it is blue."),
        ("the detailed description mentions a cross", "the picture shows a cross"),
        ("A star is mentioned in the description.", "A star can be seen in the picture."),
        ("Three bands are described in the picture description.", "Three bands can be seen in the picture."),
        ("Look at the description of the picture again.", "Look at the picture again."),
        ("From this description I take a cross.", "From the picture I take a cross."),
        ("The description in passage 2 says blue.", "The description in passage 2 says blue."),
        ("The job description is short; the caption below reads 'Sun'.", "The job description is short; the caption below reads 'Sun'."),
        ("A description follows.", "A description follows."),
    ],
)  # fmt: skip
def test_the_packages_rewording(text, reworded):
    text = reword(text, REWORDING)
    assert text == reworded
    assert rules.contradicts_the_picture(text, has_passages=True) is None


# Contradictions


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("blind", "I can't see the image, so I guess."),
        ("blind", "Since I cannot actually view the picture, I rely on memory."),
        ("blind", "I don't have an idea, as no image was provided."),
        ("blind", "Without seeing the picture it is hard to tell."),
        ("blind", "The image is not provided here."),
        ("blind", "I haven't been given any picture."),
        ("blind", "As a text-based model, I read."),
        ("source_text", "My image description mentions a cross."),
        ("source_text", "What was described to me is a cross."),
        ("source_text", "So the visual description is enough."),
        ("provided_text", "The provided text has three bands."),
        ("provided_text", "From the information given it is blue."),
    ],
)
def test_contradictions_with_the_picture(rule, text):
    drop = rules.contradicts_the_picture(text, has_passages=False)
    assert (drop.kind, drop.rule) == ("contradiction", rule) and drop.text in text


@pytest.mark.parametrize(
    "text",
    [
        "I can't see any boat in the picture.",
        "I can't see the image of a ship on the coin.",
        "The picture shows no text.",
        "There is a picture on the wall.",
        "Without the picture's frame it would be square.",
        "The description in passage 3 fits.",
        "The text in the picture says STOP.",
    ],
)
def test_what_looks_at_the_picture_stays(text):
    assert rules.contradicts_the_picture(text, has_passages=False) is None


def test_with_passages_the_provided_text_is_theirs():
    assert rules.contradicts_the_picture("The provided text names Paris.", has_passages=True) is None


@pytest.mark.parametrize(
    ("thinking", "answer", "settled"),
    [
        ("The answer is Lyon.", "Paris", "Lyon"),
        ("So the final answer is: **Lyon**.", "Paris", "Lyon"),
        ("Correct answer: Lyon", "Paris", "Lyon"),
        ("It follows \\boxed{7}.", "8", "7"),
        ("The answer should be 3.5 km. Done.", "4 km", "3.5 km"),
        ("The correct option is B", "C", "B"),
        ("So \\boxed{\\frac{1}{2}}.", "0.7", "\\frac{1}{2}"),
        ("The answer is 12.", "12 cm", None),
        ("It is Paris. The answer is based on passage 2.", "Paris", None),
        ("The answer is clear. It has to be so.", "Paris", None),
        ("First I thought the answer is Lyon. No: the answer is Paris.", "Paris", None),
        ("The answer is Lyon. Wait, the flag is another one. It must be Paris.", "Paris", None),
        ("The answer is the city on the Seine, Paris.", "paris", None),
        ("The answer is clear: Paris.", "Paris", None),
        ("The answer is not Lyon. It is Paris.", "Paris", None),
        ("The answer is 1,234 people.", "1234", None),
        ("It is Lyon.", "Paris", None),  # nothing that says so
        ("", "Paris", None),
    ],
)
def test_settled_answer(thinking, answer, settled):
    assert rules.settled_answer(thinking, answer) == settled


# Texts of any kind


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_rule_raises(text):
    rules.without_instructions(text)
    rules.is_refusal(Reply(text))
    rules.settled_answer(f"The answer is {text}", "Paris")
    rules.contradicts_the_picture(text, has_passages=False)
    reword(text, REWORDING)


@pytest.mark.parametrize(
    "text",
    [
        "the answer is " * 5_000,
        "a" * 300_000,
        "the image picture visual " * 12_000,
        "I can't see the " * 5_000,
        "\\boxed{" * 40_000,
        "<think> tags. " * 20_000,
        "\n" * 300_000,
        "sorry " * 50_000,
        "the description" * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_texts_end_soon(text):
    """In seconds, not hours: no expression goes back and forth."""
    rules.without_instructions(text)
    rules.is_refusal(Reply(text))
    rules.settled_answer(text, "Paris")
    rules.contradicts_the_picture(text, has_passages=False)
    reword(text, REWORDING)
