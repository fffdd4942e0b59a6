import os

import pytest
from PIL import Image

from open_r1_kivqa.data import verdicts
from open_r1_kivqa.data.verdicts import check_images, files_digest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("KIVQA_CACHE", str(folder))
    return folder


def image(path, size=(40, 30), age=60):
    """A noisy picture that was last changed `age` seconds ago."""
    Image.effect_noise(size, 80).save(path)
    changed = os.stat(path).st_mtime - age
    os.utime(path, (changed, changed))
    return str(path)


@pytest.fixture
def decoded(monkeypatch):
    """Paths that were decoded."""
    paths = []
    decode = verdicts.verify_image
    monkeypatch.setattr(verdicts, "verify_image", lambda path: (paths.append(path), decode(path)))
    return paths


def test_verdicts_come_in_order_with_sizes(tmp_path):
    a, b = image(tmp_path / "a.png"), image(tmp_path / "b.jpg", (10, 20))
    found = check_images([a, str(tmp_path / "none.png"), b, a])
    assert [(v.width, v.height, v.size, v.kind) for v in found] == [
        (40, 30, os.path.getsize(a), ""),
        (0, 0, 0, "image_missing"),
        (10, 20, os.path.getsize(b), ""),
        (40, 30, os.path.getsize(a), ""),
    ]


def test_a_file_is_decoded_once_until_it_changes(tmp_path, decoded):
    paths = [image(tmp_path / f"{i}.png") for i in range(3)]
    first = check_images(paths)
    assert sorted(decoded) == paths
    decoded.clear()
    assert check_images(paths) == first and decoded == []
    image(paths[1], (50, 30))
    assert check_images(paths)[1].width == 50 and decoded == [paths[1]]


def test_a_bad_verdict_is_remembered_too(tmp_path, decoded):
    path = image(tmp_path / "a.jpg")
    whole = open(path, "rb").read()
    with open(path, "wb") as file:
        file.write(whole[:-300])
    os.utime(path, (1e9, 1e9))
    assert [check_images([path])[0].kind for _ in range(2)] == ["image_damaged"] * 2
    assert decoded == [path]


def test_a_file_that_just_changed_is_not_remembered(tmp_path, decoded):
    path = image(tmp_path / "a.png", age=0)
    check_images([path])
    check_images([path])
    assert decoded == [path, path]


def test_the_pixel_limit_holds_for_known_and_unknown_files(tmp_path, decoded):
    path = image(tmp_path / "a.png")
    assert check_images([path], pixel_limit=1199)[0].kind == "image_pixels" and decoded == []
    assert check_images([path], pixel_limit=1200)[0].kind == "" and decoded == [path]
    assert check_images([path], pixel_limit=1199)[0].kind == "image_pixels"


def test_progress_and_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "BATCH", 2)
    done = []
    assert len(check_images([image(tmp_path / f"{i}.png") for i in range(5)], progress=done.append)) == 5
    assert done == [2, 4, 5]


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, cache, monkeypatch, caplog):
    path = image(tmp_path / "a.png")
    monkeypatch.setenv("KIVQA_CACHE", "/proc/none")  # nobody can make a folder there, not even root
    assert check_images([path])[0].kind == ""
    assert "set KIVQA_CACHE" in caplog.text


def test_the_digest_follows_size_time_and_absence(tmp_path):
    path = image(tmp_path / "a.png")
    digests = [files_digest([path])]
    os.utime(path, (1, 1))
    digests.append(files_digest([path]))
    os.remove(path)
    digests.append(files_digest([path]))
    assert len(set(digests)) == 3
    assert files_digest([path]) == digests[-1]
