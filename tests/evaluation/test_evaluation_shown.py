import json
from dataclasses import replace

import pytest
from evaluation_rows import CAPITALS, capital_row, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.shown import gold_place, passages_of, prompt_hash, prompts_hash, show
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.pictures import PassagePictures
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import Template

TEMPLATE = Template(system="", passage="{text}", user="{passages} {question}")
PROMPTING = Prompting(TEMPLATE, seed=0, num_passages=3)


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    """Two articles of six and two sections, whose texts are their keys; the second has a picture."""
    folder = tmp_path_factory.mktemp("kb")
    Image.new("RGB", (8, 8), "red").save(folder / "it.png")
    articles = [
        {
            "key": "fr",
            "title": "France",
            "sections": [{"id": str(i), "title": "", "text": f"fr#{i}"} for i in range(6)],
        },
        {
            "key": "it",
            "title": "Italy",
            "sections": [{"id": str(i), "title": "", "text": f"it#{i}"} for i in range(2)],
            "images": ["it.png"],
        },
    ]
    (folder / "kb.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))
    return KnowledgeBase.open(str(folder / "kb.jsonl"))


def keys(setting, row, kb, **change):
    return [passage.key for passage in passages_of(setting, row, replace(PROMPTING, kb=kb, **change))]


@pytest.mark.parametrize(
    ("evidence", "number", "shown"),
    [
        ("fr#0", 3, ["fr#0", "fr#1", "fr#2"]),
        ("fr#4", 3, ["fr#0", "fr#1", "fr#4"]),  # always the evidence, and in the article's order
        ("fr#4", 1, ["fr#4"]),
        (["fr#5", "fr#1"], 1, ["fr#1", "fr#5"]),  # more than --num_passages only if all are evidence
        ("fr#3", 9, [f"fr#{i}" for i in range(6)]),
        (["it#1", "fr#2"], 4, ["it#0", "it#1", "fr#0", "fr#2"]),  # both articles of a question of two hops
        (None, 2, ["it#0", "it#1"]),  # without evidence, of the entity
    ],
)
def test_the_oracle_article_shows_its_sections_in_order_and_always_the_evidence(kb, evidence, number, shown):
    row = sample("1", entity="it", candidates=["fr#1"], **({"evidence": evidence} if evidence else {}))
    assert keys("oracle_article", row, kb, num_passages=number) == shown


def test_a_row_without_evidence_and_entity_has_no_oracle_article(kb):
    assert keys("oracle_article", sample("1", candidates=["fr#1"]), kb) == []
    with pytest.raises(InputError, match="rows.jsonl:1: .*has no article 'de'"):
        keys("oracle_article", sample("1", entity="de"), kb)


class Cutting:
    """Stands for a budget: says what it was to keep."""

    def cut(self, passage, keep):
        self.seen[passage.key] = keep
        return passage

    def __init__(self):
        self.seen = {}


def test_the_oracle_articles_passages_are_cut_and_the_evidence_keeps_its_answer(kb):
    row, budget = sample("1", answer="Rome", evidence="it#1"), Cutting()
    keys("oracle_article", row, kb, budget=budget)
    assert budget.seen == {"it#0": (), "it#1": ("Rome",)}


@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_shuffled_passages_are_normals_in_another_order(kb, number, seed, id):
    row = sample(str(id), candidates=[f"fr#{i}" for i in range(number)])
    change = {"seed": seed, "num_passages": 5}
    normal, shuffled = keys("normal", row, kb, **change), keys("shuffled_passages", row, kb, **change)
    assert sorted(shuffled) == sorted(normal)
    assert shuffled != normal or len(normal) < 2
    assert shuffled == keys("shuffled_passages", row, kb, **change)


def test_orders_differ_from_row_to_row_and_by_seed(kb):
    rows = [sample(str(i), candidates=[f"fr#{j}" for j in range(5)]) for i in range(20)]
    orders = [tuple(keys("shuffled_passages", row, kb, num_passages=5)) for row in rows]
    assert len(set(orders)) > 10
    assert orders != [tuple(keys("shuffled_passages", row, kb, num_passages=5, seed=1)) for row in rows]


def test_pictures_of_articles_go_to_the_first_passages_as_shown(kb):
    row = sample("1", candidates=["it#0", "fr#0"])
    prompting = replace(PROMPTING, kb=kb, passage_pictures=PassagePictures(1, []))
    (normal,) = show([row], "normal", prompting)
    (shuffled,) = show([row], "shuffled_passages", prompting)
    assert [passage.image is not None for passage in normal.passages] == [True, False]
    assert [passage.image for passage in shuffled.passages] == [None, None]  # France, first now, has no picture


def test_place_of_the_first_gold_passage():
    assert gold_place(["a", "b", "c"], ("c", "b")) == 2
    assert gold_place(["a"], ("b",)) == 0 and gold_place([], ("b",)) == 0
    assert gold_place(["a"], ()) is None
    row = capital_row("no")
    (one,) = show([row], "normal", PROMPTING)
    assert list(CAPITALS).index("no") == 2
    # Without a knowledge base none is shown.
    assert one.record()["gold_rank"] == 3 and one.record()["gold_position"] == 0
    (one,) = show([sample("1", evidence="a#b")], "normal", PROMPTING)
    assert one.record()["gold_rank"] is None  # no candidates, no rank
    guessed = sample("1", evidence="a#b", candidates=["a#b"], evidence_source="weak")
    (one,) = show([guessed], "normal", PROMPTING)
    assert one.record()["gold_rank"] is one.record()["gold_position"] is None  # it may not be gold at all


def prompt(text, *images):
    blocks = [{"type": "image", "image": str(image)} for image in images]
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]


def test_the_prompts_hash_knows_words_and_pixels_but_no_paths(tmp_path):
    a, b, c = (tmp_path / name for name in ("a.png", "b.png", "c.png"))
    Image.new("RGB", (8, 8), "red").save(a)
    b.write_bytes(a.read_bytes())
    Image.new("RGB", (8, 8), "blue").save(c)
    hash = prompt_hash(prompt("What?", a))
    assert len(hash) == 64 and hash == prompt_hash(prompt("What?", b))
    others = [prompt("What", a), prompt("What?", c), prompt("What?"), prompt("What?", a, a)]
    others += [[{**prompt("What?", a)[0], "role": "system"}]]
    assert len({hash, *map(prompt_hash, others)}) == 6


def test_the_hash_over_all_prompts_does_not_depend_on_the_order():
    records = [{"setting": "normal", "id": id, "prompt_hash": id * 2} for id in "ab"]
    assert prompts_hash(records) == prompts_hash(records[::-1])
    assert prompts_hash(records) != prompts_hash([records[0], records[1] | {"prompt_hash": "c"}])
    assert prompts_hash(records) != prompts_hash([record | {"setting": "no_image"} for record in records])
