import json

import pytest

from open_r1_kivqa.demo import run
from open_r1_kivqa.errors import InputError


def test_demo_writes_its_summary_last(tmp_path, monkeypatch):
    """The whole way with one short step and few rows."""
    rows = run.EVAL.read_text(encoding="utf-8").splitlines(keepends=True)
    few = tmp_path / "eval.jsonl"
    few.write_text("".join(rows[:4] + rows[-4:]), encoding="utf-8")  # of two splits
    monkeypatch.setattr(run, "EVAL", few)
    folder = tmp_path / "demo"
    assert run.main(["--output_dir", str(folder), "--max_steps", "1", "--seed", "7"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) == {"splits", "zero_advantage_share", "wall_s"}
    assert set(summary["splits"]) == {"unseen_question", "maps"}
    for steps in summary["splits"].values():
        assert set(steps) == {"before", "after"}
        for scores in steps.values():
            assert set(scores) == {"accuracy", "no_image", "wrong_image", "pick", "copy", "format"}
            assert all(0 <= score <= 1 for score in scores.values())
    assert 0 <= summary["zero_advantage_share"] <= 1 and summary["wall_s"] > 0
    flags = json.loads((folder / "training" / "manifest.json").read_text())["flags"]
    assert flags["seed"] == 7 and flags["max_steps"] == 1
    assert flags["curriculum"] and flags["curriculum_graph"] == str(folder / "graph.npz")
    assert len((folder / "training" / "curriculum" / "observations.jsonl").read_text().splitlines()) == 8


def test_a_failing_step_leaves_no_summary(tmp_path, monkeypatch, capfd):
    run.clear(tmp_path)
    (tmp_path / "summary.json").write_text("{}")  # of an earlier demo
    config = tmp_path / "demo.yaml"
    config.write_text(run.CONFIG.read_text() + "no_such_flag: 1\n")
    monkeypatch.setattr(run, "CONFIG", config)
    monkeypatch.setattr(run, "evaluate", lambda *args: None)  # takes long and comes before the step that fails
    with pytest.raises(SystemExit) as stop:
        run.main(["--output_dir", str(tmp_path)])
    assert stop.value.code != 0
    assert not list(tmp_path.glob("summary*"))
    assert "grpo_jsonl failed" in capfd.readouterr().err


def test_what_no_demo_wrote_is_not_cleared(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.txt").touch()
    with pytest.raises(InputError, match="no demo wrote"):
        run.clear(tmp_path)
    assert (tmp_path / "training" / "mine.txt").exists()


def test_an_earlier_demo_is_cleared(tmp_path):
    folder = tmp_path / "demo"
    lock = run.clear(folder)
    (folder / "training").mkdir()
    (folder / "notes.txt").touch()
    with pytest.raises(InputError, match="is being written by another run; wait for it, or give another --output_dir"):
        run.clear(folder)
    assert (folder / "training").exists()
    lock.release()
    run.clear(folder).release()
    assert sorted(path.name for path in folder.iterdir()) == [run.MARKER, "notes.txt"]
