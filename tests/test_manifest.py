import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from open_r1_kivqa import manifest
from open_r1_kivqa.errors import InputError


@dataclass
class Prompt:
    system: str
    user: str


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, data=..., **flags) -> folder of a run with a manifest, its inputs lying beside it."""

    def make(name: str, data: str = '{"id": 1}\n', weights: bytes = b"w", user: str = "{question}", **flags):
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}")
        (folder / "model" / "model.safetensors").write_bytes(weights)
        (folder / "model" / "training_args.bin").write_text(name)
        (folder / "train.jsonl").write_text(data)
        (folder / "knowledge.jsonl").write_text('{"key": "France"}\n')
        manifest.write_manifest(
            folder,
            entry="grpo_jsonl",
            flags={"output_dir": str(folder), "learning_rate": 1e-6, "hub_token": "hf_secret", **flags},
            model=str(folder / "model"),
            data_files=[str(folder / "train.jsonl")],
            image_folders=["images"],
            knowledge_base=str(folder / "knowledge.jsonl"),
            template=Prompt("Think first.", user),
        )
        return folder

    return make


def diff(*runs) -> tuple[int, str]:
    command = [sys.executable, "-m", "open_r1_kivqa.cli", "diff", *map(str, runs)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_manifest_names_contents(make_run):
    folder = make_run("a")
    written = json.loads((folder / "manifest.json").read_text())
    assert written["data"][0]["sha256"] == hashlib.sha256(b'{"id": 1}\n').hexdigest()
    assert set(written["model"]["files"]) == {"config.json", "model.safetensors"}  # trainer state is no part of a model
    assert written["model"]["files"]["model.safetensors"] == hashlib.sha256(b"w").hexdigest()
    assert written["template"] == {"system": "Think first.", "user": "{question}"}
    assert written["world_size"] == 1 and len(written["devices"]) >= 1
    assert written["versions"]["trl"].startswith("1.16.")
    assert "secret" not in json.dumps(written)
    assert [path.name for path in folder.glob("manifest*")] == ["manifest.json"]  # nothing is left of the writing aside


def test_same_content_elsewhere_is_the_same(make_run):
    code, text = diff(make_run("a"), make_run("b"))
    assert code == 0, text


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"learning_rate": 2e-6}, "flags.learning_rate"),
        ({"beta": 0.04}, "flags.beta"),
        ({"data": '{"id": 2}\n'}, "data.0.sha256"),
        ({"weights": b"v"}, "model.files.model.safetensors"),
        ({"user": "{question}?"}, "template.user"),
    ],
)
def test_what_differs_is_named(make_run, change, name):
    one, two = make_run("a"), make_run("b", **change)
    found = manifest.differences(manifest.read_manifest(one), manifest.read_manifest(two))
    assert [item[0] for item in found] == [name]


def test_diff_prints_and_exits_1(make_run):
    code, text = diff(make_run("a"), make_run("b", beta=0.04, learning_rate=2e-6))
    assert code == 1
    assert text.splitlines() == ["flags.learning_rate  1e-06  ->  2e-06", 'flags.beta           "-"  ->  0.04']


def test_unusable_runs_are_one_sentence(make_run, tmp_path):
    code, text = diff(make_run("a"), tmp_path)
    assert code == 2 and "manifest.json does not exist" in text and "Traceback" not in text
    (tmp_path / "manifest.json").write_text("[1]")
    assert diff(tmp_path, tmp_path)[0] == 2


def test_missing_inputs_are_refused(tmp_path):
    with pytest.raises(InputError, match="neither a folder nor a hub model"):
        manifest.model_hashes("nobody/no-such-model")
    with pytest.raises(InputError, match=r"no config\.json"):
        manifest.model_hashes(str(tmp_path))
    with pytest.raises(InputError, match="is no file"):
        manifest.file_hash(tmp_path / "absent.jsonl")


def test_diff_needs_no_torch():
    code = "import sys, open_r1_kivqa.manifest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
