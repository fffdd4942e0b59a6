import pytest
from evaluation_rows import capital_row, knowledge, sample

from open_r1_kivqa.evaluation.rollouts import (
    judge_again,
    roll_out,
    row_seed,
    summarise_rollouts,
    suspect_labels,
)
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template


def answered(text):
    return f"<think>x</think><answer>{text}</answer>"


@pytest.fixture
def prompting(tmp_path):
    return Prompting(load_template("kivqa"), seed=5, kb=knowledge(tmp_path), num_passages=2)


def test_each_row_is_sampled_so_often_with_seeds_of_its_own(prompting):
    asked = []

    def sample_texts(prompts, seeds):
        asked.extend(zip(prompts, seeds, strict=True))
        return [answered(["Paris", "Rome", ""][i % 3]) for i in range(len(prompts))]

    rows = [capital_row("fr", id="f", split="s"), capital_row("it", id="i", split="s", candidates=("it", "no"))]
    records = roll_out(rows, 3, prompting, sample_texts=sample_texts)
    assert [seed for _, seed in asked] == [row_seed(5, id, j) for id in "fi" for j in range(3)]
    assert asked[0][0] == asked[2][0] != asked[3][0]
    assert len({seed for _, seed in asked}) == 6 and all(0 <= seed < 2**31 for _, seed in asked)
    assert [record["scores"] for record in records] == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert records[0]["answers"] == ["Paris", "Rome", ""]
    assert (records[0]["id"], records[0]["setting"], len(records[0]["prompt_hash"])) == ("f", "normal", 64)
    # In another company and order a row's seeds are the same.
    again = []
    roll_out(rows[1:], 2, prompting, sample_texts=lambda p, s: again.extend(s) or ["", ""])
    assert again == [seed for _, seed in asked[3:5]]


def test_a_row_without_all_its_answers_gets_no_record(prompting):
    texts = iter([answered("Paris"), None, answered("Rome"), answered("Rome")])
    rows = [capital_row("fr", id="f"), capital_row("it", id="i")]
    records = roll_out(rows, 2, prompting, sample_texts=lambda prompts, _: [next(texts) for _ in prompts])
    assert [record["id"] for record in records] == ["i"]


def record(id, answers, scores, split="s", question_type=""):
    texts = [answered(answer) for answer in answers]
    head = {"id": id, "setting": "normal", "split": split, "question_type": question_type, "entity": None}
    return head | {"texts": texts, "answers": answers, "scores": scores}


def test_averages_and_passes_are_means_over_question_types():
    records = [
        record("a", ["x"] * 4, [1.0, 0.0, 0.0, 0.0]),
        record("b", ["x"] * 4, [0.0] * 4),
        record("c", ["x"] * 4, [1.0] * 4, question_type="u"),
        record("d", ["x"] * 4, [None] * 4, question_type="u"),
        record("e", ["x"] * 4, [0.9, None, 0.5, 0.7], split=""),
    ]
    summary = summarise_rollouts(records)
    # type "": mean of .25 and 0; type u: 1, one row not scored
    assert summary["s"] == {"rows": 4, "rollouts": 4, "avg": (0.125 + 1) / 2, "pass": (0.5 + 1) / 2}
    assert summary["all"] == {"rows": 1, "rollouts": 4, "avg": pytest.approx(0.7), "pass": 0.0}
    assert summarise_rollouts([]) == {}


ZERO = [0.0] * 16


@pytest.mark.parametrize(
    ("answers", "scores", "suspect"),
    [
        (["Oslo"] * 16, ZERO, True),
        (["Oslo", "the Oslo", "OSLO!", "oslo"] * 3 + ["a", "b", "c", "d"], ZERO, True),  # 12 of 16 the same
        (["Oslo"] * 11 + list("abcde"), ZERO, False),  # 69 %
        (["Oslo"] * 16, [0.0] * 15 + [1.0], False),
        (["Oslo"] * 16, [0.0] * 15 + [None], False),  # nobody knows
        (["Oslo"] * 15, [0.0] * 15, False),  # too few
        ([None] * 16, ZERO, False),  # no answer is no agreement
        ([""] * 16, ZERO, False),
    ],
)
def test_suspect_labels(answers, scores, suspect):
    row = sample("1", question="Which capital?", answer="Kristiania")
    found = suspect_labels([record("1", answers, scores)], [row])
    assert len(found) == suspect
    if suspect:
        assert found[0]["answer"].lower().strip("!").endswith("oslo")
        assert found[0] == {
            "id": "1",
            "source": "rows.jsonl:1",
            "question": "Which capital?",
            "references": ["Kristiania"],
            "answer": found[0]["answer"],
            "share": pytest.approx(1.0 if set(answers) == {"Oslo"} else 0.75),
        }


def test_an_answer_that_only_the_official_rule_takes_is_no_suspect():
    """ "unknown" reads as 0 in InfoSeek's rule: the reference isn't wrong, the answer is a trick."""
    row = sample("1", answers={"range": [0, 2]}, accu_reward_method="infoseek")
    (one,) = roll_out(
        [row],
        16,
        Prompting(load_template("default"), seed=0),
        sample_texts=lambda prompts, _: [answered("unknown")] * 16,
    )
    assert one["scores"] == [1.0] * 16
    assert suspect_labels([one], [row]) == []


class Judge:
    def __init__(self):
        self.asked = []

    def grade(self, questions, references, answers):
        self.asked += answers
        return [None if answer == "?" else float(answer == "Oslo") for answer in answers]


def test_the_judge_is_asked_again_about_rows_without_all_verdicts():
    judged, plain = sample("1", answer="Oslo", accu_reward_method="llm"), sample("2", answer="Oslo")
    records = [record("1", ["Oslo", "?"], [None, None]), record("2", ["Oslo", "a"], [1.0, None])]
    judge = Judge()
    assert judge_again(records, [judged, plain], judge) == 1
    assert records[0]["scores"] == [1.0, None] and records[1]["scores"] == [1.0, None]
    assert set(judge.asked) == {"Oslo", "?"}
