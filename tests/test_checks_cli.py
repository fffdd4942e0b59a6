import json
import resource
import subprocess
import sys

import pytest
from check_rows import row, write
from PIL import Image

from open_r1_kivqa import checks_cli, cli


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.effect_noise((56, 56), 80).convert("RGB").save(tmp_path / name / "good.png")
    return tmp_path


def test_exit_code_0_for_good_data(folder, capsys):
    a, b = write(folder / "a.jsonl", [row("1")]), write(folder / "b.jsonl", [row("2")])
    assert cli.main(["check", "--data_file_paths", f"{a}:{b}", "--image_folders", f"{folder}/a:{folder}/b"]) == 0
    assert capsys.readouterr().out == "Checked 2 rows and 2 images: no problem.\n"


def test_exit_code_1_and_examples_unless_all_are_wanted(folder, capsys):
    rows = [row(str(i), image="none.png") for i in range(7)] + [b"{]"]
    command = ["check", "--data_file_paths", write(folder / "a.jsonl", rows), "--image_folders", str(folder / "a")]
    assert cli.main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "image_missing: 7" and lines[6] == "  ... and 2 more"
    assert (
        lines[1]
        == f"  {folder}/a.jsonl:1 (id '0'): Image {folder}/a/none.png does not exist; check --image_folders and the row's `image`."
    )
    assert lines[7:9] == [
        "json: 1",
        f"  {folder}/a.jsonl:8: not JSON (Expecting property name enclosed in double quotes at column 2); write one object per line.",
    ]
    assert lines[-1] == "Checked 8 rows and 1 image: 8 problems, 8 rows affected."
    assert cli.main([*command, "--all"]) == 1
    assert sum("none.png" in line for line in capsys.readouterr().out.splitlines()) == 7


def test_json_holds_every_problem(folder, capsys):
    rows = [row(str(i), image="none.png") for i in range(7)]
    assert (
        cli.main(
            [
                "check",
                "--data_file_paths",
                write(folder / "a.jsonl", rows),
                "--image_folders",
                str(folder / "a"),
                "--json",
            ]
        )
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["images"], report["bad_rows"], report["counts"]) == (7, 1, 7, {"image_missing": 7})
    assert len(report["problems"]) == 7 and report["problems"][3]["line"] == 4 and report["tokens"] is None


def test_the_task_decides_the_method_as_in_training(folder, capsys):
    rows = [row("in", answer="[0, 0, 56, 56]"), row("out", answer="[0, 0, 560, 560]"), row("none", answer="Paris")]
    command = ["check", "--data_file_paths", write(folder / "a.jsonl", rows), "--image_folders", str(folder / "a")]
    assert cli.main(command) == 0
    assert cli.main([*command, "--task_type", "rec", "--reward_method", "exact"]) == 0
    capsys.readouterr()
    assert cli.main([*command, "--task_type", "rec"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("box: 2\n") and "lies outside its image of 56 x 56 pixels" in told and "'Paris'" in told


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--image_folders", "a:b"], "--image_folders names 2 for 1 data file"),
        (["--reward_method", "exactly"], "Unknown reward method 'exactly'; known are default, exact, numeric"),
        (["--context_level", "all"], "all"),
        (["--task_type", "recc"], "Prompt template recc does not exist; give one of default"),
        (["--model_name_or_path", "/none"], "/none"),
        (["--pixel_limit", "0"], "--pixel_limit 0"),
    ],
)
def test_exit_code_2_for_flags_that_cannot_be_used(folder, capsys, flags, words):
    assert cli.main(["check", "--data_file_paths", write(folder / "a.jsonl", [row("1")]), *flags]) == 2
    assert words in capsys.readouterr().err


def test_unknown_flags_end_with_2(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["check", "--data_file_path", "a.jsonl"])
    assert end.value.code == 2


def test_tokens_and_prompts_that_are_too_long(folder, capsys, tiny_model):
    rows = [row("1"), row("2", "<image>" + "What? " * 100)]
    model = tiny_model("qwen2_5_vl")
    capsys.readouterr()
    command = [
        "check",
        "--data_file_paths",
        write(folder / "a.jsonl", rows),
        "--image_folders",
        str(folder / "a"),
        "--model_name_or_path",
        model,
    ]
    assert cli.main([*command, "--max_completion_length", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "tokens          p50      p90      p99      max\nimage             4        4        4        4\n"
    )
    assert "The model takes 4,096 tokens" in out
    assert cli.main([*command, "--json", "--max_completion_length", "3800"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(p["kind"], p["id"]) for p in report["problems"]] == [("prompt_too_long", "2")]
    assert report["tokens"]["question"]["max"] > 100 and report["context"] == 4096
    assert cli.main([*command, "--max_pixels", "784", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"]["image"]["max"] == 1


def test_against(folder, capsys):
    a, b = write(folder / "a.jsonl", [row("1"), row("2")]), write(folder / "b.jsonl", [row("2", "<image>Who?")])
    command = ["check", "--data_file_paths", a, "--image_folders", f"{folder}/a", "--against", b, "--json"]
    assert cli.main([*command, "--against_image_folders", f"{folder}/b"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"shared_id": 1}
    assert cli.main(command) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"shared_image": 2, "shared_id": 1}


def test_help_is_quick_and_imports_nothing_heavy():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "open_r1_kivqa.cli", "check", "--help"],
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "--data_file_paths" in done.stdout
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1  # seconds of CPU: others may be busy
    assert not any(name in done.stderr for name in ("torch", "transformers", "numpy"))


def test_defaults_are_those_of_training():
    from open_r1_kivqa.arguments import DataArguments
    from open_r1_kivqa.data.verdicts import PIXEL_LIMIT

    flags = vars(checks_cli.parser().parse_args(["--data_file_paths", "a"]))
    training = DataArguments(data_file_paths="a")
    for name in (
        "image_folders",
        "reward_method",
        "knowledge_base",
        "context_level",
        "num_passages",
        "max_passage_tokens",
        "passage_images",
        "system_prompt",
        "pixel_limit",
    ):
        assert flags[name] == getattr(training, name), name
    assert checks_cli.PIXEL_LIMIT == PIXEL_LIMIT
    from trl import GRPOConfig

    assert checks_cli.MAX_COMPLETION_LENGTH == GRPOConfig.__dataclass_fields__["max_completion_length"].default
