"""From the CIA World Factbook's texts to short, comparable attribute values.

A value is what a passage states and a question asks for: one to four words, or a number of at most four significant digits. Whatever the texts leave ambiguous (two dates, a
bare "NA", "less than 1") gives no value rather than a doubtful one.
"""

import functools
import html
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

MAX_SHARE = (
    0.05  # an answer that fits more than this share of an attribute's entities can be guessed without the picture
)
MIN_ENTITIES = 120  # an attribute known of fewer entities is left out

# Short common names where the Factbook's own are long, missing or ambiguous.
TITLES = {
    "ae": "United Arab Emirates",
    "bs": "Bahamas",
    "cd": "DR Congo",
    "cf": "Central African Republic",
    "cg": "Congo",
    "ci": "Ivory Coast",
    "do": "Dominican Republic",
    "fk": "Falkland Islands",
    "fm": "Micronesia",
    "gm": "Gambia",
    "sh": "Saint Helena",
    "va": "Vatican City",
    "vi": "US Virgin Islands",
}
# Not one country under one flag: the EU, and Gaza and the West Bank, which share a flag and an internet code but have articles of their own.
LEFT_OUT = {"eu", "ps"}
ISO_OF_INTERNET = {"uk": "gb"}
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"


@dataclass(frozen=True)
class Value:
    """A value as shown (`text`), every string that counts as the same answer, and the number behind it (None for names and dates)."""

    text: str
    aliases: tuple[str, ...]
    number: float | None = None


@dataclass(frozen=True)
class Attribute:
    """One attribute: `key` is the passage's section id, `phrase` stands in questions and passages, `path` leads to the text in the Factbook's json."""

    key: str
    phrase: str
    path: str
    parse: Callable[[str], Value | None]
    held_out: bool = False  # asked only in the split unseen_question
    unique: bool = False  # a value given to two entities is wrong for one of them: neither keeps it

    @property
    def answer_type(self) -> str:
        return "numeric" if self.parse is number else "string"


@dataclass(frozen=True)
class Entity:
    """One country or territory: `key` is its ISO code, ``values` maps attribute keys to values."""

    key: str
    title: str
    source: str
    description: str
    values: dict[str, Value]


def plain(text: str) -> str:
    """HTML to plain text on one line."""
    text = re.sub(r"<[^>]+>", " ", html.unescape(text)).replace("\xa0", " ")
    return re.sub(r"\s+", " ", text).strip()


def ascii_fold(text: str) -> str:
    """Without accents: the Factbook writes some names with and most without them."""
    return unicodedata.normalize("NFKD", text.replace("’", "'")).encode("ascii", "ignore").decode()


@functools.cache
def normalise(text: str) -> str:
    """Lower case, no accents, no punctuation but that inside numbers, no articles: two answers that agree here are the same answer."""
    text = re.sub(r"(?<=\d),(?=\d)", "", ascii_fold(text).lower())
    text = re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.\- ]", " ", text)
    return " ".join(word for word in text.split() if word not in {"a", "an", "the"})


def _named(text: str, *more: str) -> Value | None:
    """A value made of words, at most four of them."""
    text = text.strip(" ,;.")
    shown = ascii_fold(text)
    if not shown or len(shown.split()) > 4:
        return None
    return Value(shown, tuple(dict.fromkeys([shown, text, *(other.strip() for other in more if other.strip())])))


def capital(text: str) -> Value | None:
    if text.startswith(("no official", "administered")):
        return None
    if text.startswith("Washington"):
        return _named("Washington", "Washington, D.C.", "Washington DC")
    if re.search(r"\bcapital\)|seat of government\)", text) or re.search(r"\),? [A-Z].*\(", text):
        return None  # more than one capital
    other = re.search(r"\((?:aka )?([A-Z][\w' -]*)[),/]", text)
    return _named(re.split(r"[(;,]| in Romanian", text)[0], other.group(1) if other else "")


def demonym(text: str) -> Value | None:
    if text.startswith(("none", "NA")):
        return None
    names = [re.sub(r"\(.*?\)", "", part).strip() for part in re.split(r",|;| or |/", text)]
    return _named(names[0], *names[1:])


def currency_code(text: str) -> Value | None:
    code = re.search(r"\(([A-Z]{3})\)", text)
    return _named(code.group(1)) if code else None


def aircraft_prefix(text: str) -> Value | None:
    return _named(text) if re.fullmatch(r"[A-Z0-9-]+", text) else None


def highest_point(text: str) -> Value | None:
    name = re.split(r" on (?!\w+ Island)|\(|,| [\d.]+ ?k?m\b| [\d,]{3,}$| at ", re.sub(r" [\d,]+ m\b.*", "", text))[0]
    if re.match(r"\d|unnamed|East-central|ocean|Soufriere Hills volcano pre", name):
        return None
    other = re.search(r"\(([A-Z][\w' -]*)\)", text)
    return _named(name.split("/")[0], other.group(1) if other else "")


def summit_height(text: str) -> Value | None:
    height = re.search(r"([\d,]+) m\b", text)
    return number(height.group(1)) if height and len(re.findall(r"[\d,]+ m\b", text)) == 1 else None


def full_date(text: str) -> Value | None:
    dates = re.findall(rf"\b\d{{1,2}} (?:{MONTHS}) \d{{4}}\b", text)
    return _named(dates[0]) if len(dates) == 1 and text.startswith(dates[0]) else None


def day_of_year(text: str) -> Value | None:
    days = re.findall(rf"(?<![\d-])\d{{1,2}} (?:{MONTHS})\b", text)
    return _named(days[0]) if len(days) == 1 and not re.search(rf"-{days[0]}", text) else None


def national_symbol(text: str) -> Value | None:
    if re.search(r"no official|\d", text):
        return None
    symbols = [re.sub(r"^(a|an|the) ", "", part.strip()) for part in re.split(r"[,;]", re.sub(r"\(.*?\)", "", text))]
    return _named(re.sub(r"\s+", " ", symbols[0]), *symbols[1:])


def head_of_state(text: str) -> Value | None:
    text = re.split(r";|,? represented", re.sub(r"\(.*?\)", "", text))[0]
    name = re.search(r"(?:\w+-)?[A-ZÀ-Þ’'-]{3,}[a-z]*(?: [A-ZÀ-Þ]{2,})*", text)
    if name is None:
        return None
    words = [
        word if re.fullmatch(r"[IVX]+", word) else "-".join(part.capitalize() for part in word.split("-"))
        for word in name.group().split()
    ]
    return _named(" ".join(words), re.sub(r"\s+", " ", text))


def calling_code(text: str) -> Value | None:
    code = re.match(r"\[([1-9]\d{0,2})[\]-]", text)  # in round brackets the Factbook also writes area codes
    return _named(code.group(1), "+" + code.group(1)) if code else None


def number(text: str) -> Value | None:
    """The first number: below 10,000 to four significant digits, above to three with a word of magnitude ("580 thousand", "$124 billion", "29.5%")."""
    text = re.sub(r"^\(\d{4} est\.\)", "", text).strip()
    found = re.match(r"(-?)(\$?)([\d,]*\.?\d+)(?: (million|billion|trillion))?\s*(%?)", text)
    if not found or "less than" in text:
        return None
    sign, dollar, digits, word, percent = found.groups()
    scales = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
    value = float(sign + digits.replace(",", "")) * scales.get(word, 1)
    shown = _short(value, scales)
    exact = f"{sign}{digits}" + (f" {word}" if word else "")
    aliases = [dollar + shown + percent, shown, dollar + exact + percent, exact, exact.replace(",", "")]
    return Value(aliases[0], tuple(dict.fromkeys(aliases)), value)


def _short(value: float, scales: dict[str, float]) -> str:
    if abs(value) < 9999.5:
        return f"{value:.4g}"
    word, scale = [(word, scale) for word, scale in scales.items() if float(f"{abs(value):.2e}") >= scale][-1]
    return f"{float(f'{value:.2e}') / scale:g} {word}"


_P, _E, _G, _H = "People and Society", "Economy", "Geography", "Government"
ATTRIBUTES = [
    Attribute("capital", "capital", f"{_H}/Capital/name", capital),
    Attribute("demonym", "demonym", f"{_P}/Nationality/noun", demonym),
    Attribute("currency_code", "currency code", f"{_E}/Exchange rates/Currency", currency_code),
    Attribute(
        "aircraft_prefix",
        "aircraft prefix",
        "Transportation/Civil aircraft registration country code prefix",
        aircraft_prefix,
    ),
    Attribute("highest_point", "highest point", f"{_G}/Elevation/highest point", highest_point, held_out=True),
    Attribute("summit_height", "summit height", f"{_G}/Elevation/highest point", summit_height),
    Attribute("independence_date", "independence date", f"{_H}/Independence", full_date),
    Attribute("national_holiday", "national holiday", f"{_H}/National holiday", day_of_year),
    Attribute("national_symbol", "national symbol", f"{_H}/National symbol(s)", national_symbol),
    Attribute("head_of_state", "head of state", f"{_H}/Executive branch/chief of state", head_of_state),
    Attribute(
        "calling_code",
        "calling code",
        f"{_H}/Diplomatic representation from the US/telephone",
        calling_code,
        held_out=True,
        unique=True,
    ),
    Attribute("area", "area", f"{_G}/Area/total ", number),
    Attribute("coastline", "coastline", f"{_G}/Coastline", number, held_out=True),
    Attribute("border_length", "border length", f"{_G}/Land boundaries/total", number),
    Attribute("forest_share", "forest share", f"{_G}/Land use/forest", number),
    Attribute("farmland_share", "farmland share", f"{_G}/Land use/agricultural land", number),
    Attribute("population", "population", f"{_P}/Population/total", number),
    Attribute("median_age", "median age", f"{_P}/Median age/total", number),
    Attribute("birth_rate", "birth rate", f"{_P}/Birth rate", number),
    Attribute("death_rate", "death rate", f"{_P}/Death rate", number),
    Attribute("fertility_rate", "fertility rate", f"{_P}/Total fertility rate", number),
    Attribute("infant_mortality", "infant mortality", f"{_P}/Infant mortality rate/total", number),
    Attribute(
        "life_expectancy", "life expectancy", f"{_P}/Life expectancy at birth/total population", number, held_out=True
    ),
    Attribute("urban_share", "urban share", f"{_P}/Urbanization/urban population", number),
    Attribute("obesity_rate", "obesity rate", f"{_P}/Obesity - adult prevalence rate", number),
    Attribute("gdp", "GDP", f"{_E}/GDP (official exchange rate)", number),
    Attribute("income_per_head", "income per head", f"{_E}/Real GDP per capita/Real GDP per capita 2023", number),
    Attribute("export_value", "export value", f"{_E}/Exports/Exports 2022", number, held_out=True),
    Attribute("import_value", "import value", f"{_E}/Imports/Imports 2022", number),
    Attribute("labor_force", "labor force", f"{_E}/Labor force", number),
    Attribute(
        "inflation_rate",
        "inflation rate",
        f"{_E}/Inflation rate (consumer prices)/Inflation rate (consumer prices) 2022",
        number,
        held_out=True,
    ),
    Attribute("exchange_rate", "exchange rate", f"{_E}/Exchange rates/Exchange rates 2022", number),
    Attribute("power_use", "power use", "Energy/Electricity/consumption", number),
    Attribute(
        "carbon_output",
        "carbon output",
        "Environment/Carbon dioxide emissions/total emissions",
        number,
        held_out=True,
    ),
    Attribute("phone_count", "phone count", "Communications/Telephones - mobile cellular/total subscriptions", number),
    Attribute("airport_count", "airport count", "Transportation/Airports", number),
]


def read_entities(data_folder: Path) -> list[Entity]:
    """All countries and territories with an internet code, sorted by key, with every value that could be read; frequencies are not looked at yet."""
    entities = {}
    for file in sorted(data_folder.glob("*/*.json")):
        article = json.loads(file.read_text(encoding="utf-8"))
        code = re.search(r"\.([a-z]{2})\b", _text(article, "Communications/Internet country code"))
        key = ISO_OF_INTERNET.get(code.group(1), code.group(1)) if code else None
        if key is None or key in LEFT_OUT:
            continue
        title = TITLES.get(key) or ascii_fold(
            re.split(r" \(", _text(article, f"{_H}/Country name/conventional short form"))[0]
        )
        values = {}
        for attribute in ATTRIBUTES:
            text = _text(article, attribute.path)
            value = attribute.parse(text) if text else None
            if value is not None:
                values[attribute.key] = value
        entities[key] = Entity(key, title, f"{file.parent.name}/{file.name}", flag_description(article, title), values)
    return [entities[key] for key in sorted(entities)]


def admit(entities: list[Entity]) -> tuple[list[Attribute], list[Entity]]:
    """Leave out values that fit more than MAX_SHARE of an attribute's entities, then attributes known of fewer than MIN_ENTITIES."""
    keep = {}
    for attribute in ATTRIBUTES:
        known = {
            entity.key: normalise(entity.values[attribute.key].text)
            for entity in entities
            if attribute.key in entity.values
        }
        while common := {
            value
            for value, count in Counter(known.values()).items()
            if count > (1 if attribute.unique else MAX_SHARE * len(known))
        }:
            known = {key: value for key, value in known.items() if value not in common}
        if len(known) >= MIN_ENTITIES:
            keep[attribute.key] = known
    admitted = [attribute for attribute in ATTRIBUTES if attribute.key in keep]
    kept = []
    for entity in entities:
        values = {key: value for key, value in entity.values.items() if key in keep and entity.key in keep[key]}
        kept.append(replace(entity, values=values))
    return admitted, kept


def same_answer(one: Value, other: Value) -> bool:
    """Whether a scorer could take one value for the other: an alias in common, or numbers within 5 % of each other."""
    if not _names(one).isdisjoint(_names(other)):
        return True
    if one.number is None or other.number is None:
        return False
    return abs(one.number - other.number) <= 0.05 * max(abs(one.number), abs(other.number))


@functools.cache
def _names(value: Value) -> frozenset[str]:
    return frozenset(normalise(alias) for alias in value.aliases)


def flag_description(article: dict, title: str) -> str:
    """What the flag looks like, without what it means, its history and the entity's own name and adjective; "" where the Factbook has none."""
    text = _text(article, f"{_H}/Flag")
    if "description:" not in text:
        return ""
    text = re.split(r"\b(?:meaning|history|note)s?:", text.split("description:", 1)[1])[0].strip(" ;")
    own = [
        title,
        _text(article, f"{_H}/Country name/conventional short form"),
        _text(article, f"{_P}/Nationality/adjective"),
    ]
    for name in own:
        if len(name) > 3:
            text = re.sub(rf"\b{re.escape(name)}\b('s)?", "national", text)
    return text


def _text(article: dict, path: str) -> str:
    for part in path.split("/"):
        article = article.get(part, {})
    return plain(article.get("text", ""))
