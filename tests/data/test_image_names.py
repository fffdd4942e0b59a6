import json

import pytest

from open_r1_kivqa.data import image_names
from open_r1_kivqa.data.image_names import ImageNames, name_of
from open_r1_kivqa.errors import InputError


def read(tmp_path, content, name="val.json"):
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return ImageNames.read(str(tmp_path / name))


def test_inaturalists_own_file(tmp_path):
    images = [{"id": 12, "width": 5, "file_name": "val/b/x.jpg", "license": 0}, {"id": 7, "file_name": "val/a/é.jpg"}]
    names = read(tmp_path, {"info": {"year": 2021}, "images": images, "annotations": [{"id": 12, "image_id": 7}]})
    assert names.get("12") == "val/b/x.jpg" and names.get("7") == "val/a/é.jpg" and names.get("1") is None


def test_an_object_of_ids_and_paths(tmp_path):
    names = read(tmp_path, "\ufeff" + json.dumps({"oven_01": "01/oven_01.jpg", "12": "val/x.jpg"}))
    assert names.get("oven_01") == "01/oven_01.jpg" and names.get("12") == "val/x.jpg"


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"images": [{"id": 1, "file_name": "a.jpg"}', "not JSON, or ends early"),
        ("", "not JSON, or ends early"),
        ("id,name", "not JSON, or ends early"),
        ({}, "names no image; wanted is"),
        ([], "names no image; wanted is"),
        ({"images": []}, "'images' is '[]'; wanted is"),
        ({"images": [{"id": 1}]}, "images[0] is {'id': 1}; wanted is"),
        ({"images": [{"id": True, "file_name": "a"}]}, "images[0] is"),
        ({"a": {"path": "a.jpg"}}, "'a' is \"{'path': 'a.jpg'}\"; wanted is"),
        ({"a": ""}, "'a' is ''"),
        ({"images": [{"id": 1, "file_name": "a"}, {"id": "1", "file_name": "b"}]}, "'1' has two names, 'a' and 'b'"),
    ],
)
def test_other_files(tmp_path, content, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, content)
    assert message in str(error.value) and "val.json" in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="none.json is no file"):
        ImageNames.read(str(tmp_path / "none.json"))


def test_files_of_two_splits_that_use_an_id_twice(tmp_path):
    train, val = (
        read(tmp_path, {"1": "train/a.jpg", "2": "x.jpg"}, "train.json"),
        read(tmp_path, {"1": "val/b.jpg", "2": "x.jpg"}),
    )
    assert (
        name_of("2", [train, val]) == "x.jpg"
        and name_of("3", [train, val]) is None
        and name_of("1", [val]) == "val/b.jpg"
    )
    with pytest.raises(InputError, match="'1' is train/a.jpg in .*train.json and val/b.jpg in .*val.json; give only"):
        name_of("1", [train, val])


def test_texts_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(image_names, "text_hash", lambda text: 5)
    monkeypatch.setattr("open_r1_kivqa.data.packed.text_hash", lambda text: 5)
    names = read(tmp_path, {"a": "1.jpg", "b": "2.jpg"})
    assert names.get("b") == "2.jpg" and names.get("a") == "1.jpg" and names.get("c") is None
