"""`kivqa index`: the Factbook's flags, every source of vectors, what is refused, what is there already."""

import importlib.resources
import json
import pickle
import resource
import shlex
import subprocess
import sys

import faiss
import numpy as np
import pytest
from PIL import Image

from open_r1_kivqa.cli import main
from open_r1_kivqa.data.locks import Lock
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.retrieval.encoders import load_image_encoder
from open_r1_kivqa.retrieval.index import ImageIndex

FACTBOOK = importlib.resources.files("open_r1_kivqa.demo") / "data"
BASE = ["--knowledge_base", str(FACTBOOK / "knowledge.jsonl"), "--image_folders", str(FACTBOOK / "images")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the index of all flags by colour ("i"), and of their vectors ("v")."""
    folder = tmp_path_factory.mktemp("factbook")
    assert run(*BASE, "--encoder", "colour", "--output", folder / "i", "--save_features", folder / "v") == 0
    return folder


def run(*words) -> int:
    return main(["index", *map(str, words)])


def refused(capsys, *words) -> str:
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.err


def recall(index: ImageIndex, folder=FACTBOOK / "images") -> dict[int, float]:
    rows = [json.loads(line) for line in (FACTBOOK / "eval.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] != "maps"]
    queries = load_image_encoder("colour").encode([str(folder / row["image"]) for row in rows])
    keys, _ = index.search(queries, 5)
    return {k: np.mean([row["entity"] in its[:k] for row, its in zip(rows, keys, strict=True)]) for k in (1, 5)}


def test_colours_find_most_flags(built):
    index = ImageIndex.open(str(built / "i"))
    kb = KnowledgeBase.open(BASE[1])
    index.refuse_other(encoder_fingerprint=load_image_encoder("colour").fingerprint, knowledge_base=kb)
    assert sorted(index.ids) == sorted(article["key"] for article in kb)
    found = recall(index)
    # docs/retrieval.md; 504 variants of 221 flags. Chance: .005 and .023
    assert found[1] == pytest.approx(0.784, abs=0.01) and found[5] == pytest.approx(0.937, abs=0.01)


def test_saved_vectors_build_the_same_index_and_another_kind(built, tmp_path, capsys):
    saved = ["--features", built / "v" / "vectors.npy", "--ids", built / "v" / "ids.json"]
    assert run(*BASE, *saved, "--encoder", "colour", "--output", tmp_path / "i") == 0
    assert "16 pictures embedded by colour have the imported vectors" in capsys.readouterr().out
    first, again = ImageIndex.open(str(built / "i")), ImageIndex.open(str(tmp_path / "i"))
    assert again.encoder_fingerprint == first.encoder_fingerprint and list(again.ids) == list(first.ids)
    assert recall(again) == recall(first)
    kinds = ["--kind", "hnsw", "--precision", "sq8"]
    assert run(*BASE[:2], *saved, *kinds, "--output", tmp_path / "h") == 0
    small = ImageIndex.open(str(tmp_path / "h"))
    assert (small.manifest["kind"], small.manifest["precision"], small.encoder) == ("hnsw", "sq8", "")
    assert recall(small)[5] == pytest.approx(recall(first)[5], abs=0.02)


def test_echosight_s_files(built, tmp_path, capsys):
    """Its index and its urls, here keys, with one that the knowledge base lacks; and a pair that is stale."""
    vectors, ids = np.load(built / "v" / "vectors.npy"), json.loads((built / "v" / "ids.json").read_text())
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "kb_index.faiss"))
    ids[3] = "https://en.wikipedia.org/wiki/Atlantis"
    (tmp_path / "kb_index_ids.pkl").write_bytes(pickle.dumps(np.array(ids)))
    given = [*BASE[:2], "--echosight", tmp_path / "kb_index.faiss", "--ids", tmp_path / "kb_index_ids.pkl"]
    assert run(*given, "--output", tmp_path / "i") == 0
    said = capsys.readouterr().out
    assert "1 vectors (0.5%) are of no article" in said and "wiki/Atlantis" in said
    assert "220 vectors of 220 articles, 1 articles have none; flat, fp32, 0.12 MiB" in said
    assert recall(ImageIndex.open(str(tmp_path / "i")))[1] > 0.77
    (tmp_path / "kb_index_ids.pkl").write_bytes(pickle.dumps(ids[:-1]))
    assert "221 vectors, but 220 ids" in refused(capsys, *given, "--output", tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_what_is_there_stays_unless_it_may_be_replaced(built, tmp_path, capsys):
    ivf = [*BASE, "--encoder", "colour", "--output", tmp_path / "i", "--kind", "ivf"]
    assert run(*ivf) == 0
    before = (tmp_path / "i" / "index.faiss").stat().st_mtime_ns
    capsys.readouterr()
    assert run(*ivf) == 0
    assert "is there already, built from the same" in capsys.readouterr().out
    assert run(*ivf, "--nprobe", 1) == 0
    assert "is there already; a search now takes {'nprobe': 1}" in capsys.readouterr().out
    assert ImageIndex.open(str(tmp_path / "i"))._index.nprobe == 1
    assert (tmp_path / "i" / "index.faiss").stat().st_mtime_ns == before
    assert "another index (it differs in precision)" in refused(capsys, *ivf, "--precision", "fp16")
    other = [word if word != BASE[1] else FACTBOOK / "knowledge_full.jsonl" for word in ivf]
    assert "it differs in knowledge_base_fingerprint" in refused(capsys, *other)
    assert run(*ivf, "--precision", "fp16", "--overwrite") == 0
    assert ImageIndex.open(str(tmp_path / "i")).manifest["precision"] == "fp16"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i"]


def test_what_a_run_killed_at_its_end_left_is_cleared(tmp_path, capsys, monkeypatch):
    """The index is written, the shards are not removed yet."""
    given = [*BASE, "--encoder", "colour", "--output", tmp_path / "i"]
    monkeypatch.setattr(Lock, "remove_folder", Lock.release)
    assert run(*given) == 0 and (tmp_path / "i.features").exists()
    monkeypatch.undo()
    assert "its vectors are gone" in refused(capsys, *given, "--save_features", tmp_path / "v")
    assert run(*given) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


@pytest.mark.parametrize(
    "kilobytes", [1, 60, 110]
)  # of one file; the shards, the vectors and the index take 36, 125 and 125
@pytest.mark.parametrize("saved", [False, True])
def test_a_full_disk_is_said_in_words_and_the_same_command_goes_on(tmp_path, capsys, kilobytes, saved):
    words = [*BASE, "--encoder", "colour", "--output", tmp_path / "i"]
    words += ["--save_features", tmp_path / "v"] if saved else []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, limits[1]))
    try:
        message = refused(capsys, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written" in message and "make room" in message and not (tmp_path / "i").exists()
    assert run(*words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == (["i", "v"] if saved else ["i"])


def test_a_disk_that_fills_up_while_vectors_are_saved(tmp_path):
    """A small disk of its own: a limit on the size of files doesn't show what happens where a file is larger than what it holds."""
    (tmp_path / "disk").mkdir()
    words = [*BASE, "--encoder", "colour", "--output", "i", "--save_features", "disk/v"]
    command = shlex.join([sys.executable, "-m", "open_r1_kivqa.cli", "index", *words])
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}/disk"  # of the 125 kilobytes of the vectors
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("a disk of its own cannot be mounted here")
    done = subprocess.run([*inside, f"{mount} && {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "--save_features disk/v cannot be written (No space left on device); make room" in done.stderr
    assert run(*BASE, "--encoder", "colour", "--output", tmp_path / "i", "--save_features", tmp_path / "v") == 0
    assert np.load(tmp_path / "v" / "vectors.npy").shape == (221, 141)
    assert len(json.loads((tmp_path / "v" / "ids.json").read_text())) == 221


def test_what_is_no_index_is_never_replaced(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    said = refused(capsys, *BASE, "--encoder", "colour", "--output", tmp_path / "mine", "--overwrite")
    assert "is there and holds no index" in said and (tmp_path / "mine" / "thesis.tex").exists()


def test_a_picture_that_was_mended_asks_for_another_index(tmp_path, capsys):
    """The command names pictures that cannot be read; given again once they can, it must not say that all is there."""
    articles = [{"key": key, "title": key, "images": [f"{key}.png"], "sections": []} for key in "ab"]
    (tmp_path / "kb.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))
    Image.new("RGB", (20, 20), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"<html>429 too many requests</html>")
    words = ["--knowledge_base", tmp_path / "kb.jsonl", "--encoder", "colour", "--output", tmp_path / "i"]
    assert run(*words) == 0
    assert "1 pictures cannot be read" in capsys.readouterr().out and len(ImageIndex.open(str(tmp_path / "i"))) == 1
    Image.new("RGB", (20, 20), "blue").save(tmp_path / "b.png")
    assert "holds another index (it differs in built_from.pictures); give --overwrite" in refused(capsys, *words)
    assert run(*words, "--overwrite") == 0 and len(ImageIndex.open(str(tmp_path / "i"))) == 2
    assert run(*words) == 0
    assert "is there already, built from the same" in capsys.readouterr().out


def test_missing_pictures_are_told(tmp_path, capsys):
    rows = [
        {"key": "ad", "images": ["flags/ad.png", "flags/atlantis.png"]},
        {"key": "fr", "images": ["flags/fr.png"]},
        {"key": "nowhere"},
    ]
    (tmp_path / "kb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--knowledge_base", tmp_path / "kb.jsonl", *BASE[2:], "--encoder", "colour"]
    assert run(*given, "--output", tmp_path / "i") == 0
    said = capsys.readouterr().out
    assert "2 pictures of 3 articles found" in said and "1 articles name no picture" in said
    assert "1 pictures are missing, for example: ad: flags/atlantis.png" in said
    assert "2 vectors of 2 articles, 1 articles have none" in said
    manifest = ImageIndex.open(str(tmp_path / "i")).manifest
    names = ("knowledge_base_articles", "articles", "articles_without_picture", "pictures_missing", "pictures_broken")
    assert [manifest[name] for name in names] == [3, 2, 1, 1, 0]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "Nothing says where vectors come from"),
        (["--features", "a.npy", "--echosight", "b.faiss"], "give one of them"),
        (["--features", "a.npy"], "--features needs --ids"),
        (["--encoder", "colour", "--ids", "a.txt"], "--ids has no effect without imported vectors"),
        (["--encoder", "colour", "--redirects", "a.tsv"], "--redirects has no effect without imported vectors"),
        (["--features", "a.npy", "--ids", "a.txt", "--save_features", "f"], "--save_features has no effect"),
        (["--features", "a.npy", "--ids", "a.txt", "--device", "cpu"], "--device has no effect without --encoder"),
        (
            ["--features", "a.npy", "--ids", "a.txt", "--batch_size", "8"],
            "--batch_size has no effect without --encoder",
        ),
        (["--encoder", "colour", "--dtype", "float16"], "--dtype has no effect with --encoder colour"),
        (["--encoder", "colour", "--nprobe", "3"], "--nprobe has no effect with --kind flat"),
        (["--encoder", "colour", "--kind", "ivf", "--ef_search", "3"], "--ef_search has no effect with --kind ivf"),
        (["--encoder", "colour", "--kind", "ivf", "--nprobe", "0"], "--nprobe 0 looks at nothing"),
        (["--encoder", "colour", "--batch_size", "0"], "--batch_size 0"),
        (["--encoder", "colour", "--seed", "-1"], "--seed -1"),
        (["--encoder", "colour", "--output", "gone/i"], "gone does not exist"),
        (["--encoder", "colour", "--output", "file"], "--output file is a file"),
        (["--encoder", "no/such"], "neither a folder nor a model"),
        (["--features", "a.npy", "--ids", "a.txt"], "--features a.npy does not exist"),
        (["--echosight", "a.faiss", "--ids", "a.txt"], "--echosight a.faiss does not exist"),
        (["--encoder", "colour", "--knowledge_base", "gone.jsonl"], r"gone\.jsonl does not exist"),
    ],
)
def test_flags_that_do_not_fit_together(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    images = [] if words[:1] == ["--features"] or words[:1] == ["--echosight"] else BASE[2:]
    said = refused(capsys, *BASE[:2], "--output", "i", *images, *words)
    assert said.startswith("kivqa index: ") and message.replace("\\", "") in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_loads_nothing_heavy():
    code = "import sys; from open_r1_kivqa.cli import main\ntry: main(['index', '--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'faiss', 'transformers', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
