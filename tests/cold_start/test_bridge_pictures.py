"""Pictures arrive as every model of ours would see them."""

import base64
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from open_r1_kivqa.cold_start.pictures import Pictures
from open_r1_kivqa.data.images import load_image
from open_r1_kivqa.errors import InputError


def decoded(url):
    head, _, data = url.partition(",")
    picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert head == f"data:image/{picture.format.lower()};base64"
    return picture


@pytest.fixture
def noise():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


@pytest.mark.parametrize("form", ["png", "webp", "gif", "bmp"])
def test_pixels_stay(tmp_path, noise, form):
    path = str(tmp_path / f"a.{form}")
    noise.save(path, **({"lossless": True} if form == "webp" else {}))
    picture = decoded(Pictures(10**6).url(path))
    assert picture.format == "PNG"
    assert np.array_equal(np.asarray(picture), np.asarray(load_image(path)))


def test_a_photo_is_upright_and_without_its_place(tmp_path, noise):
    path = str(tmp_path / "a.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    exif.get_ifd(0x8825)[1] = "N"  # GPS
    noise.save(path, quality=95, exif=exif)
    picture = decoded(Pictures(10**6).url(path))
    assert picture.format == "JPEG" and picture.size == (40, 60)
    assert not picture.getexif()
    assert np.abs(np.asarray(picture, dtype=int) - np.asarray(load_image(path), dtype=int)).mean() < 10


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1"])
def test_pictures_of_other_modes(tmp_path, noise, mode):
    path = str(tmp_path / "a.png")
    noise.convert(mode).save(path)
    assert decoded(Pictures(10**6).url(path)).mode == "RGB"


@pytest.mark.parametrize(
    ("size", "most", "sent"),
    [
        ((60, 40), 2400, (60, 40)),
        ((60, 40), 2399, (59, 39)),
        ((60, 40), 600, (30, 20)),
        ((3000, 1), 1000, (1000, 1)),  # 1732 x 1 if its shape were kept
        ((1, 3000), 1000, (1, 1000)),
        ((10, 10), 1, (1, 1)),
    ],
)
def test_size(size, most, sent):
    assert Pictures(most).size(*size) == sent


def test_large_pictures_are_scaled_down(tmp_path):
    path = str(tmp_path / "a.png")
    Image.new("RGB", (600, 400), (10, 200, 30)).save(path)
    picture = decoded(Pictures(6000).url(path))
    assert picture.size == (94, 63) and picture.getpixel((50, 30)) == (10, 200, 30)


def test_names_tell_contents_and_sizes_apart(tmp_path, noise):
    a, b, c = (str(tmp_path / name) for name in ("a.png", "b.png", "c.png"))
    noise.save(a)
    shutil.copy(a, b)
    noise.rotate(180).save(c)
    pictures = Pictures(1000)
    assert pictures.name(a) == pictures.name(b) != pictures.name(c)
    assert pictures.name(a) != Pictures(1001).name(a)


def test_a_picture_that_vanished(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Pictures(1000).url(str(tmp_path / "none.png"))
