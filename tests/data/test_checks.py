import os
import struct
import time
import zlib
from types import SimpleNamespace

import pytest
from check_rows import row, without, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from open_r1_kivqa.data.checks import ensure_checked, run_checks
from open_r1_kivqa.data.row_checks import Limits, answer_problem
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.data.sources import Source, pair_sources
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    """Images good.png and others, each bad in its own way, and kb.jsonl."""
    good = Image.effect_noise((40, 30), 80).convert("RGB")
    good.save(tmp_path / "good.png")
    good.save(tmp_path / "good.jpg")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "short.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:-200])
    (tmp_path / "short.png").write_bytes((tmp_path / "good.png").read_bytes()[:-800])
    Image.new("L", (200, 100)).save(tmp_path / "large.png")
    (tmp_path / "bomb.png").write_bytes(png_header(20_000, 20_000))
    (tmp_path / "tall.png").write_bytes(b"")
    Image.new("L", (1, 300)).save(tmp_path / "tall.png")
    article = {"key": "France", "title": "France", "sections": [{"id": "1", "title": "Capital", "text": "Paris."}]}
    write(tmp_path / "kb.jsonl", [article])
    return tmp_path


def png_header(width, height):
    """A PNG that claims to be this large, and ends where its pixels would begin."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


def check(folder, rows, name="rows.jsonl", kb=False, **limits):
    source = Source(write(folder / name, rows), str(folder))
    return run_checks([source], kb=KnowledgeBase.open(folder / "kb.jsonl") if kb else None, limits=Limits(**limits))


# line as written, kind of the problem, words of its message
BAD_ROWS = [
    (b'{"id": "x", ', "json", "not JSON"),
    (b"[1, 2]", "json", "a row is a JSON object"),
    (b"[" * 100_000, "json", "nested too deeply"),
    (b'{"id": ' + b"9" * 5000 + b"}", "json", "an integer of too many digits"),
    (b'{"id": "caf\xe9"}', "encoding", "byte 12 is not UTF-8"),
    (b'{"id": "\\ud800"}', "encoding", "surrogate"),
    (without(row("x"), "id"), "id_missing", "`id` is missing"),
    (row(" "), "id_missing", "`id` is a text"),
    (row("x", "What?<image><image>"), "image_markers", "2 <image> marker(s) in the human turns for 1 image(s)"),
    (row("x", image=None), "image_markers", "1 <image> marker(s) in the human turns for 0 image(s)"),
    (row("x", image="../secret.png"), "image_outside", "lies outside its image folder"),
    (row("x", image="/etc/passwd"), "image_outside", "lies outside its image folder"),
    (row("x", image=[1]), "image_field", "`image` is a list"),
    (row("x", image="none.png"), "image_missing", "none.png does not exist"),
    (row("x", image="empty.png"), "image_empty", "empty.png is empty"),
    (row("x", image="text.png"), "image_unreadable", "text.png is not an image"),
    (row("x", image="short.jpg"), "image_damaged", "short.jpg is damaged"),
    (row("x", image="short.png"), "image_damaged", "short.png is damaged"),
    (row("x", image="large.png"), "image_pixels", "200 x 100 pixels is over the limit of 10000"),
    (row("x", image="bomb.png"), "image_pixels", "400000000"),
    (row("x", " "), "turn_empty", "turn 1 is empty"),
    (row("x", "<image>"), "question_empty", "no text"),
    (row("x", answer=""), "turn_empty", "turn 2 is empty"),
    (without(row("x"), "conversations"), "conversations", "`conversations` is missing"),
    (row("x", conversations=[{"from": "robot", "value": "a"}]), "conversations", "turn 1 is from 'robot'"),
    (row("x", conversations=[{"from": "gpt", "value": "a"}]), "conversations", "does not end with a human turn"),
    (row("x", conversations=[{"from": "human", "value": "<image>a"}]), "answer_missing", "no answer"),
    (row("x", answers=[]), "answers_field", "`answers` is []"),
    (row("x", answers={"range": [2, 1]}), "answers_field", "low <= high"),
    (row("x", accu_reward_method="exactly"), "reward_method", "unknown reward method 'exactly'"),
    (
        row("x", accu_reward_method="numeric"),
        "answer_unscorable",
        "'numeric' gives the row's own answer 'Paris' no score",
    ),
    (row("x", answer="?!"), "answer_unscorable", "'default' gives the row's own answer '?!' 0.0"),
    (row("x", evidence=[1]), "passage_keys", "`evidence` is a list"),
    (row("x", candidates=["France#1", "France#2"]), "passage_missing", "no passage 'France#2'"),
    (row("x", candidates=[["France#1"], ["Spain#1"]]), "passage_missing", "no passage 'Spain#1'"),
    (row("x", evidence="France"), "passage_missing", "no passage 'France'"),
    (row("x", entity=3), "field", "`entity` is a number"),
    # good.png has 40 x 30 pixels
    (row("x", answer="[1, 2, 30, 90]", accu_reward_method="iou"), "box", "outside its image of 40 x 30 pixels"),
    (row("x", answer="on the left", accu_reward_method="iou"), "box", "no box of four finite numbers"),
    (row("x", answer="[30, 2, 1, 9]", accu_reward_method="iou"), "box", "[30, 2, 1, 9] of the reference is reversed"),
    (row("x", answer="[NaN, 2, 1, 9]", accu_reward_method="iou"), "box", "no box of four finite numbers"),
    (row("x", answer='[{"bbox_2d": [1, 2, 3, 40], "label": "a"}]', accu_reward_method="od_ap"), "box", "outside"),
    (row("x", answer="a cat", accu_reward_method="odLength"), "box", "no list of detections"),
    (row("x", answer="maybe", accu_reward_method="yes_no"), "answer_unscorable", "no score"),
    (row("x", accu_reward_method="llm"), "judge_missing", "give --judge_url"),
]


def test_every_problem_is_reported_with_place_and_kind(folder):
    rows = [row(f"before {i}") if i % 2 == 0 else BAD_ROWS[i // 2][0] for i in range(2 * len(BAD_ROWS))]
    for i, one in enumerate(rows):
        if isinstance(one, dict) and one.get("id") == "x":
            rows[i] = {**one, "id": f"bad {i}"}
    report = check(folder, rows, kb=True, pixels=10_000, has_judge=False)
    assert [problem.kind for problem in report.problems] == [kind for _, kind, _ in BAD_ROWS]
    for i, (problem, (_, kind, words)) in enumerate(zip(report.problems, BAD_ROWS, strict=True)):
        assert problem.kind == kind and words in f"{problem.message}; {problem.remedy}" and problem.remedy, problem
        assert (problem.row, problem.line, problem.file) == (2 * i + 1, 2 * i + 2, str(folder / "rows.jsonl"))
        assert problem.id in (f"bad {2 * i + 1}", None), problem
    assert report.bad_rows == frozenset(range(1, 2 * len(BAD_ROWS), 2))
    assert report.rows == 2 * len(BAD_ROWS)


def test_good_rows_have_no_problem(folder):
    rows = [
        row(1),
        row("2", image=["good.png", "good.jpg"], question="<image> and <image>?"),
        without(row("3", "Who?"), "image"),
        row("4", answers={"range": [1, 2.5]}),
        row("5", candidates=["France#1"], evidence="France#1"),
        row("6", answer="<think>a</think><answer>12</answer>", accu_reward_method="numeric"),
        row("7", answer='<answer>{"bbox_2d": [1, 2, 40, 30]}</answer>', accu_reward_method="iou"),
        row("8", answer="None", accu_reward_method="od_ap"),
        row("9", accu_reward_method="llm"),
    ]
    report = check(folder, rows, kb=True)
    assert report.problems == [] and len(report.image_paths) == 2
    assert report.lines() == ["Checked 9 rows and 2 images: no problem."]


def test_repeated_ids_over_files_name_the_first(folder):
    a = Source(write(folder / "a.jsonl", [row(7), row("8")]), str(folder))
    b = Source(write(folder / "b.jsonl", [row("9"), row("7"), row("7")]), str(folder))
    report = run_checks([a, b])
    assert [(p.kind, p.file, p.line, p.row) for p in report.problems] == [
        ("id_repeated", str(folder / "b.jsonl"), line, line + 1) for line in (2, 3)
    ]
    assert f"given before, at {folder}/a.jsonl:1" in report.problems[0].message


def test_the_same_file_twice_repeats_every_id(folder):
    a = Source(write(folder / "a.jsonl", [row("7")]), str(folder))
    assert [p.kind for p in run_checks([a, a]).problems] == ["id_repeated"]


@pytest.mark.parametrize(
    "content, kind",
    [
        (b"", "file_empty"),
        (b'[\n {"id": 1}]', "not_jsonl"),
        (b'{\n "id": 1}', "not_jsonl"),
        (b'\xef\xbb\xbf{"id": 1}', "encoding"),
        ('{"id": 1}'.encode("utf-16"), "encoding"),
        (b"\x1f\x8b1234", "not_jsonl"),
        (None, "file_missing"),
    ],
)
def test_a_bad_file_does_not_hide_the_others(folder, content, kind):
    bad, good = folder / "bad.jsonl", Source(write(folder / "good.jsonl", [row("1", image="none.png")]), str(folder))
    if content is not None:
        bad.write_bytes(content)
    report = run_checks([Source(str(bad), str(folder)), good])
    assert [(p.kind, p.row) for p in report.problems] == [(kind, None), ("image_missing", 0)]
    assert report.problems[0].remedy and str(folder) not in report.problems[0].message


def test_a_missing_image_folder_is_reported_once(folder):
    source = Source(write(folder / "a.jsonl", [row("1"), row("2")]), str(folder / "none"))
    report = run_checks([source])
    assert [(p.kind, p.row) for p in report.problems] == [("image_folder", None)]


def test_an_image_is_looked_at_once_and_reported_for_each_row(folder):
    report = check(folder, [row("1", image="empty.png"), row("2", image=["empty.png", "empty.png"], question="What?")])
    assert [(p.kind, p.id) for p in report.problems] == [("image_empty", "1"), ("image_empty", "2")]
    assert len(report.image_paths) == 1


def test_needs_response(folder):
    question = row("1", conversations=[{"from": "human", "value": "<image>What?"}], answers=["Paris"])
    assert check(folder, [question]).problems == []
    assert [p.kind for p in check(folder, [question], needs_response=True).problems] == ["response_missing"]


def test_pair_sources_gives_one_folder_and_method_to_all_files():
    sources = pair_sources(["a", "b"], ["/images"], ["exact"])
    assert [(s.path, s.image_folder, s.reward_method) for s in sources] == [
        ("a", "/images", "exact"),
        ("b", "/images", "exact"),
    ]
    with pytest.raises(InputError, match="--image_folders names 3 for 2 data file"):
        pair_sources(["a", "b"], ["1", "2", "3"], [])
    with pytest.raises(InputError, match="--reward_method names 2 for 3 data file"):
        pair_sources(["a", "b", "c"], [], ["exact", "exact"])


def test_answer_problem_asks_for_an_answer_that_can_win():
    def problem(**fields):
        return answer_problem(
            parse_row(without(row("1", "What?", **fields), "image"), image_folder="", reward_method="", source="a:1")
        )

    assert problem(answers=["?", "Paris"]) is None  # one suffices
    assert problem(answers={"range": [-2, 5]}) is None
    assert problem(answer="1,000", answer_type="Numerical") is None
    assert problem(answer="unknown", answer_type="Numerical")[0] == "answer_unscorable"
    assert problem(answers={"range": [1, 2]}, accu_reward_method="exact")[0] == "answer_unscorable"


def arguments(folder, **flags):
    """What ensure_checked reads of DataArguments and VLMModelConfig."""
    from open_r1_kivqa.arguments import DataArguments

    data = DataArguments(**{"data_file_paths": str(folder / "rows.jsonl"), "image_folders": str(folder), **flags})
    model = SimpleNamespace(model_name_or_path=None)
    return data, model


def test_ensure_checked_refuses_skips_and_remembers(folder, capsys):
    write(folder / "rows.jsonl", [row("1"), row("2", image="none.png"), b"{", row("4")])
    with pytest.raises(InputError) as error:
        ensure_checked(*arguments(folder))
    assert "image_missing: 1\n" in str(error.value) and f"{folder}/rows.jsonl:3: not JSON" in str(error.value)
    assert "add --skip_bad_rows to leave these rows out" in str(error.value)
    assert ensure_checked(*arguments(folder, skip_bad_rows=True)) == {1, 2}
    assert "Training without 2 of 4 rows that the checks refuse." in capsys.readouterr().out
    write(folder / "rows.jsonl", [row("1"), row("4")])
    assert ensure_checked(*arguments(folder)) == frozenset()
    assert capsys.readouterr().out == "Checked 2 rows and 1 image: no problem.\n"
    assert ensure_checked(*arguments(folder)) == frozenset()
    assert "(unchanged since it was last checked)" in capsys.readouterr().out


def test_ensure_checked_looks_again_at_changed_images_rows_and_limits(folder, capsys):
    rows = [row("1"), row("2", image="good.jpg")]
    write(folder / "rows.jsonl", rows)
    for _ in range(2):
        ensure_checked(*arguments(folder))
    with pytest.raises(InputError, match="image_pixels: 2"):
        ensure_checked(*arguments(folder, pixel_limit=1000))
    image = folder / "good.jpg"
    image.write_bytes(image.read_bytes()[:-100])
    with pytest.raises(InputError, match="image_damaged: 1"):
        ensure_checked(*arguments(folder))
    assert ensure_checked(*arguments(folder, skip_bad_rows=True)) == {1}


def test_ensure_checked_never_skips_whole_files_or_held_out_rows(folder):
    write(folder / "rows.jsonl", [row("1")])
    write(folder / "held.jsonl", [row("1", image="none.png")])
    with pytest.raises(InputError, match="file_missing") as error:
        ensure_checked(*arguments(folder, data_file_paths=f"{folder}/none.jsonl", skip_bad_rows=True))
    assert "skip_bad_rows" not in str(error.value)
    with pytest.raises(InputError, match="(?s)held.jsonl.*image_missing: 1") as error:
        ensure_checked(*arguments(folder, eval_data_file_paths=f"{folder}/held.jsonl", skip_bad_rows=True))
    assert "skip_bad_rows" not in str(error.value)
    write(folder / "rows.jsonl", [b"no row"])
    with pytest.raises(InputError, match="None of the 1 rows can be used"):
        ensure_checked(*arguments(folder, skip_bad_rows=True))


def test_ensure_checked_sees_that_a_missing_folder_is_there_now(folder):
    write(folder / "rows.jsonl", [row("1")])
    with pytest.raises(InputError, match="image_folder: 1"):
        ensure_checked(*arguments(folder, image_folders=f"{folder}/later"))
    (folder / "later").mkdir()
    (folder / "good.png").rename(folder / "later" / "good.png")
    assert ensure_checked(*arguments(folder, image_folders=f"{folder}/later")) == frozenset()


def test_ensure_checked_refuses_bad_flags(folder):
    write(folder / "rows.jsonl", [row("1")])
    with pytest.raises(InputError, match="Unknown reward method 'exactly'"):
        ensure_checked(*arguments(folder, reward_method="exactly"))
    with pytest.raises(InputError, match="--pixel_limit 0 is not between"):
        ensure_checked(*arguments(folder, pixel_limit=0))
    with pytest.raises(InputError, match="knowledge_base: 1"):
        ensure_checked(*arguments(folder, knowledge_base=str(folder / "none.jsonl"), skip_bad_rows=True))


def test_pictures_of_articles_that_may_be_shown_are_looked_at(folder, capsys):
    images = {"a": ["good.jpg"], "b": [], "c": ["none.png"], "d": ["short.jpg"], "e": ["gone.png"]}
    part = {"id": "0", "title": "", "text": "Text."}
    write(folder / "kb.jsonl", [{"key": key, "sections": [part], "images": images[key]} for key in images])
    rows = [
        row("1", candidates=["a#0", "c#0"]),
        row("2", candidates=["b#0", "c#0"]),
        row("3", candidates=["c#0", "a#0"]),
        row("4", candidates=[["a#0"], ["d#0"]]),
        row("5", candidates=["c#0"]),
    ]
    write(folder / "rows.jsonl", rows)
    flags = {"knowledge_base": str(folder / "kb.jsonl"), "passage_images": 1}
    with pytest.raises(InputError) as error:
        ensure_checked(*arguments(folder, **flags))
    assert "passage_picture: 2\n" in str(error.value) and "image_damaged: 1\n" in str(error.value)
    assert "rows.jsonl:3 (id '3'): The picture 'none.png' of article 'c' does not lie below" in str(error.value)
    assert ensure_checked(*arguments(folder, skip_bad_rows=True, **flags)) == {2, 3, 4}
    with pytest.raises(InputError, match="passage_picture: 4"):  # the second passage's too
        ensure_checked(*arguments(folder, **{**flags, "passage_images": 2}))
    capsys.readouterr()
    ensure_checked(*arguments(folder, **{**flags, "passage_images": 0}))
    assert capsys.readouterr().out == "Checked 5 rows and 1 image: no problem.\n"
    # A picture in an image folder is one as well, and its change is seen at the next launch.
    (folder / "good.png").replace(folder / "none.png")
    write(folder / "rows.jsonl", [row("6", image="none.png", candidates=["c#0"])])
    for said in ("1 image: no problem.\n", "1 image: no problem. (unchanged since it was last checked)\n"):
        assert ensure_checked(*arguments(folder, **flags)) == frozenset()
        assert capsys.readouterr().out.endswith(said)
    (folder / "good.jpg").write_bytes(b"no image")
    write(folder / "rows.jsonl", [row("7", image="none.png", candidates=["a#0"])])
    with pytest.raises(InputError, match="image_unreadable: 1"):
        ensure_checked(*arguments(folder, **flags))


def test_a_later_launch_takes_seconds(folder):
    """The stamp spares reading rows and images: 20,000 rows come back at once."""
    write(folder / "rows.jsonl", [row(str(i)) for i in range(20_000)])
    ensure_checked(*arguments(folder))
    start = time.process_time()
    ensure_checked(*arguments(folder))
    assert time.process_time() - start < 1
    assert os.listdir(os.environ["KIVQA_CACHE"])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["human", "gpt", "<image>", "good.png", "numeric"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["from", "value", "range"]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "id",
        "image",
        "conversations",
        "answers",
        "answer_type",
        "evidence",
        "candidates",
        "entity",
        "split",
        "accu_reward_method",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=40), st.tuples(FIELDS, VALUES)), min_size=1, max_size=12))
def test_no_content_makes_the_check_raise(folder, lines):
    rows = [one if isinstance(one, bytes) else {**row(str(i)), one[0]: one[1]} for i, one in enumerate(lines)]
    report = check(folder, rows, kb=True)
    assert "other" not in report.by_kind() and report.lines()
