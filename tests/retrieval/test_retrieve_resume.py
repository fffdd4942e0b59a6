"""A `kivqa retrieve` that was stopped, or that another one would disturb."""

import pytest
from retrieve_world import COLOURS, picture, question

from open_r1_kivqa.cli import main
from open_r1_kivqa.retrieval import blocks
from open_r1_kivqa.retrieval.candidates import Retriever


def test_an_interrupted_run_goes_on_where_it_was(world, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 2)
    rows = [question(str(i), f"{name}.png", entity=name) for i, name in enumerate([*COLOURS, *COLOURS])]
    expected, report = world.run(rows)
    (world.folder / "out.jsonl").unlink()

    asked, answer = [], Retriever.answer

    def counted(self, samples):
        asked.append(len(samples))
        if len(asked) == stop_at:
            raise KeyboardInterrupt
        return answer(self, samples)

    monkeypatch.setattr(Retriever, "answer", counted)
    stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        main(world.flags(None))
    assert not (world.folder / "out.jsonl").exists()
    stop_at, asked[:] = 0, []
    assert world.run(rows) == (expected, report)
    assert asked == [2, 2]  # the first block was there
    assert not (world.folder / "out.jsonl.parts").exists()

    stop_at, asked[:] = 2, []
    with pytest.raises(KeyboardInterrupt):
        main(world.flags(None))
    stop_at, asked[:] = 0, []
    world.run(rows, "--visual_weight", "0.5")  # of another run nothing is kept
    assert asked == [2, 2, 2]


def test_a_picture_that_cannot_be_read_can_be_mended(world, monkeypatch, capsys):
    monkeypatch.setattr(blocks, "BLOCK", 2)
    rows = [question(str(i), f"{name}.png", entity=name) for i, name in enumerate([*COLOURS, "late"])]
    (world.images / "late.png").write_bytes(b"<html>429 too many requests</html>")
    assert main(world.flags(rows)) == 2
    said = capsys.readouterr().err
    assert "late.png is not an image" in said and "`kivqa check` lists every picture that cannot be read" in said
    picture(world.images / "late.png", COLOURS["red"], noise=3)
    asked, answer = [], Retriever.answer
    monkeypatch.setattr(Retriever, "answer", lambda self, rows: asked.append(len(rows)) or answer(self, rows))
    found, _ = world.run(rows)
    assert asked == [2] and all("candidates" in row for row in found)  # the first block was there


@pytest.mark.parametrize("flags", [[], ["--top_k", "1"]])
def test_a_second_run_meanwhile_leaves_the_first_alone(world, monkeypatch, capsys, flags):
    monkeypatch.setattr(blocks, "BLOCK", 2)
    rows = [question(str(i), f"{name}.png", entity=name) for i, name in enumerate([*COLOURS, *COLOURS])]
    expected, report = world.run(rows)
    answer, messages = Retriever.answer, []

    def meanwhile(self, samples):
        if len(messages) < 2:
            messages.append("")
            assert main(world.flags(None, *flags)) == 2
            messages[-1] = capsys.readouterr().err
        return answer(self, samples)

    monkeypatch.setattr(Retriever, "answer", meanwhile)
    assert world.run(rows) == (expected, report)
    assert len(messages) == 2 and all("out.jsonl is being written by another run; wait" in text for text in messages)
    assert not (world.folder / "out.jsonl.parts").exists()
