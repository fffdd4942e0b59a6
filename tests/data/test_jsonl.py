"""Opening files of rows: places in the file, ids, formats that are not jsonl, several files."""

import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.data import cache, lines
from open_r1_kivqa.data.jsonl import Rows, split_paths
from open_r1_kivqa.data.lines import JsonLines
from open_r1_kivqa.errors import InputError


def line(id, text="Hi", **more):
    return json.dumps({"id": id, "conversations": [{"from": "human", "value": text}], **more}, ensure_ascii=False)


@pytest.fixture
def write(tmp_path):
    def write(content, name="rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def open_rows(*paths, folders=(), methods=None):
    return Rows.open(list(paths), list(folders), methods)


def test_paths_are_split_at_colons():
    assert split_paths("a.jsonl:b.jsonl") == ["a.jsonl", "b.jsonl"]
    assert split_paths(" a.jsonl : ") == ["a.jsonl"]
    assert split_paths("") == []


def test_rows_are_found_by_place_and_by_id(write):
    path = write(f"\n{line('a')}\n \t\n\r\n{line(7)}\r\n {line('é')}")
    rows = open_rows(path)
    assert len(rows) == 3
    assert rows.ids == ["a", "7", "é"]
    assert [sample.id for sample in rows] == rows.ids
    assert [rows.index_of(id) for id in rows.ids] == [0, 1, 2]
    assert [rows.source(i) for i in range(3)] == [f"{path}:{number}" for number in (2, 5, 6)]
    assert rows[-1].source == f"{path}:6"
    assert rows.raw(1) == line(7).encode()
    with pytest.raises(IndexError):
        rows[3]
    with pytest.raises(KeyError):
        rows.index_of("b")


@given(
    st.lists(st.sampled_from(["{}", " {}", "", " ", "\t\r", '{"k": "xxxxxxxx"}', "[1]"])),
    st.integers(2, 9),
    st.booleans(),
)
def test_lines_are_found_whatever_the_size_of_a_read(tmp_path_factory, texts, size, closed):
    path = tmp_path_factory.mktemp("lines") / "x"
    path.write_text("\n".join(texts) + ("\n" if closed else ""), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK", size)
        found = lines._find_lines(str(path))
    content = path.read_bytes()
    expected = [(number, text) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()]
    assert found["numbers"].tolist() == [number for number, _ in expected]
    assert [content[start:].split(b"\n")[0] for start in found["starts"]] == [text for _, text in expected]


def test_several_files_follow_one_another(write, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one = write(line(1, image="a.png") + "\n" + line(2, accu_reward_method="own"), "one.jsonl")
    two = write(line(3, image="a.png"), "two.jsonl")
    rows = open_rows(one, two, folders=[tmp_path / "x", tmp_path / "y"], methods=["exact", "numeric"])
    assert rows.ids == ["1", "2", "3"]
    assert [sample.reward_method for sample in rows] == ["exact", "own", "numeric"]
    assert rows[0].images == (f"{tmp_path}/x/a.png",) and rows[2].images == (f"{tmp_path}/y/a.png",)
    assert rows.source(2) == f"{two}:1"
    shared = open_rows(one, two, folders=[tmp_path / "x"], methods=["exact"])
    assert shared[2].images == (f"{tmp_path}/x/a.png",) and shared[2].reward_method == "exact"


def test_numbers_that_do_not_match_are_refused(write, tmp_path):
    paths = [write(line(i), f"{i}.jsonl") for i in range(3)]
    with pytest.raises(InputError, match="3 data file.* but 2 image folders; give one"):
        open_rows(*paths, folders=[tmp_path, tmp_path])
    with pytest.raises(InputError, match="3 data file.* but 2 reward methods; give one"):
        open_rows(*paths, methods=["exact", "exact"])
    with pytest.raises(InputError, match="No data file was given"):
        open_rows()


def test_missing_files_and_folders_are_named(write, tmp_path):
    with pytest.raises(InputError, match="no.jsonl does not exist"):
        open_rows(tmp_path / "no.jsonl")
    with pytest.raises(InputError, match="is a folder; give the path of a jsonl file"):
        open_rows(tmp_path)
    with pytest.raises(InputError, match="Image folder .*/no does not exist"):
        open_rows(write(line(1)), folders=[tmp_path / "no"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it needs one JSON object per line"),
        (b" \n\n", "is empty"),
        (b'[\n{"id": 1}\n]', "holds one JSON list.*jq -c '.\\[\\]'"),
        (b'\n [{"id": 1}]', "holds one JSON list"),
        (b'{\n  "id": 1\n}', "holds indented JSON.*jq -c ."),
        (b"\xef\xbb\xbf" + line(1).encode(), "byte order mark; remove it with"),
        (line("é").encode("utf-16"), "not UTF-8 text; convert it"),
        (line("ab").encode("utf-16-le"), "not UTF-8 text; convert it"),
        (line(1).encode() + b"\n" + line("é").encode("latin-1"), "rows.jsonl:2: not UTF-8 text.*iconv"),
        (b"\x1f\x8b\x08", "is compressed; unpack it"),
    ],
)
def test_other_formats_are_refused_with_a_remedy(write, content, message):
    with pytest.raises(InputError, match=message):
        open_rows(write(content))


def test_a_file_that_cannot_be_read_is_refused():
    with pytest.raises(InputError, match="/proc/self/mem cannot be read .*permission to read"):
        JsonLines("/proc/self/mem")  # a regular file whose reading fails, for root too


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"id": 1,}', "rows.jsonl:2: not JSON"),
        (b"id,question", "rows.jsonl:2: not JSON"),
        (b"[1]", "rows.jsonl:2: a row is a JSON object"),
        (b'{"id": "\\ud83d"}', "rows.jsonl:2: holds half of a surrogate pair"),
        (b"[" * 100_000, "rows.jsonl:2: nested too deeply"),
        (b'{"id": ' + b"9" * 5000 + b"}", "rows.jsonl:2: holds an integer of too many digits"),
        (b'{"id": "' + b"x" * 70_000 + b'\xe9"}', r"rows.jsonl:2: byte 70009 is not UTF-8"),
    ],
)
def test_one_bad_line_is_named_and_leaves_the_others_usable(write, bad, message):
    rows = open_rows(write(line(1).encode() + b"\n" + bad + b"\n" + line(3).encode()))
    assert rows[0].id == "1" and rows[2].id == "3"
    with pytest.raises(InputError, match=message):
        rows[1]


def test_ids_are_read_wherever_they_stand(write):
    odd = ['{"image": null, "id": "x\\n\\u00e9"}', '{ "id" : -3 , "a": 1}', '{"id": "ü", "b": {"id": 9}}', '{"id":0}']
    assert open_rows(write("\n".join(odd))).ids == ["x\né", "-3", "ü", "0"]


@pytest.mark.parametrize("bad", ['{"id": 1.5, "a": 1}', '{"a": {"id": 1}}', '{"id": null}', "[1]", '{"id": " "}'])
def test_a_line_without_an_id_is_named_when_ids_are_read(write, bad):
    with pytest.raises(InputError, match="rows.jsonl:2: "):
        open_rows(write(line(1) + "\n" + bad)).ids  # noqa: B018


def test_a_subset_without_the_bad_lines_has_ids(write):
    rows = open_rows(write("\n".join([line(1), "{", line(3), '{"a": 1}', line(3)])))
    assert rows.subset([0, 2]).ids == ["1", "3"]
    with pytest.raises(InputError, match="rows.jsonl:4: `id` is missing"):
        rows.subset([2, 3]).ids  # noqa: B018


def test_an_id_given_twice_is_found_across_files(write):
    one, two = write(line(1), "one.jsonl"), write(line(2) + "\n" + line("1"), "two.jsonl")
    with pytest.raises(InputError, match="id '1' is given twice, at .*one.jsonl:1 and .*two.jsonl:2"):
        open_rows(one, two).ids  # noqa: B018


def test_subsets_keep_order_and_source(write):
    rows = open_rows(write("\n".join(line(i) for i in range(6))))
    part = rows.subset([4, 1, 3])
    assert part.ids == ["4", "1", "3"] and [sample.id for sample in part] == part.ids
    assert part.index_of("3") == 2 and part.source(0).endswith(":5")
    assert part.subset([2, 0]).ids == ["3", "4"]
    assert part[1:].ids == ["1", "3"] and rows[::2].ids == ["0", "2", "4"]
    assert len(rows.subset([])) == 0 and list(rows.subset([])) == []
    assert part.fingerprint == rows.fingerprint
    with pytest.raises(IndexError):
        part.subset([3])


def test_pickled_rows_read_the_same(write):
    rows = open_rows(write(line(1) + "\n" + line(2)))
    assert rows[1].id == "2"  # the file is mapped now
    copy = pickle.loads(pickle.dumps(rows.subset([1])))
    assert copy[0] == rows[1] and copy.ids == ["2"]


def test_a_file_that_changes_in_use_is_refused(write):
    rows = open_rows(write(line(1)))
    write(line(1) + "\n" + line(2))
    with pytest.raises(InputError, match="was changed while it was in use"):
        rows[0]
    with pytest.raises(InputError, match="was changed while it was in use"):
        rows.ids  # noqa: B018


def test_the_fingerprint_is_that_of_the_content(write, tmp_path):
    one, same, other = write(line(1), "1.jsonl"), write(line(1), "2.jsonl"), write(line(2), "3.jsonl")
    assert open_rows(one).fingerprint == open_rows(same).fingerprint != open_rows(other).fingerprint
    assert open_rows(one, other).fingerprint != open_rows(other, one).fingerprint


def test_what_was_found_is_kept_until_the_file_changes(write, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    path = write(line("a") + "\n\n" + line("é"))
    os.utime(path, (1e9, 1e9))  # at rest
    first = JsonLines(path)
    assert first.keys("id") == ["a", "é"]
    digest = first.content_hash
    assert len(list((tmp_path / "cache").glob("*.arrays"))) == 3

    with monkeypatch.context() as patch:  # nothing is worked out again
        patch.setattr(lines, "_find_lines", None)
        patch.setattr(JsonLines, "read_keys", None)
        patch.setattr(cache.hashlib, "file_digest", None)
        again = JsonLines(path)
        assert (again.keys("id"), again.source(1), again.content_hash) == (["a", "é"], f"{path}:3", digest)

    write(line("b") + "\n\n" + line("ü"))
    os.utime(path, (1e9 + 1, 1e9 + 1))
    assert JsonLines(path).keys("id") == ["b", "ü"] and JsonLines(path).content_hash != digest


def test_a_file_still_being_written_is_not_remembered(write, tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    open_rows(write(line("a"))).ids  # noqa: B018
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_said_and_does_without(write, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_CACHED", 0)
    path = write(line("a"))
    os.utime(path, (1e9, 1e9))
    assert open_rows(path).ids == ["a"]
    assert "set KIVQA_CACHE" in caplog.text
