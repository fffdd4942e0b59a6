import pytest
from evaluation_rows import capital_row, knowledge, sample
from PIL import Image

from open_r1_kivqa.evaluation.predict import predict, quoted, score_texts
from open_r1_kivqa.evaluation.shown import prompt_hash
from open_r1_kivqa.knowledge.context import choose_passages
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template

TEMPLATE = load_template("kivqa")
RIGHT = "<think>capital of France: Paris</think><answer>Paris</answer>"


@pytest.fixture
def kb(tmp_path):
    return knowledge(tmp_path)


@pytest.fixture
def picture(tmp_path):
    """picture(key) -> path of a picture of its own colour."""

    def path(key):
        Image.new("RGB", (8, 8), (ord(key[0]), ord(key[1]), 0)).save(tmp_path / f"{key}.png")
        return str(tmp_path / f"{key}.png")

    return path


def run(samples, setting, kb, answer=RIGHT, level="retrieved"):
    """The records and the prompts they came from."""
    prompts = []

    def generate(given):
        prompts.extend(given)
        return [answer] * len(given)

    prompting = Prompting(TEMPLATE, seed=0, kb=kb, level=level, num_passages=3)
    return predict(samples, setting, prompting, generate=generate), prompts


def blocks(prompt):
    return [block for message in prompt for block in message["content"]]


def texts(prompt):
    return "\n".join(block["text"] for block in blocks(prompt) if block["type"] == "text")


def images(prompt):
    return [block["image"] for block in blocks(prompt) if block["type"] == "image"]


def test_a_record_holds_what_was_shown_answered_and_scored(kb, picture):
    row = capital_row("fr", id="7", images=(picture("fr"),), split="s")
    (record,), (prompt,) = run([row], "normal", kb)
    assert record.pop("prompt_hash") == prompt_hash(prompt)
    assert record == {
        "id": "7",
        "split": "s",
        "setting": "normal",
        "question_type": "capital",
        "entity": "fr",
        "prediction": RIGHT,
        "answer_strict": "Paris",
        "answer_lenient": "Paris",
        "correct_strict": 1.0,
        "correct_lenient": 1.0,
        "format": True,
        "pick": True,
        "copy": True,
        "passages": ["fr#capital", "it#capital", "no#capital"],
        "image_paths": [picture("fr")],
        "gold_rank": 1,
        "gold_position": 1,
    }
    assert images(prompt) == [picture("fr")] and "capital of Italy: Rome" in texts(prompt)


def test_settings_change_images_and_passages(kb, picture):
    rows = [capital_row(key, id=key, images=(picture(key),)) for key in ("fr", "it")]
    france, italy = picture("fr"), picture("it")
    shown = {}
    for setting in ("no_image", "wrong_image", "no_passages", "gold_only", "gold_removed"):
        records, prompts = run(rows, setting, kb)
        shown[setting] = (images(prompts[0]), [key[:2] for key in records[0]["passages"]])
        assert records[0]["image_paths"] == images(prompts[0]) and records[0]["setting"] == setting
        assert "<image>" not in texts(prompts[0]) and "Which capital?" in texts(prompts[0])
    assert shown == {
        "no_image": ([], ["fr", "it", "no"]),
        "wrong_image": ([italy], ["fr", "it", "no"]),
        "no_passages": ([france], []),
        "gold_only": ([france], ["fr"]),
        "gold_removed": ([france], ["it", "no"]),
    }


def test_a_setting_without_level_of_its_own_keeps_the_evaluations_level(kb):
    row = capital_row("fr")
    (record,), _ = run([row], "no_image", kb, level="2")
    assert sorted(record["passages"]) == ["fr#capital", "it#capital"]


def test_strict_and_lenient_answers_are_both_scored():
    row = sample("1", answer="Paris")
    late, nothing = score_texts(["I think.\nParis", ""], [row, row])
    assert (late["answer_strict"], late["answer_lenient"]) == (None, "Paris")
    assert (late["correct_strict"], late["correct_lenient"], late["format"]) == (0.0, 1.0, False)
    assert nothing["correct_lenient"] == 0.0


@pytest.mark.parametrize(
    ("think", "answer", "pick", "copy"),
    [
        ("capital of France: Paris", "Paris", True, True),
        ("The flag has stripes.\nCapital of  FRANCE: Paris.", "paris", True, True),  # the last line, word by word
        ("capital of Italy: Rome", "Rome", False, True),  # another passage
        ("capital of France: Rome", "Rome", False, True),  # stands nowhere
        ("capital of France: Paris", "Rome", True, False),
        ("capital of", "of", False, True),  # stands in other passages too
        ("capital of France: Par", "Par", False, True),  # no whole word
        ("It is France, and its capital is Paris", "Paris", False, True),  # no colon: the words at the end
        ("It is France, and its capital is Paris", "aris", False, False),
        ("", "Paris", False, False),
    ],
)
def test_pick_and_copy(kb, think, answer, pick, copy):
    row = capital_row("fr")
    passages = choose_passages(row, kb, level="retrieved", num_passages=3, seed=0, draw=None)
    text = f"<think>{think}</think><answer>{answer}</answer>"
    assert quoted(text, row, passages, kb, TEMPLATE) == {"pick": pick, "copy": copy}


def test_without_gold_shown_the_quote_is_compared_with_the_evidence(kb):
    row = capital_row("fr")
    assert quoted(RIGHT, row, [], kb, TEMPLATE) == {"pick": True, "copy": True}
    others = choose_passages(row, kb, level="gold_removed", num_passages=3, seed=0, draw=None)
    assert quoted(RIGHT.replace("Paris", "Rome"), row, others, kb, TEMPLATE)["pick"] is False


def test_without_knowledge_base_or_evidence_there_is_nothing_to_pick(kb):
    assert quoted(RIGHT, capital_row("fr"), [], None, TEMPLATE) == {"pick": None, "copy": None}
    assert quoted(RIGHT, sample("1"), [], kb, TEMPLATE) == {"pick": None, "copy": True}


def test_a_quote_without_reasoning_tags_is_none(kb):
    assert quoted("Paris", capital_row("fr"), [], kb, TEMPLATE) == {"pick": False, "copy": False}
