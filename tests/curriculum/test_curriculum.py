"""The curriculum without a trainer: draws, levels and weights from outcomes; its state; what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.curriculum.build import build_curriculum, refuse_unfit_flags
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError

SIZE, GROUP = 60, 4


@pytest.fixture
def rows(tmp_path):
    """Sixty rows of two question types in two files; the second half has no evidence among its candidates."""
    paths = []
    for name, numbers in (("a", range(40)), ("b", range(40, SIZE))):
        lines = [
            {
                "id": f"row-{n}",
                "conversations": [{"from": "human", "value": f"What? {n}"}, {"from": "gpt", "value": "yes"}],
                "question_type": f"type-{n % 2}",
                "evidence": [f"x{n}#1"],
                "candidates": [*([f"x{n}#1"] if n < 30 else []), "y#1", "y#2", "y#3"],
            }
            for n in numbers
        ]
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Rows.open([str(path) for path in paths], [], None)


@pytest.fixture
def graph(rows, tmp_path):
    """Rows of a question type are neighbours."""
    edges = [(i, j) for i in range(SIZE) for j in range(SIZE) if i != j and i % 2 == j % 2]
    path = tmp_path / "graph.npz"
    SampleGraph.from_edges(
        np.array(rows.ids), rows.hashes, *map(np.array, zip(*edges, strict=True)), np.ones(len(edges)), {}
    ).save(path)
    return str(path)


def build(rows, knowledge_base=True, **flags):
    settings = CurriculumArguments(curriculum=True, **{"curriculum_window": 24, **flags})
    return build_curriculum(
        settings,
        rows,
        context_level="retrieved",
        num_passages=3,
        has_knowledge_base=knowledge_base,
        group_size=GROUP,
        seed=5,
    )


def play(curriculum, steps, chance, first=0, count=8):
    """Steps of a run whose rollouts are right with chance(row, level); returns the rows drawn and the levels they were shown at."""
    drawn = []
    for step in range(first, first + steps):
        batch = curriculum.draw(count)
        generator = np.random.default_rng([step, 9])
        chances = np.array([chance(row, batch.level) for row in batch.rows.tolist()])
        values = (generator.random((count, GROUP)) < chances[:, None]).astype(float)
        hit = np.array([batch.level != "retrieved" or row < 30 for row in batch.rows.tolist()])
        curriculum.observe(step, batch, values, np.ptp(values, axis=1) > 0, hit, np.zeros(count, dtype=int))
        curriculum.end_step(step + 1)
        drawn.append((batch.rows.tolist(), batch.level))
    return drawn


def test_levels_rise_with_the_model_and_the_estimate_follows(rows, graph):
    curriculum = build(rows, curriculum_graph=graph, curriculum_levels="1,2,retrieved")
    drawn = play(curriculum, 40, lambda row, level: {"1": 0.9, "2": 0.7, "retrieved": 0.3}[level])
    levels = [level for _, level in drawn]
    assert levels[:3] == ["1"] * 3 and levels[-1] == "retrieved" and sorted(set(levels)) == ["1", "2", "retrieved"]
    assert abs(curriculum.estimate.mean.mean() - 0.3) < 0.12
    metrics = curriculum.metrics()
    assert metrics["curriculum/level"] == 2 and metrics["curriculum/lag"] == 0
    assert {"curriculum/draws/a", "curriculum/draws/b", "curriculum/hit_mean", "curriculum/miss_mean"} <= set(metrics)
    assert 0 < metrics["curriculum/brier"] < 0.3 and metrics["curriculum/coverage"] == 1


def test_what_is_seen_of_some_rows_tells_of_their_neighbours(rows, graph):
    """Rows of type 1 are always right. After two batches most rows are unseen; the graph knows the type all the same, beyond the stratum."""
    curriculum = build(rows, curriculum_graph=graph, curriculum_levels="", curriculum_balance="none")
    play(curriculum, 2, lambda row, level: float(row % 2))
    unseen = np.flatnonzero(~curriculum.difficulty.observed)
    assert len(unseen) > SIZE / 2
    mean = curriculum.estimate.mean
    assert mean[unseen[unseen % 2 == 1]].min() > mean[unseen[unseen % 2 == 0]].max()


def test_the_other_ranks_only_follow_the_level(rows):
    leader = build(rows, curriculum_levels="1,2")
    settings = leader.settings
    other = build_curriculum(
        settings,
        rows,
        context_level="retrieved",
        num_passages=3,
        has_knowledge_base=True,
        group_size=GROUP,
        seed=5,
        leads=False,
    )
    for step in range(4):
        batch = leader.draw(8)
        for one in (leader, other):
            ones = np.ones((8, GROUP))
            one.observe(step, batch, ones, np.zeros(8, dtype=bool), np.ones(8, dtype=bool), np.zeros(8, dtype=int))
            one.end_step(step + 1)
    assert leader.level == other.level == "2"
    assert other.difficulty.rollouts.sum() == 0


def test_the_other_ranks_read_no_row(rows, monkeypatch):
    def read(*args):
        raise AssertionError("a row was read")

    monkeypatch.setattr(Rows, "__getitem__", read)
    settings = CurriculumArguments(curriculum=True, curriculum_window=24)
    flags = {
        "context_level": "retrieved",
        "num_passages": 3,
        "has_knowledge_base": True,
        "group_size": GROUP,
        "seed": 5,
    }
    assert build_curriculum(settings, rows, **flags, leads=False).level == "1"
    with pytest.raises(AssertionError, match="a row was read"):
        build_curriculum(settings, rows, **flags)


@pytest.mark.parametrize("flags", [{}, {"curriculum_estimate": "paper"}, {"curriculum_balance": "question_type"}])
def test_a_loaded_state_goes_on_the_same(rows, graph, flags, tmp_path):
    flags = {"curriculum_graph": graph, "curriculum_half_life": 5.0, **flags}

    def chance(row, level):
        return (row % 7) / 6

    whole = build(rows, **flags)
    play(whole, 6, chance)
    whole.save(tmp_path / "state.npz")
    wanted = play(whole, 6, chance, first=6)
    again = build(rows, **flags)
    assert again.load(tmp_path / "state.npz") == ""
    assert play(again, 6, chance, first=6) == wanted
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value, err_msg=name)


def test_state_of_another_order_of_the_same_rows(rows, graph, tmp_path):
    first = build(rows)
    play(first, 6, lambda row, level: 0.5)
    first.save(tmp_path / "state.npz")
    turned = rows.subset(range(SIZE - 1, -1, -1))
    second = build(turned)
    assert second.load(tmp_path / "state.npz") == ""
    np.testing.assert_array_equal(second.difficulty.rollouts, first.difficulty.rollouts[::-1])
    np.testing.assert_allclose(second.estimate.mean, first.estimate.mean[::-1], rtol=1e-12)


def test_a_missing_or_damaged_state(rows, tmp_path):
    curriculum = build(rows)
    with pytest.raises(InputError, match="of a run without a curriculum"):
        curriculum.load(tmp_path / "curriculum.npz")
    curriculum.save(tmp_path / "curriculum.npz")
    whole = (tmp_path / "curriculum.npz").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros(3))
    broken = whole[:60] + bytes(20) + whole[80:]  # inside a compressed array
    for damaged in (whole[: len(whole) // 2], b"", b"no npz at all", (tmp_path / "array.npy").read_bytes(), broken):
        (tmp_path / "curriculum.npz").write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            curriculum.load(tmp_path / "curriculum.npz")


def test_a_file_that_is_no_state_or_of_another_version(rows, graph, tmp_path):
    curriculum = build(rows)
    with pytest.raises(InputError, match="graph.npz is no state of a curriculum, since it lacks levels/level"):
        curriculum.load(Path(graph))
    whole = curriculum.state_dict()
    for name in ("format", "ids", "levels/means", "difficulty/n", "drawer/number", "scores/forecast"):
        np.savez(tmp_path / "part.npz", **{other: value for other, value in whole.items() if other != name})
        with pytest.raises(InputError, match=f"lacks {name}"):
            curriculum.load(tmp_path / "part.npz")
    np.savez(tmp_path / "newer.npz", **{**whole, "format": np.array(2)})
    with pytest.raises(InputError, match="has the format 2, and this version reads 1"):
        curriculum.load(tmp_path / "newer.npz")


def test_another_estimator_goes_on_from_what_was_counted(rows, graph, tmp_path):
    """What it knows at once is what it makes of the counts as of the last observation, which was at step 5."""

    def chance(row, level):
        return (row % 7) / 6

    for before, after in (("posterior", "paper"), ("paper", "posterior")):
        first = build(rows, curriculum_graph=graph, curriculum_estimate=before, curriculum_levels="")
        play(first, 6, chance)
        first.save(tmp_path / "state.npz")
        second = build(rows, curriculum_graph=graph, curriculum_estimate=after, curriculum_levels="")
        second.load(tmp_path / "state.npz")
        fresh = build(rows, curriculum_graph=graph, curriculum_estimate=after, curriculum_levels="")
        expected = fresh.estimator.update(first.difficulty.counts(5), fresh.shown.hit_share[0])
        np.testing.assert_array_equal(second.estimate.mean, expected.mean)
        assert len(play(second, 3, chance, first=6)) == 3


def test_a_run_that_leaves_the_graph_out_forgets_the_neighbours(rows, graph, tmp_path):
    first = build(rows, curriculum_graph=graph)
    play(first, 6, lambda row, level: float(row % 2))
    first.save(tmp_path / "state.npz")
    second = build(rows)
    second.load(tmp_path / "state.npz")
    alone = build(rows)
    np.testing.assert_array_equal(
        second.estimate.mean, alone.estimator.update(first.difficulty.counts(6), alone.shown.hit_share[0]).mean
    )
    again = build(rows, curriculum_graph=graph)  # and one that takes it up again has them back
    second.save(tmp_path / "state.npz")
    again.load(tmp_path / "state.npz")
    play(again, 1, lambda row, level: float(row % 2), first=6)
    unseen = np.flatnonzero(~again.difficulty.observed)
    mean = again.estimate.mean
    assert mean[unseen[unseen % 2 == 1]].min() > mean[unseen[unseen % 2 == 0]].max()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"curriculum_window": SIZE + 1}, "--curriculum_window 61 is larger than the data, 60 rows"),
        ({"knowledge_base": False}, "there is no --knowledge_base"),
        ({"knowledge_base": False, "curriculum_levels": "3"}, "--curriculum_levels 3 .* there is no --knowledge_base"),
        ({"curriculum_estimate": "paper", "curriculum_weighting": "variance"}, "--curriculum_weighting variance"),
        ({"curriculum_graph": "none.npz"}, "none.npz"),
        ({"curriculum_exploration": 0.05}, "--curriculum_exploration 0.05"),
        ({"curriculum_max_draws": 0}, "--curriculum_max_draws 0"),
    ],
)
def test_refusals_before_training(rows, flags, message):
    with pytest.raises(InputError, match=message):
        build(rows, **flags)


def test_a_graph_of_other_rows_is_refused_and_of_more_rows_taken(rows, graph):
    with pytest.raises(InputError, match="built of other rows"):
        part = rows.subset(range(10))
        SampleGraph.from_edges(np.array(part.ids), part.hashes, np.array([0]), np.array([1]), np.array([1.0]), {}).save(
            graph
        )
        build(rows, curriculum_graph=graph)
    assert build(rows.subset(range(10)), curriculum_graph=graph, curriculum_window=8).level == "1"


def test_a_window_may_be_larger_where_there_is_no_level_to_rise_to(rows):
    assert build(rows, curriculum_levels="", curriculum_window=10_000).level == "retrieved"


def test_a_warning_when_few_rows_take_all_draws(rows):
    curriculum = build(rows, curriculum_sigma=0.01, curriculum_levels="")
    assert curriculum.warning() is None
    weights = np.zeros(SIZE)
    weights[:3] = 1
    curriculum.drawer.set_weights(weights)
    assert "effective sample size" in curriculum.warning() and "--curriculum_sigma" in curriculum.warning()
    other = build(rows, curriculum_weighting="teaching", curriculum_levels="")
    other.drawer.set_weights(weights)
    assert "Raise --curriculum_exploration." in other.warning()  # sigma would be refused


def test_under_which_names_draws_are_logged(rows, tmp_path):
    def names(rows, **flags):
        curriculum = build(rows, **flags)
        curriculum.draw(8)
        metrics = curriculum.metrics()
        assert "curriculum/exploration" in metrics and "curriculum/lag" in metrics
        return [name.removeprefix("curriculum/draws/") for name in metrics if "draws/" in name]

    assert names(rows) == ["a", "b"]
    assert names(rows, curriculum_balance="question_type") == ["type-0", "type-1"]
    assert names(rows.subset(range(40))) == []  # of one file
    paths = [tmp_path / name / "train.jsonl" for name in ("x", "y")]
    many = tmp_path / "many.jsonl"
    texts = [(tmp_path / name).read_text() for name in ("a.jsonl", "b.jsonl")]
    for path, text in zip(paths, texts, strict=True):
        path.parent.mkdir()
        path.write_text(text)
    assert names(Rows.open([str(path) for path in paths], [], None)) == [str(path) for path in paths]
    lines = [
        json.loads(line) | {"question_type": f"type-{n % 20}"} for n, line in enumerate("".join(texts).split("\n")[:-1])
    ]
    many.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert names(Rows.open([str(many)], [], None), curriculum_balance="question_type") == []  # twenty would be too many


def test_what_the_run_begins_with_is_told(rows):
    told = build(rows).describe()
    assert "levels 1 -> 2 -> 3 -> 4 -> 5 -> retrieved, now at 1" in told
    assert "60 at level 5" in told  # a gold passage and three others at most
    balanced = {"curriculum_balance": "file"}
    assert "nothing to balance: there is one file" in build(rows.subset(range(40)), **balanced).describe()
    assert "balance" not in build(rows, **balanced).describe()


def test_flags_that_do_not_fit_the_trainers():
    class Trainers:
        shuffle_dataset, save_on_each_node = True, False
        per_device_train_batch_size, steps_per_generation, num_generations = 2, 1, 4

    settings = CurriculumArguments(curriculum=True)
    refuse_unfit_flags(settings, Trainers, ["accuracy"])
    with pytest.raises(InputError, match="--dynamic_sampling_rounds 3 .*2 completions.*--num_generations 4"):
        refuse_unfit_flags(CurriculumArguments(curriculum=True, dynamic_sampling_rounds=3), Trainers, ["accuracy"])
    with pytest.raises(InputError, match="--curriculum_reset goes with --resume_from_checkpoint"):
        refuse_unfit_flags(CurriculumArguments(curriculum=True, curriculum_reset=True), Trainers, ["accuracy"])
    refuse_unfit_flags(CurriculumArguments(curriculum=True, curriculum_reset=True), Trainers, ["accuracy"], "step-1")
    with pytest.raises(InputError, match="--save_on_each_node"):
        Trainers.save_on_each_node = True
        refuse_unfit_flags(settings, Trainers, ["accuracy"])
    Trainers.save_on_each_node = False
    with pytest.raises(InputError, match="--shuffle_dataset"):
        Trainers.shuffle_dataset = False
        refuse_unfit_flags(settings, Trainers, ["accuracy"])
