"""Photo-like variants and locator maps."""

import numpy as np
from PIL import Image

from open_r1_kivqa.demo import IMAGES, pictures


def test_photo_variant_is_a_function_of_its_seed():
    flag = Image.open(IMAGES / "flags" / "fr.png").convert("RGB")
    before = flag.tobytes()
    one, again, other = (pictures.photo_variant(flag, seed) for seed in (1, 1, 2))
    assert one.size == pictures.SIZE and one.mode == "RGB"
    assert one.tobytes() == again.tobytes() != other.tobytes()
    assert flag.tobytes() == before


def test_photo_variant_keeps_the_flags_layout():
    """France's bands stay blue, white, red from left to right under any of thirty cuts and lights."""
    flag = Image.open(IMAGES / "flags" / "fr.png").convert("RGB")
    for seed in range(30):
        pixels = np.asarray(pictures.photo_variant(flag, seed), dtype=float)[20:64]
        left, right = pixels[:, :6].mean(axis=(0, 1)), pixels[:, -6:].mean(axis=(0, 1))
        assert left[2] - left[0] > right[2] - right[0], seed


def test_distances_are_root_mean_squares():
    black, white = (pictures.features(Image.new("RGB", (20, 20), colour)) for colour in ("black", "white"))
    assert pictures.distances(black[None], np.stack([black, white])).tolist() == [[0.0, 1.0]]


def test_locator_map_marks_the_country_and_not_its_neighbour():
    square = np.array([[0.0, 0.0], [20.0, 0.0], [20.0, 20.0], [0.0, 20.0], [0.0, 0.0]])
    countries = {"Here": [square], "East": [square + (20, 0)]}
    drawn = np.asarray(pictures.locator_map(countries, "Here", seed=0)).astype(int)
    red = np.abs(drawn - pictures.MARK).sum(axis=2) < 30
    land = np.abs(drawn - pictures.LAND).sum(axis=2) < 30
    sea = np.abs(drawn - pictures.SEA).sum(axis=2) < 30
    assert red.sum() > 500 and land.sum() > 300 and sea.sum() > 1000
    assert np.argwhere(red)[:, 1].max() < np.argwhere(land)[:, 1].max()


def test_small_countries_are_ringed():
    speck = np.array([[0.0, 0.0], [0.1, 0.0], [0.1, 0.1], [0.0, 0.0]])
    drawn = np.asarray(pictures.locator_map({"Speck": [speck]}, "Speck", seed=0)).astype(int)
    ring = np.argwhere(np.abs(drawn - pictures.MARK).sum(axis=2) < 150)
    assert np.ptp(ring, axis=0).min() >= 14


def test_atlas_rings_are_decoded_and_unwrapped():
    """Two arcs of one square, the second used backwards; delta-encoded, across the 180th meridian."""
    topology = {
        "transform": {"scale": [1, 1], "translate": [170, 0]},
        "arcs": [[[0, 0], [8, 0], [-348, 0]], [[0, 0], [0, 10], [-340, 0], [0, -10]]],
        "objects": {
            "countries": {"geometries": [{"type": "Polygon", "properties": {"name": "Fiji"}, "arcs": [[0, ~1]]}]}
        },
    }
    (ring,) = pictures.read_atlas(topology)["Fiji"]
    assert np.abs(np.diff(ring[:, 0])).max() <= 180
    assert ring[:3, 0].tolist() == [170, 178, 190]
