import shutil

import pytest
from check_rows import row, write
from PIL import Image

from open_r1_kivqa.data.shared import compare
from open_r1_kivqa.data.sources import Source, open_sources


@pytest.fixture
def sides(tmp_path):
    """(training, test): a folder each with a.png and b.png; training's b.png is test's a.png under another name, and c.png of the same size but other pixels."""
    folders = []
    for name in ("training", "test"):
        folder = tmp_path / name
        folder.mkdir()
        Image.effect_noise((40, 30), 80).save(folder / "a.bmp")
        Image.effect_noise((20, 30), 80).save(folder / "b.bmp")
        folders.append(folder)
    shutil.copy(folders[1] / "a.bmp", folders[0] / "b.bmp")
    return folders


def opened(folder, rows):
    files, problems = open_sources([Source(write(folder / "rows.jsonl", rows), str(folder))])
    assert problems == []
    return files


def test_ids_images_and_questions_give_test_rows_away(sides):
    training, test = sides
    ours = [
        row("1", image="a.bmp", entity="France"),  # same size as test's a.bmp, other bytes
        row("2", image="b.bmp", entity="Chad"),
        row("x", image="a.bmp", entity="Chad"),
        row("4", "<image> what? ", image="a.bmp", entity="Peru"),
        b"{",
    ]
    theirs = [
        row("x", image="a.bmp", entity="Peru"),
        row("y", image="b.bmp"),
        row("z", "<image>Where?", image="b.bmp", entity="France"),
    ]
    problems, shared = compare(opened(training, ours), opened(test, theirs))
    place = f"{test}/rows.jsonl:1"
    assert [(p.kind, p.row) for p in problems] == [("shared_image", 1), ("shared_id", 2), ("shared_question", 3)]
    assert all(place in p.message for p in problems)
    assert shared == {"entities": 2, "questions": 1}


def test_nothing_shared(sides):
    training, test = sides
    problems, shared = compare(
        opened(training, [row("1", image="a.bmp")]), opened(test, [row("2", "<image>Who?", image="a.bmp")])
    )
    assert problems == [] and shared == {"entities": 0, "questions": 0}
