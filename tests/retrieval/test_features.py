"""Vectors of pictures on disk: resumed, shared out, broken pictures counted."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_encoders
from launch import fork_ranks
from PIL import Image

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval import features, index_cli
from open_r1_kivqa.retrieval.encoders import load_image_encoder
from open_r1_kivqa.retrieval.features import embed, prepare
from open_r1_kivqa.retrieval.index import ImageIndex
from open_r1_kivqa.retrieval.pictures import Pictures, find_pictures

WORKER = Path(__file__).with_name("index_worker.py")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """40 articles with one to three pictures of random blocks, 79 in all."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    with open(folder / "kb.jsonl", "w") as file:
        for i in range(40):
            names = [f"{i}_{j}.png" for j in range(1 + i % 3)]
            for name in names:
                blocks = Image.fromarray(generator.integers(0, 256, (3, 4, 3), dtype=np.uint8))
                blocks.resize((40, 30), Image.Resampling.NEAREST).save(folder / "images" / name)
            file.write(json.dumps({"key": f"https://en.wikipedia.org/wiki/A{i}", "images": names}) + "\n")
    return folder


def pictures_of(folder: Path) -> Pictures:
    return find_pictures(KnowledgeBase.open(str(folder / "kb.jsonl")), [str(folder / "images")])


def vectors_of(found) -> np.ndarray:
    return np.concatenate(list(found.batches(7)))


def test_vectors_come_in_order_and_survive_a_stop(tmp_path, base, monkeypatch):
    pictures, encoder = pictures_of(base), load_image_encoder("colour", batch_size=4)
    assert len(pictures) == 79 and list(pictures.keys)[:3] == [f"https://en.wikipedia.org/wiki/A{i}" for i in (0, 1, 1)]
    wanted = encoder.encode(list(pictures.paths))
    computed = []

    def count(images, real=encoder.encode_images):
        if len(computed) == 7:
            raise KeyboardInterrupt
        computed.append(len(images))
        return real(images)

    monkeypatch.setattr(encoder, "encode_images", count)
    prepare(str(tmp_path / "f"), {"encoder": 1})
    with pytest.raises(KeyboardInterrupt):
        embed(pictures, encoder, str(tmp_path / "f"))
    computed.clear()
    (tmp_path / "f" / "shard-000007.npz.part").write_bytes(b"half written")
    prepare(str(tmp_path / "f"), {"encoder": 1})
    monkeypatch.undo()
    said = []
    found = embed(pictures, encoder, str(tmp_path / "f"), said.append)
    assert said[0] == "7 of 20 shards were there already"
    np.testing.assert_array_equal(vectors_of(found), wanted)
    assert list(found.keys) == list(pictures.keys) and found.broken == 0 and len(found) == 79
    found.save(str(tmp_path / "saved"))
    np.testing.assert_array_equal(np.load(tmp_path / "saved" / "vectors.npy"), wanted)
    assert json.loads((tmp_path / "saved" / "ids.json").read_text()) == list(pictures.keys)


def test_a_full_disk_is_said_and_costs_nothing(tmp_path, base, monkeypatch):
    pictures, encoder = pictures_of(base), load_image_encoder("colour", batch_size=4)
    prepare(str(tmp_path / "f"), {})
    written = []

    def save(file, real=np.savez, **arrays):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(real(file, **arrays))

    monkeypatch.setattr(features.np, "savez", save)
    with pytest.raises(InputError, match=r"shard-000003\.npz cannot be written \(No space left on device\); make room"):
        embed(pictures, encoder, str(tmp_path / "f"))
    monkeypatch.undo()
    said = []
    embed(pictures, encoder, str(tmp_path / "f"), said.append)
    assert said[0] == "3 of 20 shards were there already"


def test_shards_are_large_where_there_is_much(monkeypatch, tmp_path, base):
    monkeypatch.setattr(features, "SHARDS", 3)
    prepare(str(tmp_path / "f"), {})
    embed(pictures_of(base), load_image_encoder("colour", batch_size=5), str(tmp_path / "f"))
    # 79 pictures in 3 shards or more of whole batches: 5 batches, 25 pictures each
    assert len(list((tmp_path / "f").glob("shard-*.npz"))) == 4


def test_broken_pictures_are_counted_and_left_out(tmp_path, base):
    shutil.copytree(base, tmp_path / "base")
    for name, bytes in {"0_0.png": b"no picture", "5_1.png": b"", "39_0.png": b"\x89PNG\r\n\x1a\n"}.items():
        (tmp_path / "base" / "images" / name).write_bytes(bytes)
    pictures, encoder = pictures_of(tmp_path / "base"), load_image_encoder("colour", batch_size=4)
    prepare(str(tmp_path / "f"), {})
    found = embed(pictures, encoder, str(tmp_path / "f"))
    good = [i for i, path in enumerate(pictures.paths) if Path(path).name not in ("0_0.png", "5_1.png", "39_0.png")]
    assert found.broken == 3 and len(found) == 76 and len(found.examples) == 3
    assert "0_0.png is not an image" in found.examples[0] and "5_1.png is empty" in found.examples[1]
    assert list(found.keys) == [pictures.keys[i] for i in good]
    np.testing.assert_array_equal(vectors_of(found), encoder.encode([pictures.paths[i] for i in good]))


def test_nothing_but_broken_pictures_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    (tmp_path / "kb.jsonl").write_text('{"key": "a", "images": ["a.png"]}\n')
    pictures = find_pictures(KnowledgeBase.open(str(tmp_path / "kb.jsonl")), [])
    prepare(str(tmp_path / "f"), {})
    with pytest.raises(InputError, match=r"Not one of the 1 pictures can be read, for example: .*a\.png"):
        embed(pictures, load_image_encoder("colour"), str(tmp_path / "f"))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "f"
    prepare(str(folder), {"encoder": 1, "pictures": 2})
    (folder / "shard-000000.npz").write_bytes(b"kept")
    prepare(str(folder), {"encoder": 1, "pictures": 2})
    with pytest.raises(InputError, match=r"another run \(another encoder\)"):
        prepare(str(folder), {"encoder": 3, "pictures": 2})
    assert (folder / "shard-000000.npz").read_bytes() == b"kept"
    prepare(str(folder), {"encoder": 3, "pictures": 2}, overwrite=True)
    assert sorted(os.listdir(folder)) == ["identity.json", "lock"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    with pytest.raises(InputError, match="something else"):
        prepare(str(tmp_path / "mine"), {}, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "dear"


def test_two_runs_at_once_are_one_too_many(tmp_path):
    lock = prepare(str(tmp_path / "f"), {"encoder": 1})
    for identity in ({"encoder": 1}, {"encoder": 2}):
        with pytest.raises(
            InputError, match="f is being written by another run; wait for it, or give another --output"
        ):
            prepare(str(tmp_path / "f"), identity, overwrite=True)
    lock.release()
    prepare(str(tmp_path / "f"), {"encoder": 1}).release()


def test_where_pictures_are_looked_for(tmp_path):
    """The knowledge base's own folder comes first; what lies outside, is not there or is named twice does not count."""
    for name in ("kb/own.png", "kb/both.png", "images/both.png", "images/sub/far.png", "outside.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    rows = [
        {"key": "a", "images": ["own.png", "both.png", "own.png"]},
        {"key": "b", "images": ["sub/far.png", "../outside.png", "none.png"]},
        {"key": "c", "images": []},
        {"key": "d"},
    ]
    path = tmp_path / "kb" / "kb.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kb = KnowledgeBase.open(str(path))
    pictures = find_pictures(kb, [str(tmp_path / "images")])
    names = [os.path.relpath(path, tmp_path) for path in pictures.paths]
    assert names == ["kb/own.png", "kb/both.png", "images/sub/far.png"] and list(pictures.keys) == ["a", "a", "b"]
    assert (pictures.articles, pictures.unlisted, pictures.missing) == (4, 2, 2)
    assert pictures.examples == ["b: ../outside.png", "b: none.png"]
    pictures.save(str(tmp_path))
    again = Pictures.open(str(tmp_path))
    sizes = [os.path.getsize(path) for path in pictures.paths]
    assert again.sizes.tolist() == pictures.sizes.tolist() == sizes
    assert again.hash == pictures.hash and list(again.paths) == list(pictures.paths)
    assert (again.articles, again.unlisted, again.missing, again.examples) == (4, 2, 2, pictures.examples)
    with pytest.raises(InputError, match="Image folder .*gone does not exist"):
        find_pictures(kb, [str(tmp_path / "gone")])
    path.write_text('{"key": "a", "images": "own.png"}\n')
    with pytest.raises(InputError, match=r"kb\.jsonl:1: `images` must be a list of paths, not 'own\.png'"):
        find_pictures(KnowledgeBase.open(str(path)), [])
    path.write_text('{"key": "a", "images": ["x.png"]}\n')
    with pytest.raises(InputError, match=r"none of their 1 pictures is there \(for example a: x\.png\)"):
        find_pictures(KnowledgeBase.open(str(path)), [])


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flags(base: Path, output: Path, encoder: str, *more: str) -> list[str]:
    given = {"knowledge_base": base / "kb.jsonl", "image_folders": base / "images", "encoder": encoder}
    given |= {"output": output, "batch_size": 4} | ({"device": "cpu"} if encoder != "colour" else {})
    return [word for name, value in given.items() for word in (f"--{name}", str(value))] + list(more)


@pytest.mark.distributed
def test_two_ranks_write_what_one_process_writes(tmp_path, base, capsys):
    encoder = tiny_encoders.clip(tmp_path / "clip")
    assert index_cli.main(flags(base, tmp_path / "one", encoder)) == 0
    two = fork_ranks(WORKER, *flags(base, tmp_path / "two", encoder))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert "20 of 20 shards" in capsys.readouterr().out and "10 of 10 shards" in two.stdout
    assert two.stdout.count("written: 79 vectors of 40 articles") == 1
    assert sorted(os.listdir(tmp_path)) == ["clip", "one", "two"]


@pytest.mark.distributed
def test_bad_input_ends_all_ranks_with_one_message(tmp_path, base):
    ended = fork_ranks(WORKER, *flags(base, tmp_path / "one", "colour", "--image_folders", "/gone"), check=False)
    assert ended.returncode == 2 and ended.stderr.count("Image folder /gone does not exist") == 1


def test_a_killed_run_goes_on_where_it_was(tmp_path, base):
    """kill -9 while it embeds, wherever that is; the next run ends with the same files as one that was never killed."""
    slow = tmp_path / "slow.py"  # as the worker, with a pause in each batch, so that it is killed among the shards
    slow.write_text(
        "import sys, time\n"
        "from open_r1_kivqa.cli import main\n"
        "from open_r1_kivqa.retrieval.encoders import ColourEncoder as C\n"
        "real = C.encode_images\n"
        "C.encode_images = lambda *a: (time.sleep(0.05), real(*a))[1]\n"
        "sys.exit(main(['index', *sys.argv[1:]]))\n"
    )
    command = [sys.executable, str(slow), *flags(base, tmp_path / "i", "colour")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    work = tmp_path / "i.features"
    deadline = time.monotonic() + 120
    while len(list(work.glob("shard-*.npz"))) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("shard-*.npz")}
    assert 5 <= len(kept) < 20 and not (tmp_path / "i").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{len(kept)} of 20 shards were there already" in again.stdout
    subprocess.run([sys.executable, str(WORKER), *flags(base, tmp_path / "j", "colour")], check=True)
    assert files_of(tmp_path / "i") == files_of(tmp_path / "j")
    assert not work.exists() and len(ImageIndex.open(str(tmp_path / "i"))) == 79
