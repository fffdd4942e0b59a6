"""Every bench runs in small, by the command that its docstring gives, and ends with the JSON object that this describes. What a GPU or an hour would show isn't looked at: a bench must not go stale."""

import ast
import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from launch import fork_ranks, run_ranks

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
HELPERS = {"demo_trainer", "grpo_bench"}  # which others import
SHAPE = ["--model", "tiny", "--prompt", 260, "--completion", 4, "--group", 2, "--repeats", 1]
ARMS = list(runpy.run_path(str(BENCH / "curriculum_effect.py"))["ARMS"])


def test_every_bench_has_its_test():
    benches = {path.stem for path in BENCH.glob("*.py")} - HELPERS
    assert {name for name in benches if f"test_{name}" not in globals()} == set()


def test_flags_that_are_quoted_exist():
    shared, quoted = (BENCH / "grpo_bench.py").read_text(), set()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *BENCH.glob("*.py")]:
        for name, flags in re.findall(r"bench/(\w+)\.py((?:\s+\[?--[^`]*?(?=`|\n\n))?)", path.read_text()):
            source = (BENCH / f"{name}.py").read_text()
            known = source + shared if "from grpo_bench import" in source else source
            assert [flag for flag in re.findall(r"--\w+", flags) if f'"{flag}"' not in known] == [], (path, name)
            quoted.add(name)
    assert {path.stem for path in BENCH.glob("*.py")} - HELPERS <= quoted


def start(name: str, *flags, how=run_ranks) -> str:
    """What `python bench/NAME.py FLAGS` prints, in a fresh process or with how=fork_ranks in one that has the libraries."""
    return how(BENCH / f"{name}.py", *map(str, flags), ranks=1).stdout


def result(name: str, *flags, how=run_ranks) -> dict:
    """The bench's last line, without NaN and infinity."""
    return json.loads(start(name, *flags, how=how).splitlines()[-1], parse_constant=pytest.fail)


def documented(name: str, indent: int = 2) -> set[str]:
    """The keys that a bench's docstring lists below "one JSON object": lines of some names, at least two spaces, and what they are."""
    text = ast.get_docstring(ast.parse((BENCH / f"{name}.py").read_text()), clean=False)
    listed = re.split(r"one\s+JSON\s+object", text)[-1]
    names = re.findall(rf"^ {{{indent}}}(\w+(?:, \w+)*)(?=  |$)", listed, re.MULTILINE)
    return {key for line in names for key in line.split(", ")}


def assert_positive(found: dict, *names: str) -> None:
    assert {name: found[name] for name in names if not found[name] > 0} == {}


# ------------------------------------------------------------------------------------------------ data and knowledge


def test_data():
    found = result("data", "--rows", 100, "--read", 50, "--images", 3)
    assert set(found) == documented("data")
    assert (found["rows"], found["articles"]) == (100, 10)
    assert_positive(found, "rows_per_s", "rows_checked_per_s", "passages_per_s", "peak_rss_mib")


def test_knowledge(tmp_path):
    found = result("knowledge", "--articles", 100, "--folder", tmp_path)
    assert set(found) == documented("knowledge") and found["articles"] == 100
    assert_positive(found, "lookup_us", "lookup_p99_us", "titles_lookup_us")
    assert found["base_rss_mib"] <= found["rss_mib"]
    assert list(tmp_path.iterdir()) == []


def test_kb_convert(tmp_path):
    found = result("kb_convert", "--megabytes", 2, "--folder", tmp_path, "--record_every", 0)
    assert set(found) == documented("kb_convert")
    assert found["megabytes"] == 2 and found["same_after_kill"] is True
    assert_positive(found, "articles", "mb_per_s", "rss_mib")


def test_kb_convert_says_when_nothing_was_killed():
    assert result("kb_convert", "--megabytes", 1, "--record_every", 600)["same_after_kill"] is None


def test_retrieval():
    found = result("retrieval", "--vectors", 2000, "--dim", 16, "--queries", 20)
    assert set(found) == documented("retrieval")
    assert (found["vectors"], found["dim"], found["queries"], found["threads"]) == (2000, 16, 20, 1)
    kinds = [f"{kind} {precision}" for kind in ("flat", "ivf", "hnsw") for precision in ("fp32", "fp16", "sq8")]
    assert list(found["indexes"]) == kinds
    for one in found["indexes"].values():
        assert set(one) == documented("retrieval", indent=4)
        assert one["recall_at_20"] > 0.95 and one["gib"] == pytest.approx(one["said_gib"], abs=1e-4)
        assert one["search_ms"] > 0
    assert found["indexes"]["flat fp32"]["recall_at_20"] == 1  # it is what others are compared with


def test_retrieval_of_one_kind():
    found = result("retrieval", "--vectors", 1000, "--dim", 8, "--queries", 5, "--only", "hnsw")
    assert list(found["indexes"]) == ["flat fp32", "hnsw fp32", "hnsw fp16", "hnsw sq8"]


# --------------------------------------------------------------------------------------------------- the curriculum


def test_graph():
    found = result("graph", "--rows", 200, "--articles", 50, "--neighbours", 10, "--threads", 1)
    assert set(found) == {key.replace("_K", "_10") for key in documented("graph")}
    assert (found["rows"], found["articles"], found["neighbours"], found["edges"]) == (200, 50, 10, 2000)
    assert 0 < found["questions"] <= 200 and found["recall_at_10"] == 1  # so few rows are compared one by one
    assert_positive(found, "seconds", "peak_rss_gib")


def test_propagation():
    flags = ["--rows", 2000, "--degree", 5, "--threads", 1, "--rounds", 1]
    found = result("propagation", *flags)
    assert set(found) == documented("propagation")
    assert (found["rows"], found["degree"], found["label_spreading_rows"]) == (2000, 5, 2000)
    assert_positive(found, "ratio_to_bandwidth", "speedup_vs_label_spreading", "update_ms", "peak_rss_mib")


def test_curriculum_overhead():
    found = result("curriculum_overhead", "--rows", 200, "--steps", 1, how=fork_ranks)
    assert set(found) == documented("curriculum_overhead")
    assert (found["rows"], found["neighbours"]) == (200, 100)
    assert 0 < found["observed_rows"] <= 3 * 8  # prompts of three steps, two of them unmeasured
    assert 0 < found["share_of_step"] < 1
    assert found["share_of_step"] * found["step_s"] == pytest.approx(found["curriculum_s"], abs=2e-4)


@pytest.fixture(scope="module")
def probed(tmp_path_factory) -> dict:
    """What bench/probe_run.py made: 4 steps of 8 prompts, and 2 answers to 4 questions at four points."""
    folder = tmp_path_factory.mktemp("probe_run")
    flags = ["--output_dir", folder, "--samples", 4, "--rollouts", 2, "--steps", 4]
    return result("probe_run", *flags, how=fork_ranks)


def test_probe_run(probed):
    assert set(probed) == documented("probe_run")
    lines = [json.loads(line) for line in Path(probed["observations"]).read_text().splitlines()]
    probes = [line for line in lines if line.get("probe")]
    assert [line["step"] for line in probes] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert len({line["id"] for line in probes}) == 4  # the same questions each time
    assert all(len(line["values"]) == 2 and set(line["values"]) <= {0, 1} for line in probes)
    assert len(lines) - len(probes) == 4 * 8


def test_estimators(probed):
    flags = [word for name, path in probed.items() for word in (f"--{name}", path)]
    found = result("estimators", *flags, "--half_life", 20, "--folds", 2, how=fork_ranks)  # as configs/demo.yaml
    assert set(found) == documented("estimators")
    groups, rollouts, scores = found["groups"], found["rollouts"], found["scores"]
    assert groups["exploration"] + groups["curriculum"] == groups["hidden"] == 32 and groups["probe"] == 16
    assert rollouts == {part: number * (2 if part == "probe" else 8) for part, number in groups.items()}
    for part, by_estimator in scores.items():
        names = ["global", "stratum", "nearest", "paper", "posterior", "recorded"]
        assert list(by_estimator) == (names[:-1] if part == "hidden" else names)
        for one in by_estimator.values():
            assert 0 <= one["log_loss"] <= -math.log(0.001) and 0 <= one["brier"] <= 1
            assert one["auc"] is None or 0 <= one["auc"] <= 1
        if part != "hidden":  # the replay forecasts what the run itself had forecast
            assert by_estimator["posterior"] == pytest.approx(by_estimator["recorded"], abs=2e-4)


EFFECT = ["--seeds", 42, "--budget", 300, "--eval_rows", 16]


@pytest.fixture(scope="module")
def effect(tmp_path_factory) -> tuple[Path, dict]:
    """The folder and the report of bench/curriculum_effect.py: each arm made in a step. All but `mixture` are forked, as the bench itself would start them; then the bench goes on from there."""
    folder = tmp_path_factory.mktemp("curriculum_effect")
    flags = [*map(str, EFFECT), "--output_dir", str(folder)]
    refused = run_ranks(BENCH / "curriculum_effect.py", *flags, "--arms", "mixture", ranks=1, check=False)
    assert refused.returncode == 1 and "mixture takes its shares from levels: add it to --arms." in refused.stderr
    for arm in ARMS:
        if arm != "mixture":
            start("curriculum_effect", *flags, "--run", arm, "42", how=fork_ranks)
    observed = folder / "levels-42" / "curriculum" / "observations.jsonl"
    lines = observed.read_text()
    assert lines.count('"level": "2"') == 8  # prompts of its one step
    # As if it had left the first levels at once.
    observed.write_text(lines.replace('"level": "2"', '"level": "retrieved"'))
    return folder, result("curriculum_effect", *flags)


def test_curriculum_effect(effect):
    folder, report = effect
    assert list(report) == ARMS
    runs = {arm: json.loads((folder / f"{arm}-42.json").read_text()) for arm in ARMS}
    start = report["uniform"]["accuracy"][0]
    for arm, found in report.items():
        assert set(found) == documented("curriculum_effect"), arm
        accuracy = found["accuracy"]
        assert found["seeds"] == [42] and len(accuracy) == 11 and all(0 <= value <= 1 for value in accuracy)
        assert accuracy[0] == start > 0  # of the same checkpoint, under the same prompts
        assert found["last_accuracy"] == pytest.approx([accuracy[-1]] * 3, abs=1e-4)
        assert found["mean_accuracy"] == pytest.approx([np.trapezoid(accuracy, dx=0.1)] * 3, abs=1e-4)
        assert all(0 <= found[name][0] <= 1 for name in ("zero_advantage", "zero_advantage_trained"))
        assert found["steps"] >= 1 and runs[arm]["tokens"] >= 300
        uses_levels = arm in ("levels", "mixture", "both")
        assert runs[arm]["levels"] == (["2", "3", "retrieved"] if uses_levels else ["retrieved"])
    shares = {arm: run["level_shares"] for arm, run in runs.items()}
    assert (shares["levels"], shares["mixture"]) == ([1, 0, 0], [0, 0, 1])  # see `effect`
    for name in ("mean_over_uniform", "gain_over_uniform"):
        assert report["uniform"][name] == [0, 0, 0]
    assert report["redraw"]["zero_advantage_trained"] == [0, 0, 0]  # which is what it draws anew for


def test_curriculum_effect_plot(effect, tmp_path):
    pytest.importorskip("matplotlib", reason="--plot needs matplotlib, of the extra `plots`")
    start("curriculum_effect", *EFFECT, "--output_dir", effect[0], "--plot", tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert text.startswith("<?xml") and "<svg" in text


# ------------------------------------------------------------------------------------------------- against stock TRL


def assert_times(found: dict, name: str, stock: str, ours: str) -> None:
    assert found[name] == pytest.approx(found[stock] / found[ours], rel=0.25)  # which are rounded, to milliseconds


def test_rollout():
    found = result("rollout", *SHAPE, how=fork_ranks)
    assert set(found) == documented("rollout")
    assert [found[name] for name in ("model", "prompt", "completion", "group", "prompts")] == ["tiny", 260, 4, 2, 1]
    assert found["equal_tokens"] == 1
    assert_times(found, "speedup", "stock_s", "ours_s")
    assert_positive(found, "tokens_per_s")


def test_shared_prefix():
    found = result("shared_prefix", *SHAPE, how=fork_ranks)
    assert set(found) == documented("shared_prefix")
    assert found["image_tokens"] == 192  # 448 x 336 pixels, 28 x 28 each
    assert found["bound"] == 1.97 and found["tokens_ratio"] == 0.508  # 2 (260 + 4) and 260 + 2 * 4 tokens
    assert found["logp_max_abs_diff"] < 1e-4 and found["grad_rel_diff"] < 1e-4
    assert 0 < found["peak_memory_ratio"] < 1
    assert_positive(found, "speedup_logps", "speedup_loss_backward", "speedup_compact_head", "share_of_bound")


def test_step():
    found = result("step", *SHAPE, how=fork_ranks)
    assert set(found) == documented("step")
    assert_times(found, "speedup", "stock_s", "ours_s")
    stock, ours = found["losses_stock"], found["losses_ours"]
    assert len(stock) == len(ours) == 2 and stock[0] == pytest.approx(ours[0], abs=1e-6)


def test_fit_tokens():
    flags = ["--model", "tiny", "--completion", 4, "--group", 2, "--card", 1, "--ranks", 2]
    found = result("fit_tokens", *flags, how=fork_ranks)
    assert set(found) == documented("fit_tokens")
    state = (16 / 2 + 2) * found["parameters"] / 2**30
    assert found["state_gib"] == pytest.approx(state, abs=0.005) and found["kib_per_token"] > 0
    tokens = (0.9 - state - found["fixed_gib"]) * 2**20 / found["kib_per_token"]
    assert found["tokens"] % 256 == 0
    assert -8 <= tokens - found["tokens"] < 256 + 8  # rounded down; what it is computed from is rounded here
