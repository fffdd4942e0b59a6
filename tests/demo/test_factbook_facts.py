"""Values read from the Factbook's wording, each checkable by eye."""

import pytest

from open_r1_kivqa.demo import facts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Nairobi", "Nairobi"),
        ("Tirana (Tirane)", "Tirana"),
        ("Washington, D.C.", "Washington"),
        ("Bogotá", "Bogota"),
        ("Chisinau in Romanian (Kishinev in Russian)", "Chisinau"),
        ("Malabo; note - Malabo is on the island of Bioko", "Malabo"),
        ("Porto-Novo (constitutional capital); Cotonou (seat of government)", None),
        ("Gitega (political capital), Bujumbura (commercial capital)", None),
        ("no official capital; government offices in the Yaren District", None),
    ],
)
def test_capital(text, shown):
    value = facts.capital(text)
    assert (value and value.text) == shown


@pytest.mark.parametrize(
    ("text", "shown", "aliases"),
    [
        ("580,367 sq km", "580 thousand", ("580 thousand", "580,367", "580367")),
        ("1.284 million sq km", "1.28 million", ("1.28 million", "1.284 million")),
        (
            "$124.499 billion (2024 est.)",
            "$124 billion",
            ("$124 billion", "124 billion", "$124.499 billion", "124.499 billion"),
        ),
        ("29.5% of total population (2023)", "29.5%", ("29.5%", "29.5")),
        ("4,347.15 km", "4347", ("4347", "4,347.15", "4347.15")),
        ("9,999.7 km", "10 thousand", ("10 thousand", "9,999.7", "9999.7")),
        ("999,900", "1 million", ("1 million", "999,900", "999900")),
        ("-1.14 migrants", "-1.14", ("-1.14",)),
        ("0 km (landlocked)", "0", ("0",)),
    ],
)
def test_number(text, shown, aliases):
    value = facts.number(text)
    assert (value.text, value.aliases) == (shown, aliases)


@pytest.mark.parametrize("text", ["NA", "less than 1 sq km", "3 sq km less than", ""])
def test_no_number(text):
    assert facts.number(text) is None


@pytest.mark.parametrize(
    ("parse", "text", "shown"),
    [
        (facts.demonym, "Kenyan(s)", "Kenyan"),
        (facts.demonym, "Motswana (singular), Batswana (plural)", "Motswana"),
        (facts.demonym, "none", None),
        (facts.currency_code, "Kenyan shillings (KES) per US dollar -", "KES"),
        (facts.currency_code, "baht per US dollar -", None),
        (facts.aircraft_prefix, "5Y", "5Y"),
        (facts.aircraft_prefix, "TZ, TT", None),
        (facts.highest_point, "Mount Kenya 5,199 m", "Mount Kenya"),
        (facts.highest_point, "Sapitwa (Mount Mlanje) 3,002 m", "Sapitwa"),
        (facts.highest_point, "unnamed elevation 675 m; located 2.5 km southeast of Kotopounga", None),
        (facts.summit_height, "Mount Kenya 5,199 m", "5199"),
        (facts.summit_height, "Aoraki 3,724 m; the height was 3,764 m until 1991", None),
        (facts.full_date, "12 December 1963 (from the UK)", "12 December 1963"),
        (facts.full_date, "24 September 1973 (declared); 10 September 1974 (from Portugal)", None),
        (facts.day_of_year, "Jamhuri Day (Independence Day), 12 December (1963)", "12 December"),
        (facts.day_of_year, "Independence Day, 28-29 July (1821)", None),
        (facts.national_symbol, "lion, merlion (mythical half-lion)", "lion"),
        (facts.national_symbol, "a circle of 12 stars", None),
        (facts.head_of_state, "President William RUTO (since 13 September 2022)", "Ruto"),
        (facts.head_of_state, "King LETSIE III (since 7 February 1996)", "Letsie III"),
        (facts.head_of_state, "President Denis SASSOU-Nguesso (since 1997)", "Sassou-Nguesso"),
        (facts.head_of_state, "President, Presidential Council, Mohammed al-MANFI (since 5 February 2021)", "Al-Manfi"),
        (facts.head_of_state, "President (vacant)", None),
        (facts.calling_code, "[254] (20) 363-6000", "254"),
        (facts.calling_code, "[20-2] 2797-3300", "20"),
        (facts.calling_code, "(246) 227-4000", None),
    ],
)
def test_named_values(parse, text, shown):
    value = parse(text)
    assert (value and value.text) == shown


def test_normalise():
    assert facts.normalise("The Star, of David!") == "star of david"
    assert facts.normalise("5,199") == facts.normalise("5199")
    assert facts.normalise("4.5") != facts.normalise("45")


def test_same_answer():
    def value(text):
        return facts.number(text)

    assert facts.same_answer(value("100"), value("104"))  # within 5 %
    assert not facts.same_answer(value("100"), value("106"))
    assert facts.same_answer(facts.capital("Tirana (Tirane)"), facts.capital("Tirane"))
    assert not facts.same_answer(facts.capital("Rome"), facts.capital("Paris"))


def test_common_values_and_thin_attributes_are_left_out():
    def entity(i):
        values = {
            "capital": facts.capital(f"Town {i}"),
            "coastline": facts.number("0 km" if i < 20 else f"{i} km"),
            "currency_code": facts.currency_code(
                f"francs ({'XAF' if i < 110 else f'A{chr(65 + i // 26)}{chr(65 + i % 26)}'})"
            ),
        }
        return facts.Entity(f"e{i}", f"Entity {i}", "", "", values)

    attributes, entities = facts.admit([entity(i) for i in range(200)])
    assert [attribute.key for attribute in attributes] == ["capital", "coastline"]  # 90 currencies are left: too few
    assert sum("coastline" in entity.values for entity in entities) == 180


def test_flag_description_tells_neither_name_nor_meaning():
    article = {
        "Government": {
            "Flag": {
                "text": "<strong>description:</strong> Kenya's red band; a Kenyan shield<br><strong>meaning:</strong> blood"
            },
            "Country name": {"conventional short form": {"text": "Kenya"}},
        },
        "People and Society": {"Nationality": {"adjective": {"text": "Kenyan"}}},
    }
    assert facts.flag_description(article, "Kenya") == "national red band; a national shield"
