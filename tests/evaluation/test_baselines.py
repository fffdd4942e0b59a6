import pytest
from evaluation_rows import capital_row, knowledge, sample
from PIL import Image

from open_r1_kivqa.evaluation.baselines import baselines
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template


def run(samples, kb=None, *, level="retrieved", num_passages=5, **more):
    prompting = Prompting(load_template("default"), seed=0, kb=kb, level=level, num_passages=num_passages)
    return baselines(samples, prompting, **more)


def test_chance_is_one_in_the_number_of_passages_if_gold_is_among_them(tmp_path):
    kb = knowledge(tmp_path)
    rows = [capital_row("fr", id="a", split="s"), capital_row("ne", id="b", split="s")]
    assert run(rows, kb)["s"]["chance"] == pytest.approx(1 / 4)
    assert run(rows, kb, num_passages=2)["s"]["chance"] == pytest.approx(1 / 4)  # 1/2 and, without its gold, 0
    assert run(rows, kb, level="none")["s"]["chance"] is None
    assert run([sample("c")])["all"]["chance"] is None


def test_first_is_right_where_the_first_passage_is_gold(tmp_path):
    kb = knowledge(tmp_path)
    rows = [capital_row("fr", id=str(i), candidates=order) for i, order in enumerate([("fr", "it"), ("it", "fr"), ()])]
    assert (
        run(rows[:2], kb)["all"]["first"] == run(rows, kb)["all"]["first"] == 0.5
    )  # a row without passages doesn't count
    assert run(rows, kb, level="none")["all"]["first"] is None


def colour(question_type, answer, id):
    return sample(id, answer=answer, question_type=question_type)


def test_majority_leaves_the_row_itself_out():
    rows = [colour("t", answer, str(i)) for i, answer in enumerate(["red", "Red", "red", "blue", "green"])]
    # red is the answer for everyone: right for three of five
    assert run(rows)["all"]["majority"] == pytest.approx(3 / 5)
    # each row's own answer left out, the other's is taken: never right
    assert run([colour("t", "red", "1"), colour("t", "blue", "2")])["all"]["majority"] == 0.0
    # red and blue twice each: left out, one's own is behind the other
    assert run([colour("t", answer, str(i)) for i, answer in enumerate(["red", "blue"] * 2)])["all"]["majority"] == 0.0


def test_majority_is_taken_by_question_type_and_averaged_over_types():
    rows = [colour("t", "red", "1"), colour("t", "red", "2"), colour("u", "x", "3"), colour("u", "y", "4")]
    assert run(rows)["all"]["majority"] == 0.5


def test_majority_writes_a_list_as_an_answer_does():
    fields = {"question_type": "multi_answer", "accu_reward_method": "evqa"}
    rows = [sample(str(i), answer="red, blue", answers=["red&&blue"], **fields) for i in range(2)]
    assert run(rows)["all"]["majority"] == 1.0


def test_rows_without_an_answer_teach_nothing_and_do_not_count():
    turns = [{"from": "human", "value": "What is it?"}]
    rows = [colour("t", "red", "1"), colour("t", "red", "2"), sample("3", conversations=turns, question_type="t")]
    assert rows[2].answers == () and run(rows)["all"]["majority"] == 1.0


def test_majority_of_training_rows():
    training = [colour("t", "red", "1"), colour("t", "red", "2"), colour("t", "blue", "3")]
    rows = [colour("t", "blue", "4"), colour("t", "red", "5"), colour("u", "red", "6")]
    assert run(rows, training=training)["all"]["majority"] == 0.5  # type u was never trained: it doesn't count


def test_medoid_takes_the_picture_in_the_middle(tmp_path):
    for key, level in {"fr": 100, "it": 110, "no": 90, "ne": 250}.items():
        Image.new("RGB", (24, 18), (level,) * 3).save(tmp_path / f"{key}.png")
    kb = knowledge(tmp_path, **{key: f"{key}.png" for key in ("fr", "it", "no", "ne")})
    rows = [capital_row(key, id=key, candidates=("it", "fr", "no")) for key in ("fr", "it")]
    assert run(rows[:1], kb)["all"]["medoid"] == 1.0
    assert run(rows[1:], kb)["all"]["medoid"] == 0.0
    two = [capital_row("it", candidates=("it", "fr"))]
    assert run(two, kb)["all"]["medoid"] == 0.5  # of two, each is as near


def test_medoid_finds_pictures_in_the_image_folders_and_skips_sets_without(tmp_path):
    (tmp_path / "pictures").mkdir()
    for key in ("fr", "it"):
        Image.new("RGB", (24, 18), "red").save(tmp_path / "pictures" / f"{key}.png")
    kb = knowledge(tmp_path, fr="fr.png", it="it.png", no="https://example.org/no.png")
    pair, triple = capital_row("fr", candidates=("fr", "it")), capital_row("fr", candidates=("fr", "it", "no"))
    assert run([pair], kb)["all"]["medoid"] is None
    assert run([pair], kb, image_folders=[str(tmp_path / "pictures")])["all"]["medoid"] == 0.5
    assert run([triple], kb, image_folders=[str(tmp_path / "pictures")])["all"]["medoid"] is None
