"""Pictures of articles, put before their passages."""

import json
import pickle

import pytest
from PIL import Image

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.context import choose_passages, may_be_first
from open_r1_kivqa.knowledge.pictures import PassagePictures

IMAGES = {
    "a": ["a.png", "never.png"],
    "b": [],
    "c": None,
    "d": ["far/d.png"],
    "gone": ["gone.png"],
    "url": ["https://x.org/u.png"],
    "out": ["../out.png"],
    "odd": [3],
}


@pytest.fixture
def folder(tmp_path):
    """kb/ with the knowledge base and a.png, images/ with far/d.png, and out.png beside both."""
    for place in ("kb/a.png", "images/far/d.png", "images/a.png", "out.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (56, 56)).save(tmp_path / place)
    parts = [{"id": str(i), "title": "", "text": f"Text {i}."} for i in range(2)]
    articles = [{"key": key, "title": key, "sections": parts, "images": images} for key, images in IMAGES.items()]
    (tmp_path / "kb" / "kb.jsonl").write_text("\n".join(map(json.dumps, articles)))
    return tmp_path


@pytest.fixture
def kb(folder):
    return KnowledgeBase.open(str(folder / "kb" / "kb.jsonl"))


def shown(pictures, kb, *keys):
    return [passage.image for passage in pictures.add([kb.passage(key) for key in keys], kb)]


def test_the_first_passages_get_the_first_picture_of_their_article(folder, kb):
    near, far = str(folder / "kb" / "a.png"), str(folder / "images" / "far" / "d.png")
    for pictures in (three := PassagePictures(3, [str(folder / "images"), ""]), pickle.loads(pickle.dumps(three))):
        assert shown(pictures, kb, "a#0", "b#0", "d#0", "d#1") == [near, None, far, None]
        assert shown(pictures, kb, "b#0", "c#1", "b#1", "a#0") == [None] * 4  # the fourth is too far behind
        assert shown(pictures, kb, "a#1", "a#0", "d#1") == [near, None, far]  # once is enough
        assert shown(pictures, kb) == []
    passages = [kb.passage("a#0"), kb.passage("d#0")]
    assert [one.image for one in PassagePictures(1, [str(folder / "images")]).add(passages, kb)] == [near, None]
    assert [passage.image for passage in passages] == [None, None]  # not changed in place


@pytest.mark.parametrize("article", ["gone", "url", "out", "d"])
def test_a_picture_that_is_not_below_a_folder_is_refused(folder, kb, article):
    with pytest.raises(InputError, match=f"of article '{article}' does not lie below .*kb; put it there, or leave"):
        PassagePictures(1, []).path(kb, article)


def test_other_faults(kb):
    with pytest.raises(InputError, match="`images` of article 'odd' is no list of paths"):
        PassagePictures(1, []).path(kb, "odd")
    with pytest.raises(InputError, match="--passage_images -1: at least 1 is wanted, or 0 for none"):
        PassagePictures.of(-1, [])
    assert PassagePictures.of(0, ["x"]) is None


@pytest.mark.parametrize("level", ["retrieved", "gold_removed", "gold", "none", "1", "2", "3", "9"])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_what_may_come_first_is_what_draws_show(kb, level, first):
    row = {
        "id": "q",
        "conversations": [{"from": "human", "value": "?"}],
        "evidence": ["b#0", "d#0"],
        "candidates": [["a#0", "b#0", "c#0"], ["d#1", "b#0", "a#1"]],
    }
    sample = parse_row(row, image_folder="", reward_method="", source="rows:1")
    seen = set()
    for draw in range(200):
        passages = choose_passages(sample, kb, level=level, num_passages=2, seed=0, draw=draw)
        seen.update(passage.key for passage in passages[:first])
    assert set(may_be_first(sample, level, 2, first)) == seen
