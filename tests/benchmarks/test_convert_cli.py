import subprocess
import sys

import pytest

from open_r1_kivqa.benchmarks.convert_cli import BENCHMARKS, main
from open_r1_kivqa.cli import main as kivqa


def test_help_names_every_benchmark(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and all(f"    {name} " in text for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_of_a_benchmark(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and "--output OUTPUT" in text


@pytest.mark.parametrize("argv", [[], ["none"], ["rec"], ["rec", "--inp", "x", "--output", "y"]])
def test_flags_that_are_none(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and "usage: kivqa convert" in capsys.readouterr().err


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    code = kivqa(["convert", "rec", "--input", str(tmp_path / "no.json"), "--output", str(tmp_path / "out.jsonl")])
    assert code == 2
    assert capsys.readouterr().err.startswith(f"kivqa convert: {tmp_path}/no.json is no file")


def test_only_the_chosen_benchmark_is_imported():
    code = "import sys; from open_r1_kivqa.cli import main; main(sys.argv[1:] + ['--help'])"
    watch = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"
    for argv, modules in ([], set()), (["rec"], {"rec"}):
        done = subprocess.run([sys.executable, "-c", watch, "convert", *argv], capture_output=True, text=True)
        imported = set(done.stdout.splitlines()[-1].split())
        chosen = {module for module, _ in BENCHMARKS.values() if f"open_r1_kivqa.benchmarks{module}" in imported}
        assert chosen == {f".{name}" for name in modules} and "torch" not in imported
