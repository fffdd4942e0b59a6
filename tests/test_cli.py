import subprocess
import sys
import time

import pytest

from open_r1_kivqa import cli


def kivqa(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "open_r1_kivqa.cli", *words], capture_output=True, text=True)


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in cli.COMMANDS)])
def test_help_is_quick_and_imports_no_torch(words):
    code = (
        "import sys\nfrom open_r1_kivqa.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'transformers', 'trl'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: kivqa")
    assert time.monotonic() - started < 5  # under 1 s on an idle machine


def test_help_names_every_command():
    assert all(f"  {command} " in kivqa("--help").stdout for command in cli.COMMANDS)


@pytest.mark.parametrize("words", [[], ["train"]])
def test_unknown_command_is_refused(words):
    done = kivqa(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("kivqa: ") and "usage:" in done.stderr


def test_unusable_input_is_one_line_without_traceback(tmp_path):
    done = kivqa("diff", str(tmp_path), str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("kivqa diff: ") and done.stderr.count("\n") == 1
