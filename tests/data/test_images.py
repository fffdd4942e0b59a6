"""Image files: sizes as the processor sees them, and damage."""

import hashlib

import pytest
from PIL import Image

from open_r1_kivqa.data.images import content_hash, image_size, verify_image
from open_r1_kivqa.errors import InputError


def picture(path, size=(12, 7), **options):
    Image.effect_noise(size, 80).convert("RGB").save(path, **options)
    return str(path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.gif", "a.bmp"])
def test_size_and_soundness(tmp_path, name):
    path = picture(tmp_path / name)
    assert image_size(path) == (12, 7)
    verify_image(path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_a_rotated_photo_has_the_size_that_is_seen(tmp_path, name):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert image_size(picture(tmp_path / name, exif=exif)) == (7, 12)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_the_size_needs_the_header_only_but_a_cut_image_is_damaged(tmp_path, name):
    path = picture(tmp_path / name, size=(300, 200))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert image_size(path) == (300, 200)
    with pytest.raises(InputError, match=f"Image {path} is damaged .*; replace it"):
        verify_image(path)


@pytest.mark.parametrize("use", [image_size, verify_image])
def test_what_is_no_image_is_refused(tmp_path, use):
    with pytest.raises(InputError, match="no.png does not exist; check --image_folders"):
        use(str(tmp_path / "no.png"))
    with pytest.raises(InputError, match="does not exist"):
        use(str(tmp_path))
    (tmp_path / "empty.png").write_bytes(b"")
    with pytest.raises(InputError, match="empty.png is empty"):
        use(str(tmp_path / "empty.png"))
    (tmp_path / "text.png").write_text("<html>not found</html>")
    with pytest.raises(InputError, match="text.png is not an image that Pillow reads"):
        use(str(tmp_path / "text.png"))


def test_the_hash_is_sha256_of_the_bytes(tmp_path):
    path = picture(tmp_path / "a.png")
    assert content_hash(path) == hashlib.sha256((tmp_path / "a.png").read_bytes()).hexdigest()
