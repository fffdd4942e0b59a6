import json

from open_r1_kivqa.evaluation.records import PREDICTIONS, RankFile, discard, merge, read_finished


def record(id, setting="normal", **more):
    return {"id": id, "setting": setting, **more}


def write(folder, rank, records):
    file = RankFile(folder, rank)
    file.append(records)
    file.close()


def test_ranks_files_merge_in_the_order_of_the_jobs(tmp_path):
    write(tmp_path, 1, [record("b"), record("a", "no_image")])
    write(tmp_path, 0, [record("a", prediction="Côte d'Ivoire")])
    merged = merge(tmp_path, [("normal", "a"), ("normal", "b"), ("no_image", "a")])
    assert [(r["setting"], r["id"]) for r in merged] == [("normal", "a"), ("normal", "b"), ("no_image", "a")]
    lines = (tmp_path / PREDICTIONS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == merged and "Côte d'Ivoire" in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [PREDICTIONS]


def test_a_cut_last_line_is_dropped_and_later_lines_are_whole(tmp_path):
    write(tmp_path, 0, [record("a"), record("b")])
    path = tmp_path / "predictions.rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-3])  # the process died in the middle of a write
    assert set(read_finished(tmp_path)) == {("normal", "a")}
    write(tmp_path, 0, [record("c")])
    assert set(read_finished(tmp_path)) == {("normal", "a"), ("normal", "c")}


def test_a_merged_file_is_read_again(tmp_path):
    write(tmp_path, 3, [record("a")])
    merge(tmp_path, [("normal", "a")])
    assert set(read_finished(tmp_path)) == {("normal", "a")}
    discard(tmp_path)
    assert read_finished(tmp_path) == {} and list(tmp_path.iterdir()) == []
