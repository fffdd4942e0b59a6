import gzip
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.benchmarks.json_stream import CHUNK, is_object, items
from open_r1_kivqa.errors import InputError

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


def written(tmp_path, content, name="file.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def refused(path, **flags):
    with pytest.raises(InputError) as error:
        list(items(path, **flags))
    return str(error.value)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=5),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_items_are_those_that_json_reads(tmp_path_factory, content, escaped, indent):
    folder = tmp_path_factory.mktemp("stream")
    text = json.dumps(content, ensure_ascii=escaped, indent=indent).encode()
    assert [(item.name, item.value) for item in items(written(folder, text))] == list(content.items())
    listed = written(folder, json.dumps(list(content.values()), indent=indent).encode())
    assert [item.value for item in items(listed)] == list(content.values())


def test_object_list_and_lines_are_told_apart(tmp_path):
    path = written(tmp_path, {"a": {"x": 1}, "b": {"x": 2}})
    assert is_object(path)
    assert [tuple(item) for item in items(path)] == [
        ("a", {"x": 1}, f"{path}['a']"),
        ("b", {"x": 2}, f"{path}['b']"),
    ]
    path = written(tmp_path, [{"x": 1}, 2.5])
    assert not is_object(path)
    assert [tuple(item) for item in items(path)] == [("0", {"x": 1}, f"{path}[0]"), ("1", 2.5, f"{path}[1]")]
    path = written(tmp_path, b'\xef\xbb\xbf{"x": 1}\n\n {"x": 2}\r\n')  # jsonl, whatever its name
    assert [tuple(item) for item in items(path)] == [("0", {"x": 1}, f"{path}:1"), ("2", {"x": 2}, f"{path}:3")]
    one = b'{"x": 1}\n'  # a single line could be either: its ending says
    assert [item.value for item in items(written(tmp_path, one, "one.jsonl"))] == [{"x": 1}]
    assert [item.value for item in items(written(tmp_path, one, "one.json"))] == [1]


def test_a_key_that_comes_twice_comes_twice(tmp_path):
    assert [(item.name, item.value) for item in items(written(tmp_path, b'{"a": 1, "a": 2}'))] == [("a", 1), ("a", 2)]


def test_a_file_cut_anywhere_says_so(tmp_path):
    whole = json.dumps({f"k{i}": {"text": "é" * 3, "number": -1.5, "none": None} for i in range(4)}).encode()
    for end in range(1, len(whole)):
        message = refused(written(tmp_path, whole[:end]))
        assert f"ends in the middle, at byte {end}, " in message and "download the rest" in message, message
    assert "after 2 complete items, the last of them 'k1'" in refused(written(tmp_path, whole[: whole.index(b'"k3"')]))
    assert "in the first item" in refused(written(tmp_path, whole[:20]))


def test_lines_cut_in_the_middle_say_so(tmp_path):
    path = written(tmp_path, b'{"a": 1}\n{"a": 2', "cut.jsonl")
    assert refused(path) == f"{path} ends in the middle of line 2, at byte 16; download the rest of it."


@pytest.mark.parametrize("bad", [b"\xff", b'"x', b"\0", b"\n"])
def test_what_is_no_json_is_said_where(tmp_path, bad):
    content = bytearray(json.dumps({f"k{i}": "y" * 50_000 for i in range(20)}).encode())
    content[700_000 : 700_000 + len(bad)] = bad
    message = refused(written(tmp_path, bytes(content)))
    first, last = 700_000 // CHUNK * CHUNK, (700_000 // CHUNK + 1) * CHUNK
    assert (
        f"is not JSON between bytes {first:,} and {last:,}, after 13 complete items, the last of them 'k12'" in message
    )


@pytest.mark.parametrize("end", [b" x", b"\0\0\0", b'{"b": 1}', b"]"])
def test_what_follows_the_end_is_said(tmp_path, end):
    assert "is not JSON between bytes 0 and" in refused(written(tmp_path, b'{"a": 1}' + end))


def test_a_bad_line_is_said_by_number_and_byte(tmp_path):
    message = refused(written(tmp_path, b'{"a": 1}\n{"a" 2}\n{"a": 3}\n'))
    assert "file.json:2: not JSON (Expecting ':' delimiter at column 6)" in message and "ends at byte 17" in message


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "begins with b'hello'; wanted is JSON"),
        (b"PK\x03\x04...", "is an archive"),
        (gzip.compress(b"{}"), "is compressed; unpack it first: gunzip -k "),
        ("{}".encode("utf-16"), "is UTF-16; convert it"),
        (b'{"a": 12345678901234567890}', "it holds a number of too many digits; write it as a text"),
        (b'{"a": {"b": NaN}}', """'{"a": {"b": NaN}}'); download the file again, or correct it there."""),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    assert message in refused(written(tmp_path, content))


def test_no_file(tmp_path):
    assert "does not exist" in refused(str(tmp_path / "no.json"))
    assert "is a folder" in refused(str(tmp_path))


def test_items_that_lie_deeper_are_refused_before_memory_is_full(tmp_path):
    path = written(tmp_path, {"data": {f"k{i}": "x" * 1000 for i in range(4000)}})
    assert "no item is complete in the 1,000,000 bytes after byte 0" in refused(path, largest=1_000_000)
    lines = written(tmp_path, b'{"a": 1}\n{"a": "' + b"x" * 2000 + b'"}\n')
    assert "file.json:2: the line is longer than 1,000 bytes" in refused(lines, largest=1000)


def test_memory_holds_one_item_at_a_time(tmp_path):
    path = written(tmp_path, {f"k{i}": "x" * 100_000 for i in range(300)})  # 30 MB
    tracemalloc.start()
    number = sum(1 for _ in items(path, largest=2**20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 300 and peak < 24 * 2**20  # the head of the file, 16 MiB, is looked at once
