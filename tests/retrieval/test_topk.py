"""Other systems' lists: the forms they come in, and what is no such form."""

import json

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.titles import Titles
from open_r1_kivqa.retrieval.topk import Retrieved, TopK, read_mapping

WIKI = "https://en.wikipedia.org/wiki/"
ARTICLES = {
    f"{WIKI}Red_fox": ("Red fox", ["Lead.", "Mice."]),
    f"{WIKI}Caf%C3%A9": ("Café", ["Coffee."]),
    f"{WIKI}Owl": ("Owl", ["A bird."]),
}
FOX, CAFE, OWL = ARTICLES


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("kb") / "kb.jsonl"
    with open(path, "w") as file:
        for key, (title, texts) in ARTICLES.items():
            sections = [{"id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
            file.write(json.dumps({"key": key, "title": title, "url": key, "sections": sections}) + "\n")
    return KnowledgeBase.open(str(path))


@pytest.fixture
def read(kb, tmp_path):
    def read(value, mapping=None, redirects=None, name="topk.json") -> TopK:
        path = tmp_path / name
        lines = "".join(json.dumps(part) + "\n" for part in value) if name.endswith("l") else json.dumps(value)
        path.write_text(lines)
        return TopK.read(str(path), kb, Titles.open(kb, redirects), read_mapping(mapping))

    return read


def sample(id: str, **fields):
    row = {"id": id, "conversations": [{"from": "human", "value": "What?"}], **fields}
    return parse_row(row, image_folder="", reward_method="", source="rows.jsonl:1")


SCORED = Retrieved(articles=(OWL, FOX), visual=(0.9, 0.5))


@pytest.mark.parametrize(
    "entry",
    [
        {"retrieved": [FOX, OWL], "scores": [0.5, 0.9]},
        {"retrieved_entries": [FOX, OWL], "retrieval_similarities": [0.5, 0.9]},  # EchoSight's
        {"retrieved": [{"url": OWL, "similarity": 0.9}, {"title": "Red fox", "score": 0.5}]},
        [{"key": OWL, "score": 0.9}, {"key": FOX, "score": 0.5}],
    ],
)
def test_articles_with_scores(read, entry):
    assert read({"q1": entry}).lists == {"q1": SCORED}
    if isinstance(entry, dict):
        assert read([{"data_id": "q1", **entry}]).lists == {"q1": SCORED}
        assert read([{"id": "q1", **entry}], name="topk.jsonl").lists == {"q1": SCORED}


def test_articles_without_scores_fall_evenly(read):
    assert read({"q1": [OWL, FOX, CAFE]}).lists["q1"] == Retrieved(
        articles=(OWL, FOX, CAFE), visual=(1.0, pytest.approx(2 / 3), pytest.approx(1 / 3))
    )


def test_passages_keep_their_order(read):
    topk = read({"q1": [f"{OWL}#0", f"{FOX}#1", f"{FOX}#0"]})
    assert topk.lists["q1"] == Retrieved(passages=(f"{OWL}#0", f"{FOX}#1", f"{FOX}#0"))
    assert topk.longest == 3 and topk.to_json()["of_passages"] == 1


def test_names_are_found_as_titles_are(read):
    names = ["Café", "red_fox", f"{WIKI}Owl#Diet", "Strix"]
    topk = read({"q1": names}, redirects={"Strix": "Owl"})
    assert topk.lists["q1"].articles == (CAFE, FOX, OWL)  # Strix leads to Owl, which is there already
    assert topk.unmatched == 0
    assert read({"q1": ["Café#0"]}).lists["q1"].passages == (f"{CAFE}#0",)


def test_names_that_are_not_there_are_counted(read):
    topk = read({"q1": ["Wolf", OWL, "Wolf"], "q2": ["Bear"]})
    assert topk.lists["q2"] == Retrieved()
    assert topk.to_json() == {
        "lists": 2,
        "of_passages": 0,
        "names": 4,
        "unmatched": 3,
        "unmatched_examples": ["Wolf", "Bear"],
        "scored": False,
    }
    assert topk.lines() == [
        "2 lists with 4 names, 3 of them (75.0 %) not in the knowledge base.",
        "Not there, for example: 'Wolf', 'Bear'",
    ]


def test_an_article_named_twice_counts_once(read):
    entry = {"retrieved": [OWL, FOX, OWL], "scores": [0.9, 0.5, 0.4]}
    assert read({"q1": entry}).lists["q1"] == SCORED


def test_rows_are_found_by_id_data_id_and_echosights_number(read):
    topk = read({"q1": [OWL], "7": [FOX], "E-VQA_12": [CAFE]})
    assert topk.of(sample("q1")).articles == (OWL,)
    assert topk.of(sample("other", data_id=7)).articles == (FOX,)
    assert topk.of(sample("other", data_id="12")).articles == (CAFE,)
    assert topk.of(sample("12")) is None


def test_fields_of_other_names(read):
    entry = {"qid": 3, "docs": [{"wiki": OWL, "cos": 0.9}, {"wiki": FOX, "cos": 0.5}]}
    topk = read([entry], mapping="id=qid,retrieved=docs,name=wiki,score=cos")
    assert topk.lists == {"3": SCORED}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [{"qid": 3, "docs": []}],
            r"none of the fields data_id, id, question_id is there, only qid, docs; .*--map id=NAME",
        ),
        ([{"id": 3, "docs": []}], "none of the fields retrieved, .* --map retrieved=NAME"),
        ([{"id": 1.5, "retrieved": []}], "the id is 1.5"),
        ([[OWL]], "wanted is an object, found a list"),
        ({"q1": "Owl"}, "wanted is a list of what was retrieved, found a str"),
        ({"q1": [3]}, "3 is no name"),
        ({"q1": [OWL, f"{FOX}#0"]}, "names articles and passages"),
        ({"q1": {"retrieved": [OWL], "scores": [1, 2]}}, "one score for each of the 1 things"),
        ({"q1": [{"url": OWL, "score": "high"}]}, "the score of .* is 'high'"),
        ({"q1": [{"url": OWL, "score": float("nan")}]}, "is nan; wanted is a finite number"),
        ([{"id": "q1", "retrieved": [OWL]}, {"id": "q1", "retrieved": [OWL]}], "id 'q1' is given twice"),
        ({"q1": ["Wolf"]}, "none of its 1 names is an article or passage .* --redirects"),
        ({}, "holds no list"),
        ("q1", "holds a str"),
    ],
)
def test_what_is_no_such_file(read, value, message):
    with pytest.raises(InputError, match=message):
        read(value)


def test_files_that_cannot_be_read(kb, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        TopK.read(str(tmp_path / "none.json"), kb, Titles.open(kb), {})
    path = tmp_path / "lines.json"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    with pytest.raises(InputError, match=r"is not JSON .* must end with \.jsonl"):
        TopK.read(str(path), kb, Titles.open(kb), {})


@pytest.mark.parametrize("text", ["qid", "qid=id", "id=", "ids=x"])
def test_mappings_that_are_none(text):
    with pytest.raises(InputError, match="not of the form ours=theirs"):
        read_mapping(text)


@pytest.mark.parametrize("text", ['{"1": ["Owl"], "1": ["Red fox"]}', '{"1": {"retrieved": ["Owl"], "retrieved": []}}'])
def test_a_key_twice_in_one_object_is_refused(kb, tmp_path, text):
    path = tmp_path / "topk.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is given twice in one object"):
        TopK.read(str(path), kb, Titles.open(kb), {})
