import json
import os
import shutil
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data import image_files
from open_r1_kivqa.data.image_files import ImageFiles
from open_r1_kivqa.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("KIVQA_CACHE", str(folder))
    return folder


def plant(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return str(root)


def settle(root):
    """Folders as if nothing had changed in them for an hour."""
    for folder, _, _ in os.walk(root):
        os.utime(folder, (time.time() - 3600, time.time() - 3600))


def test_ids_whatever_extension_or_case(tmp_path):
    root = plant(tmp_path / "r", "a/One.JPG", "b/two.jpeg", "three.PNG", "four.webp", "notes.txt", "a.b.jpg", "bare")
    files = ImageFiles.scan([root])
    assert files.folder == root and len(files) == 5
    assert files.find("One") == "a/One.JPG" == files.find("one") == files.find("ONE.jpg") == files.find("a/one.png")
    assert files.find("two") == "b/two.jpeg" and files.find("three") == "three.PNG" and files.find("a.b") == "a.b.jpg"
    assert files.find("notes") is None and files.find("bare") is None and files.find("") is None
    assert sorted(files) == ["a.b.jpg", "a/One.JPG", "b/two.jpeg", "four.webp", "three.PNG"]


@pytest.mark.parametrize("name", ["Café Łódź", "Öresund", "がっこう", "Ệ", "İzmir"])
def test_accents_may_be_composed_in_one_and_taken_apart_in_the_other(tmp_path, name):
    composed, apart = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    for on_disk, asked in ((composed, apart), (apart, composed)):
        files = ImageFiles.scan(
            [plant(tmp_path / f"{len(list(tmp_path.iterdir()))}", f"x/{on_disk}.jpg", "x/other.jpg")]
        )
        assert files.find_all(f"{asked}.png") == [f"x/{on_disk}.jpg"]
    both = ImageFiles.scan([plant(tmp_path / "both", f"a/{composed}.jpg", f"b/{apart}.jpg")])
    if composed != apart:
        assert both.find(composed) == f"a/{composed}.jpg" and both.find(apart) == f"b/{apart}.jpg"
        assert both.duplicates == [[f"a/{composed}.jpg", f"b/{apart}.jpg"]]


def test_several_roots_have_a_common_folder(tmp_path):
    roots = [plant(tmp_path / "x" / "inat", "val/c/u.jpg"), plant(tmp_path / "x" / "gld" / "train", "0/1/2/012.jpg")]
    files = ImageFiles.scan(roots)
    assert files.folder == str(tmp_path / "x")
    assert files.find("u", "inaturalist") == "inat/val/c/u.jpg"
    assert files.find("012", "landmarks") == "gld/train/0/1/2/012.jpg"
    assert os.path.isfile(os.path.join(files.folder, files.find("012")))


def test_of_several_files_the_choice_is_always_the_same(tmp_path):
    id = "00a1b2c3d4e5f607"
    root = plant(tmp_path / "r", f"z/{id}.jpg", f"a/{id}.png", f"train/0/0/a/{id}.jpg", f"b/{id.upper()}.jpg")
    files = ImageFiles.scan([root])
    assert files.find(id) == f"a/{id}.png"  # spelled so, and first in the alphabet
    assert files.find(f"{id}.jpg") == f"train/0/0/a/{id}.jpg"
    assert files.find(f"z/{id}.jpg") == f"z/{id}.jpg" == files.find(f"z/{id}")
    assert files.find(id, "landmarks") == f"train/0/0/a/{id}.jpg"
    assert files.find_all(id) == [f"a/{id}.png", f"train/0/0/a/{id}.jpg", f"z/{id}.jpg"]
    assert files.find_all(f"{id}.PNG") == files.find_all(id) and files.find_all(f"{id}.png") == [f"a/{id}.png"]
    assert files.find(id.upper()) == f"b/{id.upper()}.jpg"
    assert files.duplicates == [sorted(files)]


def test_ids_that_a_json_file_names(tmp_path):
    root = plant(tmp_path / "inat", "val/a/u1.jpg", "val/b/u2.jpg", "other/u1.jpg", "12.jpg", "9.jpg")
    (tmp_path / "val.json").write_text(json.dumps({"images": [{"id": 12, "file_name": "val/a/u1.jpg"}]}))
    files = ImageFiles.scan([root], inat_json=[str(tmp_path / "val.json")])
    assert files.find("12", "inaturalist") == "val/a/u1.jpg"
    assert files.find("12") == "12.jpg" and files.find("9", "inaturalist") is None
    assert ImageFiles.scan([root]).find("9", "inaturalist") == "9.jpg"
    with pytest.raises(ValueError):
        files.find("12", "inat")
    (tmp_path / "oven.json").write_text(json.dumps({"oven_04": "/elsewhere/04/u2.JPEG", "oven_05": "gone.jpg"}))
    files = ImageFiles.scan([root], id2path=str(tmp_path / "oven.json"))
    assert files.find("oven_04", "oven") == "val/b/u2.jpg" and files.find("oven_05", "oven") is None
    assert files.find("u2", "oven") == "val/b/u2.jpg"


def test_a_changed_folder_is_noticed_and_an_unchanged_one_not_walked(tmp_path, monkeypatch, cache):
    root = plant(tmp_path / "r", "a/1.jpg", "b/c/2.jpg")
    settle(root)
    before = ImageFiles.scan([root]).fingerprint
    walks = []
    monkeypatch.setattr(image_files, "_walk", lambda roots, walk=image_files._walk: walks.append(roots) or walk(roots))
    assert ImageFiles.scan([root]).fingerprint == before and walks == []
    assert ImageFiles.scan([root]).find("2") == "b/c/2.jpg" and walks == []
    plant(tmp_path / "r", "b/c/3.jpg")
    assert ImageFiles.scan([root]).find("3") == "b/c/3.jpg" and len(walks) == 1
    (tmp_path / "r" / "b" / "c" / "3.jpg").unlink()
    shutil.rmtree(tmp_path / "r" / "a")
    files = ImageFiles.scan([root])
    assert files.find("3") is None and files.find("1") is None and len(walks) == 2
    settle(root)
    ImageFiles.scan([root])
    walked = len(walks)
    assert ImageFiles.scan([root]).find("2") == "b/c/2.jpg" and len(walks) == walked
    assert len(list(cache.iterdir())) == 1  # the entry is replaced, not added


def test_a_folder_that_was_changed_just_now_is_not_remembered(tmp_path, cache):
    ImageFiles.scan([plant(tmp_path / "r", "1.jpg")])
    assert list(cache.iterdir()) == []


def test_links_and_roots_in_roots_count_once(tmp_path):
    root = plant(tmp_path / "r", "a/1.jpg", "b/2.jpg")
    os.symlink(tmp_path / "r", tmp_path / "r" / "a" / "loop")
    os.symlink(tmp_path / "gone.jpg", tmp_path / "r" / "3.jpg")
    files = ImageFiles.scan([root, f"{root}/b"])
    assert sorted(files) == ["a/1.jpg", "b/2.jpg"] and files.duplicates == []
    elsewhere = plant(tmp_path / "elsewhere", "4.jpg")
    os.symlink(elsewhere, tmp_path / "r" / "linked")
    assert ImageFiles.scan([root]).find("4") == "linked/4.jpg"


def test_names_that_no_row_can_hold_are_passed_over(tmp_path):
    root = plant(tmp_path / "r", "é/1.jpg")
    with open(os.fsencode(root) + b"/\xff.jpg", "wb") as file:
        file.write(b"x")
    assert list(ImageFiles.scan([root])) == ["é/1.jpg"]


def test_roots_that_are_none(tmp_path):
    with pytest.raises(InputError, match="No image folder was given"):
        ImageFiles.scan([])
    with pytest.raises(InputError, match="Image folder .*none does not exist"):
        ImageFiles.scan([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="No image lies below .*empty; give"):
        ImageFiles.scan([str(tmp_path / "empty")])


NAMES = st.text("aAbB.", min_size=1, max_size=3).filter(lambda name: name.strip("."))


@settings(max_examples=40, deadline=None)
@given(
    tree=st.lists(st.tuples(st.lists(NAMES, max_size=2), NAMES, st.sampled_from([".jpg", ".PNG", ".txt", ""]))),
    asked=NAMES,
)
def test_as_a_plain_search_finds_it(tmp_path_factory, tree, asked):
    root = tmp_path_factory.mktemp("tree")
    for folders, name, extension in tree:
        path = root.joinpath(*(f"d{folder}" for folder in folders), f"f{name}{extension}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    images = [path for path in root.rglob("*") if path.suffix.lower() in (".jpg", ".png")]
    expected = [str(path.relative_to(root)) for path in images if path.stem.lower() == f"f{asked}".lower()]
    if not images:
        return
    files = ImageFiles.scan([str(root)])
    spelled = [path for path in expected if os.path.basename(path).rpartition(".")[0] == f"f{asked}"]
    assert files.find_all(f"f{asked}") == sorted(spelled or expected)
