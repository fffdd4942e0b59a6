"""The examples of docs/data.md run as they stand."""

import json
import re
from pathlib import Path

from open_r1_kivqa.prompts import load_template

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch):
    lines = blocks("json")
    (tmp_path / "images").mkdir()
    (tmp_path / "rows.jsonl").write_text("".join(line for line in lines if "conversations" in json.loads(line)))
    (tmp_path / "knowledge.jsonl").write_text("".join(line for line in lines if "sections" in json.loads(line)))
    monkeypatch.chdir(tmp_path)
    scope = {}
    titles, prompts = blocks("python")
    exec(prompts, scope)
    assert scope["rows"].ids == ["q1", "q2", "q3"]
    assert {passage.text for passage in scope["passages"]} == {"A tower in Paris.", "It is 330 m high."}
    assert [block["type"] for block in scope["messages"][1]["content"]] == ["image", "text"]
    assert len(scope["validation"]) == 1  # q1 and q3 share their picture
    assert scope["validation"] == [1]
    (tmp_path / "redirects.tsv").write_text("Tour Eiffel\tEiffel Tower\n")
    exec(titles, {})


def test_the_template_loads(tmp_path):
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    template = load_template(str(tmp_path / "mine.yaml"))
    assert template.user == "{passages}\n\n{question}" and template.separator == "\n"
