from dataclasses import replace

import pytest
from evaluation_rows import sample

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.published import (
    PUBLISHED,
    Conditions,
    Published,
    comparison_lines,
    comparisons,
    joined,
    measured_conditions,
    of_a_draw,
    read_conditions,
    refuse_contradictions,
    why_not,
)

FULL = Conditions("exact match only, no BEM", "test", "2_hop,templated", 1, 2_000_000, "CLIP", 5, 0.472)
OURS = {"lenient": {"all": {"score": 30.0, "count": 2}, "single_hop": {"score": 40.0, "count": 1}, "types": {}}}


def test_figures_stand_side_by_side_only_if_all_conditions_are_known_and_the_same():
    assert why_not(FULL, FULL) is None
    assert why_not(FULL, replace(FULL, recall=0.4724)) is None  # published with one decimal
    assert why_not(FULL, replace(FULL, question_types="templated, 2_hop")) is None
    assert why_not(FULL, replace(FULL, judge="BEM")) == "judge: ours exact match only, no BEM, theirs BEM"
    assert why_not(replace(FULL, split=None), FULL) == "ours unknown: split"
    assert why_not(FULL, replace(FULL, recall=0.5, split=None)) == (
        "theirs unknown: split; recall: ours 0.472, theirs 0.5"
    )


def test_a_comparable_figure_is_printed_beside_ours():
    fair = Published("A", "evqa", {"all": 31.5}, FULL)
    other = Published("B", "evqa", {"all": 99.0}, replace(FULL, judge="BEM"))
    elsewhere = Published("C", "infoseek", {"mean": 99.0}, FULL)
    found = comparisons({"evqa": OURS}, {"evqa": FULL}, {}, [fair, other, elsewhere])
    assert found["comparable"] == [
        {"benchmark": "evqa", "figure": "all", "system": "A", "published": 31.5, "ours": 30.0}
    ]
    assert comparison_lines(found) == [
        "evqa all: 30.0, A (published) 31.5",
        "not comparable on evqa: B (judge: ours exact match only, no BEM, theirs BEM)",
    ]


def test_what_is_stated_of_published_figures_makes_them_comparable_or_is_refused():
    known = Published("A", "evqa", {"single_hop": 41.0}, Conditions(split="test"))
    assert comparisons({"evqa": OURS}, {"evqa": FULL}, {}, [known])["comparable"] == []
    found = comparisons({"evqa": OURS}, {"evqa": FULL}, {("A", "evqa"): FULL}, [known])
    assert (found["comparable"][0]["ours"], found["not_comparable"]) == (40.0, [])
    with pytest.raises(InputError, match="A on evqa has split 'test', not 'val'"):
        comparisons({"evqa": OURS}, {"evqa": FULL}, {("A", "evqa"): replace(FULL, split="val")}, [known])


def test_none_of_the_built_in_figures_is_comparable_without_more_being_stated():
    """All name some conditions as unknown; their systems share a line where the reason is the same."""
    full = {"evqa": FULL, "infoseek": FULL}
    found = comparisons({"evqa": OURS, "infoseek": OURS}, full, {})
    assert found["comparable"] == []
    assert all("theirs unknown" in one["reason"] for one in found["not_comparable"])
    assert sorted(system for one in found["not_comparable"] for system in one["systems"]) == sorted(
        one.system for one in PUBLISHED
    )
    assert len(found["not_comparable"]) == 4  # two benchmarks, and ReflectiVA's retriever isn't known


def test_the_published_tables():
    figures = {(one.system, one.benchmark): dict(one.figures) for one in PUBLISHED}
    assert figures["Wiki-R1 7B", "evqa"] == {"single_hop": 41.0, "all": 37.1}
    assert figures["Wiki-R1 7B", "infoseek"] == {"unseen_question": 47.8, "unseen_entity": 42.3, "mean": 44.1}
    assert figures["ReflectiVA", "infoseek"] == {"unseen_question": 40.4, "unseen_entity": 39.8, "mean": 40.1}
    assert figures["Wiki-R1 3B", "evqa"] == {"all": 35.9}
    assert figures["Wiki-R1 3B (DAPO only)", "infoseek"] == {"mean": 41.5}


def test_what_is_seen_of_our_own_conditions():
    rows = [
        sample("1", question_type="templated", data_id=1, accu_reward_method="evqa"),
        sample("1-2", question_type="templated", data_id=1, accu_reward_method="evqa"),
        sample("2", question_type="2_hop", data_id=2, accu_reward_method="evqa"),
    ]
    records = [
        {"passages": ["a#1", "b#1"], "gold_position": 2},
        {"passages": ["a#1", "b#1"], "gold_position": 0},
        {"passages": ["a#1"], "gold_position": None},
    ]
    assert measured_conditions("evqa", rows, 7, records) == Conditions(
        judge="exact match only, no BEM",
        question_types="2_hop,templated",
        images_per_question=2,
        knowledge_base_articles=7,
        recall_at=2,
        recall=0.5,
    )
    nothing = measured_conditions("evqa", rows[:1], None, [{"passages": [], "gold_position": 0}])
    assert (nothing.recall_at, nothing.recall, nothing.knowledge_base_articles) == (None, None, None)


def test_what_is_stated_may_not_contradict_what_is_seen():
    seen = Conditions(knowledge_base_articles=7)
    assert joined(seen, Conditions(split="val"), "we") == Conditions(split="val", knowledge_base_articles=7)
    with pytest.raises(InputError, match="we has knowledge_base_articles 7, not 8"):
        joined(seen, Conditions(knowledge_base_articles=8), "we")


def test_contradictions_are_found_before_anything_is_answered():
    rows = [sample("1", accu_reward_method="evqa", data_id=1), sample("2", data_id=1)]
    refuse_contradictions(rows, 7, Conditions(judge="exact match only, no BEM", images_per_question=1, recall=0.3), {})
    with pytest.raises(InputError, match="this evaluation has judge 'exact match only, no BEM', not 'BEM'"):
        refuse_contradictions(rows, 7, Conditions(judge="BEM"), {})
    refuse_contradictions(rows[1:], 7, Conditions(judge="BEM"), {})  # no row of a benchmark
    with pytest.raises(InputError, match="ReflectiVA on infoseek has split 'val', not 'test'"):
        refuse_contradictions([], None, Conditions(), {("ReflectiVA", "infoseek"): Conditions(split="test")})


def test_the_file_of_conditions(tmp_path):
    path = tmp_path / "conditions.yaml"
    path.write_text(
        "ours: {split: val, retriever: CLIP}\npublished:\n  ReflectiVA:\n    infoseek: {recall: 1, images_per_question: 1}\n"
    )
    assert read_conditions(str(path)) == (
        Conditions(split="val", retriever="CLIP"),
        {("ReflectiVA", "infoseek"): Conditions(recall=1, images_per_question=1)},
    )
    path.write_text("")
    assert read_conditions(str(path)) == (Conditions(), {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ours: [1", "is not yaml"),
        ("- 1", "a mapping with `ours` and `published` is wanted"),
        ("theirs: {}", "a mapping with `ours` and `published` is wanted"),
        ("ours: {temperature: 0}", "'temperature' is no condition; there are judge, split"),
        ("ours: {recall_at: five}", "recall_at is 'five'; a whole number is wanted"),
        ("ours: {images_per_question: true}", "images_per_question is True"),
        ("ours: 5", "a mapping is wanted, not 5"),
        ("published: {GPT: {evqa: {}}}", "no published figure of 'GPT' on 'evqa'"),
        ("published: {ReflectiVA: {viquae: {}}}", "no published figure of 'ReflectiVA' on 'viquae'"),
    ],
)
def test_files_that_are_refused(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        read_conditions(str(tmp_path / "c.yaml"))
    with pytest.raises(InputError, match="cannot be read"):
        read_conditions(str(tmp_path / "none.yaml"))


def test_a_draw_of_rows_stands_beside_no_figure_of_the_whole_split():
    assert why_not(of_a_draw(FULL, 30), FULL) == "split: ours test (30 rows drawn by --limit), theirs test"
    assert of_a_draw(replace(FULL, split=None), 30).split is None


def test_a_figure_that_we_have_no_question_for_is_left_out():
    ours = {"lenient": OURS["lenient"] | {"single_hop": {"score": None, "count": 0}}}
    found = comparisons({"evqa": ours}, {"evqa": FULL}, {}, [Published("A", "evqa", {"all": 1, "single_hop": 2}, FULL)])
    assert [one["figure"] for one in found["comparable"]] == ["all"]
    assert comparison_lines(found) == ["evqa all: 30.0, A (published) 1.0"]
