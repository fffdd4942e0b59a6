import csv
import gzip
import io
import zipfile

import pytest
from evqa_fixture import HOPS, QUESTIONS, question, write_csv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from open_r1_kivqa.benchmarks.evqa_csv import COLUMNS, read_csv
from open_r1_kivqa.errors import InputError


def read(path):
    return list(read_csv(str(path)))


def refused(path, content=None):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        read(path)
    return str(error.value)


def published(tmp_path):
    return write_csv(tmp_path / "val.csv", QUESTIONS).read_bytes()


def test_rows_are_numbered_without_the_header(tmp_path):
    rows = read(write_csv(tmp_path / "val.csv", QUESTIONS))
    assert [number for number, _ in rows] == [0, 1, 2] and [row for _, row in rows] == QUESTIONS


def test_what_is_no_fault(tmp_path):
    reordered = write_csv(tmp_path / "a.csv", QUESTIONS, tuple(reversed(COLUMNS)))
    assert [row for _, row in read(reordered)] == QUESTIONS
    more = write_csv(tmp_path / "b.csv", [HOPS | {"image_path": "x"}], (*COLUMNS, "image_path"))
    assert read(more) == [(0, HOPS | {"image_path": "x"})]
    marked = tmp_path / "c.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + published(tmp_path).replace(b"\r\n", b"\n") + b"\n\n")
    assert [row for _, row in read(marked)] == QUESTIONS
    assert read(write_csv(tmp_path / "d.csv", [])) == []


def test_fields_of_any_length_and_with_any_sign(tmp_path):
    odd = question(
        evidence='a "quoted", text\nof two lines; ' + "long " * 100_000, answer="5\t|tab", question="Où?\r\n"
    )
    assert read(write_csv(tmp_path / "val.csv", [odd, HOPS])) == [(0, odd), (1, HOPS)]


@pytest.mark.parametrize("mark, name", [("\t", "tabs"), (";", "semicolons"), ("|", "bars")])
def test_another_separator(tmp_path, mark, name):
    with open(tmp_path / "val.csv", "w", newline="") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerows([COLUMNS, list(HOPS.values())])
    assert f"its columns are separated by {name}; wanted are commas" in refused(tmp_path / "val.csv")


def test_wrong_columns(tmp_path):
    path, header = tmp_path / "a.csv", ",".join(COLUMNS)
    text = refused(path, header.replace("question_type", "type") + "\n")
    assert (
        "it has no column question_type; its columns are question, answer, " in text and "type, wikipedia_url" in text
    )
    text = refused(path, "a,b\n1,2\n")
    assert "it has no column question, answer, " in text and "its columns are a, b." in text
    assert "its header names answer twice" in refused(path, header + ",answer\n")
    assert "is empty" in refused(path, b"")
    assert "is empty" in refused(path, b"\xef\xbb\xbf")


def test_an_unknown_question_type(tmp_path):
    path = write_csv(tmp_path / "val.csv", [HOPS, question(question_type="three_hop")])
    text = refused(path)
    assert (
        "row 1 (line 3): `question_type` is 'three_hop'; the benchmark has templated, automatic, multi_answer, 2_hop"
        in text
    )


def test_a_file_cut_short_is_refused_or_looks_whole(tmp_path):
    whole = published(tmp_path).rstrip()
    # Cut at the end of a line or within its last field, "False", a csv looks whole. Nothing tells it from one that is.
    ends = [place for place in range(len(whole) + 1) if whole[place : place + 2] == b"\r\n" or place == len(whole)]
    looks_whole = {place for end in ends for place in range(end - len("False"), end + 3)} - set(
        range(ends[0] - 5, ends[0])
    )
    tried = {*range(0, len(whole), 6), *(place for end in ends for place in range(end - 8, end + 4))} & set(
        range(len(whole))
    )
    read_whole = set()
    for end in tried:
        (tmp_path / "cut.csv").write_bytes(whole[:end])
        try:
            read(tmp_path / "cut.csv")
            read_whole.add(end)
        except InputError as error:
            assert "cut.csv" in str(error)
    assert read_whole == looks_whole & tried


def test_a_quote_that_is_not_closed(tmp_path):
    lines = published(tmp_path).decode().split("\r\n")
    broken = "\r\n".join(
        [lines[0], lines[1], lines[2].replace("bird", '"bird', 1) if lines[2][0] == '"' else '"' + lines[2], *lines[3:]]
    )
    text = refused(tmp_path / "a.csv", broken)
    assert "a.csv row 1 (line 3): " in text and "a quote is not closed or not doubled" in text
    text = refused(tmp_path / "a.csv", published(tmp_path).decode() + '"never closed')
    assert "row 3 (line 5): unexpected end of data; a quote is not closed" in text


def test_rows_of_another_length(tmp_path):
    text = refused(tmp_path / "a.csv", published(tmp_path) + b"one,two\n")
    assert "row 3 (line 5) has 2 fields and the header 14" in text


def test_other_files(tmp_path):
    assert "is no file" in refused(tmp_path / "none.csv")
    assert "is no file" in refused(tmp_path)
    assert "is not UTF-8" in refused(tmp_path / "a.csv", ",".join(COLUMNS).encode() + "\né\n".encode("latin-1"))
    assert "unpack it first" in refused(tmp_path / "a.csv.gz", gzip.compress(published(tmp_path)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("val.csv", published(tmp_path) * 20)
    assert "unpack it first" in refused(tmp_path / "a.zip", packed.getvalue())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.integers(0, 900),
    length=st.integers(0, 30),
    new=st.binary(max_size=4) | st.sampled_from([b'"', b",", b"\n", b"\r", b"\0", b"|"]),
)
def test_whatever_is_changed_a_file_is_read_or_refused(tmp_path, place, length, new):
    whole = published(tmp_path)
    (tmp_path / "a.csv").write_bytes(whole[:place] + new + whole[place + length :])
    try:
        rows = read(tmp_path / "a.csv")
    except InputError as error:
        assert "a.csv" in str(error)
    else:
        assert [number for number, _ in rows] == list(range(len(rows))) and all(
            set(COLUMNS) <= set(row) for _, row in rows
        )
