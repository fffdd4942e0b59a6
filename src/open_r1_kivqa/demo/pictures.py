"""Pictures of the benchmark: clean flags, photo-like variants of them, locator maps, and the features that say which pictures look alike.

Clean flags belong to the knowledge base (224x168). What a question shows is a variant (112x84, multiples of the 28 pixels of one Qwen2.5-VL image token): cut out, turned, unevenly
lit, tinted, blurred and noisy, so that it never equals the knowledge base's picture. Everything is a function of a seed.
"""

import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

FLAG_SIZE = (224, 168)
SIZE = (112, 84)
JPEG_QUALITY = 85  # a PNG of the same noisy picture is five times larger


def render_flag(svg: Path) -> Image.Image:
    """An SVG as an RGB picture of FLAG_SIZE; needs resvg-py, which only the build does."""
    import resvg_py

    png = resvg_py.svg_to_bytes(
        svg_path=str(svg), width=2 * FLAG_SIZE[0], height=2 * FLAG_SIZE[1], background="white", skip_system_fonts=True
    )
    return Image.open(io.BytesIO(png)).convert("RGB").resize(FLAG_SIZE, Image.Resampling.LANCZOS)


def variant_seed(split: str, key: str, index: int) -> int:
    """Seed of variant `index` of entity `key`. The splits "train" and "eval" are the committed pictures; take another name for more of them."""
    return zlib.crc32(f"{split}/{key}/{index}".encode())


def photo_variant(clean_rgb: Image.Image, seed: int) -> Image.Image:
    """A photo-like view of a clean flag: 50 to 80 % of its area, turned by up to 15 degrees, unevenly lit, tinted, blurred and noisy; RGB, SIZE."""
    rng = np.random.default_rng(seed)
    width, height = clean_rgb.size
    scale = np.sqrt(rng.uniform(0.5, 0.8))
    angle = np.deg2rad(rng.uniform(-15, 15))
    free = (1 - scale) / 2
    centre = (0.5 + rng.uniform(-free, free)) * width, (0.5 + rng.uniform(-free, free)) * height
    wall = tuple(
        int(level) for level in rng.integers(60, 200, 3)
    )  # seen beyond the flag's edge where the turned cut reaches over it

    zoom = scale * width / (2 * SIZE[0])  # drawn at twice the size, so that shrinking smooths the edges
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    matrix = (cos, -sin, centre[0] - cos * SIZE[0] + sin * SIZE[1], sin, cos, centre[1] - sin * SIZE[0] - cos * SIZE[1])
    view = clean_rgb.transform(
        (2 * SIZE[0], 2 * SIZE[1]), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=wall
    )
    view = view.resize(SIZE, Image.Resampling.BOX).filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))

    pixels = np.asarray(view, dtype=np.float64)
    direction = rng.uniform(0, 2 * np.pi)
    across, down = np.meshgrid(np.linspace(-1, 1, SIZE[0]), np.linspace(-1, 1, SIZE[1]))
    slope = np.cos(direction) * across + np.sin(direction) * down
    light = rng.uniform(0.42, 1.1) + rng.uniform(0.15, 0.45) * slope
    pixels = pixels * light[..., None] * rng.uniform(0.75, 1.25, 3) + rng.uniform(-10, 65)
    pixels = pixels + rng.normal(0, rng.uniform(2, 5), pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def features(picture: Image.Image) -> np.ndarray:
    """What "looks alike" means here: the colours of a 12x9 thumbnail, in 0..1, flattened to 324 numbers."""
    thumbnail = picture.convert("RGB").resize((12, 9), Image.Resampling.BOX)
    return np.asarray(thumbnail, dtype=np.float64).reshape(-1) / 255


def distances(queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Root mean square difference of every query's features (Q, D) from every target's (T, D): (Q, T)."""
    return np.sqrt(((queries[:, None, :] - targets[None, :, :]) ** 2).mean(axis=2))


def save_flag(picture: Image.Image, path: Path) -> None:
    picture.quantize(48, dither=Image.Dither.NONE).save(path, optimize=True)


def save_photo(picture: Image.Image, path: Path) -> None:
    picture.save(path, quality=JPEG_QUALITY, optimize=True)


# Locator maps

# The atlas's names that differ from the titles of the knowledge base.
ATLAS_TITLES = {
    "Antigua and Barb.": "Antigua and Barbuda",
    "Bosnia and Herz.": "Bosnia and Herzegovina",
    "Central African Rep.": "Central African Republic",
    "Cook Is.": "Cook Islands",
    "Curaçao": "Curacao",
    "Côte d'Ivoire": "Ivory Coast",
    "Dem. Rep. Congo": "DR Congo",
    "Dominican Rep.": "Dominican Republic",
    "Eq. Guinea": "Equatorial Guinea",
    "Faeroe Is.": "Faroe Islands",
    "Falkland Is.": "Falkland Islands",
    "Fr. Polynesia": "French Polynesia",
    "Cayman Is.": "Cayman Islands",
    "Macao": "Macau",
    "Macedonia": "North Macedonia",
    "Marshall Is.": "Marshall Islands",
    "Myanmar": "Burma",
    "N. Mariana Is.": "Northern Mariana Islands",
    "Pitcairn Is.": "Pitcairn Islands",
    "S. Sudan": "South Sudan",
    "Solomon Is.": "Solomon Islands",
    "St-Barthélemy": "Saint Barthelemy",
    "St-Martin": "Saint Martin",
    "St. Kitts and Nevis": "Saint Kitts and Nevis",
    "St. Pierre and Miquelon": "Saint Pierre and Miquelon",
    "St. Vin. and Gren.": "Saint Vincent and the Grenadines",
    "São Tomé and Principe": "Sao Tome and Principe",
    "Turks and Caicos Is.": "Turks and Caicos Islands",
    "U.S. Virgin Is.": "US Virgin Islands",
    "United States of America": "United States",
    "Wallis and Futuna Is.": "Wallis and Futuna",
    "eSwatini": "Eswatini",
}
SEA, LAND, BORDER, MARK = (170, 205, 230), (225, 220, 205), (150, 145, 135), (200, 40, 40)


def read_atlas(topology: dict) -> dict[str, list[np.ndarray]]:
    """Country title to its outer rings, each (N, 2) longitudes and latitudes in degrees, from a TopoJSON of world-atlas."""
    scale, origin = np.array(topology["transform"]["scale"]), np.array(topology["transform"]["translate"])
    arcs = [np.cumsum(np.array(arc), axis=0) * scale + origin for arc in topology["arcs"]]
    countries: dict[str, list[np.ndarray]] = {}
    for geometry in topology["objects"]["countries"]["geometries"]:
        name = geometry["properties"]["name"]
        polygons = {"Polygon": [geometry.get("arcs")], "MultiPolygon": geometry.get("arcs")}.get(geometry["type"], [])
        rings = [
            np.concatenate([arcs[arc] if arc >= 0 else arcs[~arc][::-1] for arc in polygon[0]]) for polygon in polygons
        ]
        for ring in rings:
            ring[:, 0] = np.unwrap(ring[:, 0], period=360)  # Russia and Fiji cross the 180th meridian
        rings = [
            ring for ring in rings if np.ptp(ring[:, 0]) < 300
        ]  # Antarctica has no middle to frame, and no country's map reaches it
        countries.setdefault(ATLAS_TITLES.get(name, name), []).extend(rings)
    return countries


def locator_map(countries: dict[str, list[np.ndarray]], title: str, seed: int) -> Image.Image:
    """A map around the country's largest part, the country in red, framed a little differently for each seed; RGB, SIZE."""
    rng = np.random.default_rng(seed)
    main = max(countries[title], key=lambda ring: np.prod(np.ptp(ring, axis=0)))
    low, high = main.min(axis=0), main.max(axis=0)
    middle = (low + high) / 2
    squeeze = np.cos(np.deg2rad(middle[1]))  # a degree of longitude is this much shorter than one of latitude
    extent = (high - low) * (squeeze, 1)
    span = max(extent[1] * 2.2, extent[0] * 2.2 * SIZE[1] / SIZE[0], 12.0) * rng.uniform(0.9, 1.3)
    centre = middle + rng.uniform(-0.12, 0.12, 2) * span / (squeeze, 1)

    times = 4  # drawn larger, so that shrinking smooths the lines
    unit = SIZE[1] * times / span

    def to_pixels(ring: np.ndarray, turn: int) -> list[tuple[float, float]]:
        x = (ring[:, 0] + turn - centre[0]) * squeeze * unit + SIZE[0] * times / 2
        y = (centre[1] - ring[:, 1]) * unit + SIZE[1] * times / 2
        return list(zip(x.tolist(), y.tolist(), strict=True))

    canvas = Image.new("RGB", (SIZE[0] * times, SIZE[1] * times), SEA)
    draw = ImageDraw.Draw(canvas)
    for name in sorted(countries, key=lambda name: name == title):  # the country itself last, on top of enclosing ones
        for ring in countries[name]:
            for turn in (-360, 0, 360):
                draw.polygon(to_pixels(ring, turn), fill=MARK if name == title else LAND, outline=BORDER, width=2)
    if max(extent) * unit < 12 * times:  # too small to see: ring it
        x, y = to_pixels(middle[None], 0)[0]
        radius = 9 * times
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=MARK, width=2 * times)
    return canvas.resize(SIZE, Image.Resampling.BOX)


def save_map(picture: Image.Image, path: Path) -> None:
    picture.quantize(16, dither=Image.Dither.NONE).save(path, optimize=True)
