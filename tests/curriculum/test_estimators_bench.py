"""The replay of recorded groups: scores by hand, nothing forecast from what it is scored on, and the script from end to end."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.data.jsonl import Rows

PATH = Path(__file__).parents[2] / "bench" / "estimators.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_estimators", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


FAMILY, SIZE = 6, 240  # samples of an entity; in all


def edges():
    """Samples of an entity are neighbours, and more weakly those of the next entity."""
    entity = np.arange(SIZE) // FAMILY
    same = (entity[:, None] == entity) & ~np.eye(SIZE, dtype=bool)
    following = (entity[:, None] + 1) % (SIZE // FAMILY) == entity
    rows, columns = np.nonzero(same | following)
    return rows, columns, np.where(same, 1.0, 0.2)[rows, columns]


@pytest.fixture(scope="module")
def data(bench):
    graph = SampleGraph.from_edges([str(i) for i in range(SIZE)], np.zeros(SIZE, np.uint64), *edges(), recipe={})
    return bench.Data(graph, np.arange(SIZE) % 2, np.arange(SIZE) // FAMILY, np.ones((2, SIZE), np.float32))


def run(bench, steps=120, seed=0):
    """Groups of a run whose entities differ in difficulty; half way the level moves."""
    generator = np.random.default_rng(seed)
    chance = generator.beta(0.8, 0.8, SIZE // FAMILY)[np.arange(SIZE) // FAMILY]
    row = np.concatenate([generator.choice(SIZE, 4, replace=False) for _ in range(2 * steps)])
    values = (generator.random((len(row), 8)) < chance[row, None]).astype(float)
    values[generator.random(values.shape) < 0.05] = np.nan
    draw = np.arange(2 * steps).repeat(4)
    return bench.Groups(
        levels=("1", "2"),
        step=draw // 2,
        draw=draw,
        row=row,
        level=(draw >= steps).astype(int),
        exploration=generator.random(len(row)) < 0.3,
        probe=np.zeros(len(row), bool),
        hit=np.ones(len(row), bool),
        recorded=np.full(len(row), 0.5),
        values=values,
    )


def test_scores_by_hand(bench):
    found = bench.scores(np.array([0.8, 0.4]), np.array([[1, 0], [0, np.nan]]))
    assert found["log_loss"] == pytest.approx(-(np.log(0.8) + np.log(0.2) + np.log(0.6)) / 3)
    assert found["brier"] == pytest.approx((0.04 + 0.64 + 0.16) / 3)
    assert found["auc"] == pytest.approx(
        0.75
    )  # the success at .8 wins against the failure at .4 and ties with that at .8
    # Half a success is half a success and half a failure: log 2, a tie with itself.
    half = bench.scores(np.array([0.5]), np.array([[0.5]]))
    assert half == {"log_loss": pytest.approx(np.log(2)), "brier": 0, "auc": 0.5}
    certain = bench.scores(np.array([0.0]), np.array([[1.0]]))
    assert certain["log_loss"] == pytest.approx(-np.log(0.001)) and np.isnan(certain["auc"])
    assert all(np.isnan(list(bench.scores(np.zeros(0), np.zeros((0, 2))).values())))


def test_first_forecasts_know_nothing(bench, data):
    forecasts = bench.replay(run(bench, steps=3), data, 200.0, 0.25)
    for name, values in forecasts.items():
        assert (values[:8] == (0 if name == "paper" else 0.5)).all(), name


def test_baselines_by_hand(bench, data):
    groups = run(bench, steps=2)
    groups.row[:8] = [0, 1, 2, 3, 6, 7, 8, 9]
    groups.row[8:12] = [0, 5, 6, 120]
    groups.level[:] = 0
    groups.values[:] = np.nan
    groups.values[:8, :4] = np.array([1, 1, 0, 0, 1, 0, 0, 0])[:, None]
    found = bench.replay(groups, data, np.inf, 1.0)
    everywhere = 12.5 / 33
    assert found["global"][8:12] == pytest.approx(everywhere)
    # Even samples: 0, 2, 6, 8 with 8 of 16 rollouts; odd ones: 4 of 16.
    even, odd = (8 + 20 * everywhere) / 36, (4 + 20 * everywhere) / 36
    assert found["stratum"][8:12] == pytest.approx([even, odd, even, even])
    # 0 and its entity: 0..3 and those of the next entity, 6..9; 6 has only its own; 120 has nobody.
    assert found["nearest"][8:12] == pytest.approx([3 / 8, 3 / 8, 1 / 4, everywhere])


@pytest.mark.parametrize("hide", [False, True])
def test_no_forecast_knows_its_own_or_later_outcomes(bench, data, hide):
    groups, changed = run(bench, steps=40), run(bench, steps=40)
    if hide:
        hidden = data.entities % 4 == 0
        touched = hidden[groups.row]
        same = touched | (groups.step < 0)  # forecasts of hidden rows don't move when their outcomes do
    else:
        hidden, touched = None, groups.step >= 20
        same = groups.step <= 20
    changed.values[touched] = 1 - changed.values[touched]
    before = bench.replay(groups, data, 200.0, 0.25, hidden)
    after = bench.replay(changed, data, 200.0, 0.25, hidden)
    for name in before:
        np.testing.assert_array_equal(before[name][same], after[name][same])
        assert hide or (before[name][~same] != after[name][~same]).any()


def test_probes_are_forecast_and_never_seen(bench, data):
    groups = run(bench, steps=40)
    groups.probe[:] = groups.draw % 5 == 0
    changed = run(bench, steps=40)
    changed.probe[:] = groups.probe
    changed.values[groups.probe] = 1 - changed.values[groups.probe]
    before, after = (bench.replay(one, data, 200.0, 0.25) for one in (groups, changed))
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    found = bench.judge(groups, data, 200.0, 0.25, folds=2)
    assert found["groups"]["probe"] == groups.probe.sum() and found["groups"]["hidden"] == (~groups.probe).sum()


def test_level_change_keeps_a_share(bench, data):
    groups = run(bench, steps=10)
    groups.level[:] = (groups.step >= 9).astype(int)
    kept, forgotten = (bench.replay(groups, data, np.inf, carry)["global"] for carry in (0.25, 0.0))
    before = groups.step < 9
    n, s = (~np.isnan(groups.values[before])).sum(), np.nansum(groups.values[before])
    assert kept[~before] == pytest.approx((s / 4 + 0.5) / (n / 4 + 1))
    assert (forgotten[~before] == 0.5).all()


def test_estimates_that_use_the_graph_are_better_where_it_tells(bench, data):
    found = bench.judge(run(bench), data, 200.0, 1.0, folds=4)
    assert found["groups"]["exploration"] + found["groups"]["curriculum"] == found["groups"]["hidden"] == 960
    for part in ("exploration", "curriculum"):
        own = found["scores"][part]
        assert own["posterior"]["log_loss"] < own["stratum"]["log_loss"] - 0.1
        assert own["posterior"]["log_loss"] < own["nearest"]["log_loss"]
        assert own["posterior"]["brier"] < own["paper"]["brier"]
        assert own["posterior"]["auc"] > 0.75
        assert own["recorded"]["brier"] == pytest.approx(0.25) and own["recorded"]["auc"] == 0.5
    # Difficulties of different entities are independent here: without an entity's own observations nothing can be told.
    assert found["scores"]["hidden"]["posterior"]["auc"] < 0.6


def test_the_script(bench, tmp_path, monkeypatch, capsys):
    kinds = ("templated", "automatic")
    with open(tmp_path / "rows.jsonl", "w") as file:
        for i in range(SIZE):
            turns = [{"from": "human", "value": f"Which is {i}?"}, {"from": "gpt", "value": "a"}]
            row = {"id": f"r{i}", "conversations": turns, "question_type": kinds[i % 2], "entity": f"e{i // FAMILY}"}
            evidence = {"evidence": f"e{i}#0", "candidates": [f"e{(i + i % 3) % SIZE}#0"]}
            file.write(json.dumps(row | evidence) + "\n")
    rows = Rows.open([str(tmp_path / "rows.jsonl")], [], None)
    SampleGraph.from_edges(rows.ids, rows.hashes, *edges(), recipe={}).save(tmp_path / "graph.npz")
    groups = run(bench, steps=30)
    with open(tmp_path / "observations.jsonl", "w") as file:
        for i in range(len(groups.row)):
            record = {"step": int(groups.step[i]), "draw": int(groups.draw[i]), "row": 7, "id": f"r{groups.row[i]}"}
            record |= {"level": "retrieved", "exploration": bool(groups.exploration[i]), "importance": 1.0}
            record |= {"forecast": 0.25, "hit": bool(groups.row[i] % 3 == 0)}
            record["values"] = [None if np.isnan(value) else value for value in groups.values[i].tolist()]
            file.write(json.dumps(record) + "\n")
    given = {
        name: str(tmp_path / file)
        for name, file in (
            ("observations", "observations.jsonl"),
            ("graph", "graph.npz"),
            ("data_file_paths", "rows.jsonl"),
        )
    }
    monkeypatch.setattr(
        sys, "argv", ["estimators.py", *(part for name in given for part in (f"--{name}", given[name]))]
    )
    bench.main()
    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert set(found["scores"]) == {"exploration", "curriculum", "hidden"}
    assert set(found["scores"]["exploration"]) == {"global", "stratum", "nearest", "paper", "posterior", "recorded"}
    assert found["groups"]["exploration"] == groups.exploration.sum()
    assert found["rollouts"]["hidden"] == (~np.isnan(groups.values)).sum()
    seen = groups.values[groups.exploration]
    assert found["scores"]["exploration"]["recorded"]["brier"] == pytest.approx(
        np.nanmean((seen - 0.25) ** 2), abs=1e-4
    )
    assert sum("posterior" in line for line in table) == 3
