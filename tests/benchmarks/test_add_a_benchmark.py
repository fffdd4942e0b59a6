"""The converter on the page about adding one does what the page says."""

import importlib.util
import json
import re
import sys
from pathlib import Path

from PIL import Image

from open_r1_kivqa import cli
from open_r1_kivqa.benchmarks import convert_cli
from open_r1_kivqa.data.jsonl import Rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_a_benchmark.md").read_text()


def test_the_pages_converter_makes_rows(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (line,) = re.findall(r'`"quiz": (\(.*?\))`', PAGE)
    name = "open_r1_kivqa.benchmarks.quiz_convert"
    (tmp_path / "quiz_convert.py").write_text(code)
    spec = importlib.util.spec_from_file_location(name, tmp_path / "quiz_convert.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(convert_cli.BENCHMARKS, "quiz", eval(line))

    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (60, 40)).save(tmp_path / "pictures" / "a.JPG", format="JPEG")
    questions = [
        {"nr": 1, "question": "Which city?", "answers": ["Paris"], "picture": "a"},
        {"nr": 2, "question": "Which river?", "answers": ["Seine"], "picture": "b"},
        {"nr": 3, "question": " ", "answers": ["yes"], "picture": "a"},
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    (command,) = re.findall(r"`kivqa (convert quiz .*?)`", PAGE)
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 0
    (row,) = Rows.open(["quiz_rows.jsonl"], ["pictures"], None)
    assert (row.id, row.answers, row.images[0]) == ("quiz-1", ("Paris",), str(tmp_path / "pictures" / "a.JPG"))
    said = capsys.readouterr().out
    assert "1 rows of 3 items" in said and "its picture was not found" in said and "could not be used" in said


def test_the_page_names_files_that_exist():
    folder = ROOT / "src" / "open_r1_kivqa"
    own = {"benchmarks/quiz.py", "src/open_r1_kivqa/benchmarks/quiz_convert.py"}
    for path in set(re.findall(r"`((?:benchmarks|rewards|evaluation|tests|src)/[\w/]+\.py)`", PAGE)) - own:
        assert (folder / path).exists() or (ROOT / path).exists(), path
