"""Image files: sizes as the processor sees them, and damage."""

import hashlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from open_r1_kivqa.data.images import content_hash, image_size, load_image, verify_image
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


def png_chunks(content: bytes) -> list[bytes]:
    chunks, start = [], 8
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4])
        chunks.append(content[start:end])
        start = end
    return chunks


@pytest.mark.parametrize("kind", [b"eXIf", b"iTXt"])
@pytest.mark.parametrize("late", [False, True])
def test_a_png_may_say_after_its_pixels_that_it_is_turned(kind, late, tmp_path):
    exif, texts = Image.Exif(), PngInfo()
    exif[0x0112] = 6
    texts.add_itxt("XML:com.adobe.xmp", '<rdf:Description tiff:Orientation="6"/>')
    path = picture(tmp_path / "a.png", **({"exif": exif} if kind == b"eXIf" else {"pnginfo": texts}))
    content = (tmp_path / "a.png").read_bytes()
    *chunks, end = png_chunks(content)
    chunks.sort(key=lambda chunk: late and chunk[4:8] == kind)
    (tmp_path / "a.png").write_bytes(content[:8] + b"".join([*chunks, end]))
    assert image_size(path) == load_image(path).size == (7, 12)


def test_a_picture_is_upright_rgb_of_8_bits_whatever_the_file(tmp_path):
    left_red = Image.new("RGB", (40, 20), "blue")
    left_red.paste("red", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees to the right: the left end is up
    for name in ("a.png", "a.jpg", "a.webp"):
        left_red.save(tmp_path / name, exif=exif)
        image = load_image(str(tmp_path / name))
        assert (image.mode, image.size) == ("RGB", (20, 40))
        (top, _, _), (bottom, _, _) = image.getpixel((10, 5)), image.getpixel((10, 35))
        assert top > 200 and bottom < 50

    left_red.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("RGB", (40, 20), "green")])
    assert load_image(str(tmp_path / "moving.gif")).getpixel((5, 5)) == (255, 0, 0)  # the first frame

    grey = np.array([[0, 255, 256, 0x8000, 0xFFFF]], dtype=np.uint16)
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(grey).save(tmp_path / name)
        assert np.asarray(load_image(str(tmp_path / name)))[0, :, 0].tolist() == [0, 0, 1, 0x80, 0xFF]

    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(InputError, match="float.tiff is not an image of 8 or 16 bits a channel; convert it"):
        verify_image(str(tmp_path / "float.tiff"))


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
