import hashlib
import json
from pathlib import Path

import pytest
import torch
from launch import run_ranks
from peft import LoraConfig, get_peft_model
from training_rows import write_data

from open_r1_kivqa import evaluate_jsonl
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation import kept
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

SETTINGS = ("normal", "no_image", "wrong_image")
IDS = ["france", "germany", "italy", "spain", "norway", "japan", "brazil", "canada"]


def arguments(flags: dict) -> list[str]:
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def flags(tmp_path_factory, tiny_model):
    """Flags of an evaluation of eight rows, with no, one or two images each."""
    data = write_data(tmp_path_factory.mktemp("data"), kinds="12112012")
    settings = {"settings": ",".join(SETTINGS), "max_new_tokens": 6, "batch_size": 3, "num_passages": 2, "rollouts": 3}
    return {"model_name_or_path": tiny_model("qwen2_5_vl"), **data, **settings}


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory):
    """Folder of an evaluation by one process."""
    folder = tmp_path_factory.mktemp("finished")
    evaluate_jsonl.main(arguments(flags | {"output_dir": folder}))
    return folder


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def copy_of(finished: Path, folder: Path, predictions: bytes, rollouts: bytes = b"") -> Path:
    """What a killed run left: the manifest, and these bytes in the files of its rank."""
    folder.mkdir()
    (folder / "manifest.json").write_bytes((finished / "manifest.json").read_bytes())
    (folder / "predictions.rank0.jsonl").write_bytes(predictions)
    (folder / "rollouts.rank0.jsonl").write_bytes(rollouts)
    return folder


def test_one_record_for_each_setting_and_row_in_order(finished):
    found = records(finished)
    assert [(record["setting"], record["id"]) for record in found] == [(s, id) for s in SETTINGS for id in IDS]
    assert [len(record["image_paths"]) for record in found] == [1, 2, 1, 1, 2, 0, 1, 2] + [0] * 8 + [
        1,
        2,
        1,
        1,
        2,
        0,
        1,
        2,
    ]
    assert found[3]["passages"] == ["france#capital", "germany#capital"]
    assert not any("france" in Path(path).name for path in found[16]["image_paths"])


def test_summary_has_scores_and_baselines(finished):
    summary = json.loads((finished / "summary.json").read_text())
    scores = summary["splits"]["all"]
    assert scores["n"] == 8 and set(scores["settings"]) == set(SETTINGS)
    assert scores["gain"] == scores["accuracy"] - scores["wrong_image"]
    # Of eight rows the first shows one passage, its gold; the second two, its gold after another; the others two without.
    assert scores["baselines"] == {"chance": (1 + 1 / 2) / 8, "first": 1 / 8, "majority": 1.0, "medoid": None}


def test_each_rows_rollouts_are_in_a_file_of_their_own(finished):
    drawn = [json.loads(line) for line in (finished / "rollouts.jsonl").read_text().splitlines()]
    assert [record["id"] for record in drawn] == IDS
    assert all(len(record["texts"]) == len(record["scores"]) == 3 for record in drawn)
    assert sum(len(set(record["texts"])) > 1 for record in drawn) >= 6  # they are sampled
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["splits"]["all"]["rollouts"]["rollouts"] == 3
    normal = {record["id"]: record["prompt_hash"] for record in records(finished)[:8]}
    assert normal == {record["id"]: record["prompt_hash"] for record in drawn}
    assert not (finished / "suspect_labels.jsonl").exists()  # three are too few


def test_prompts_are_hashed_and_the_gold_passages_place_is_told(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["prompts"]) == {*SETTINGS, "all"} and len(set(summary["prompts"].values())) == 4
    # Row n of eight has the first n countries as candidates, its own last; two are shown.
    measures = summary["splits"]["all"]["settings"]["normal"]
    assert {place: part["n"] for place, part in measures["gold_rank"].items()} == {str(n): 1 for n in range(1, 9)}
    assert {place: part["n"] for place, part in measures["gold_position"].items()} == {"1": 1, "2": 1, "absent": 6}
    assert measures["recall"] == {"1": 1 / 8, "2": 2 / 8}
    assert summary["official"] == {} and summary["published"] == {"comparable": [], "not_comparable": []}


def test_official_predictions_stand_beside(finished):
    lines = [json.loads(line) for line in (finished / "official_predictions.no_image.jsonl").read_text().splitlines()]
    assert [line["data_id"] for line in lines] == IDS
    answers = [record["answer_lenient"] or "" for record in records(finished)[8:16]]
    assert [line["prediction"] for line in lines] == answers


def test_manifest_names_the_folder_and_the_contents(finished, flags):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["flags"]["output_dir"] == str(finished)
    assert manifest["data"][0]["sha256"] == hashlib.sha256(Path(flags["data_file_paths"]).read_bytes()).hexdigest()


def test_a_killed_run_goes_on_where_it_stopped(finished, flags, tmp_path):
    lines = (finished / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    marked = json.loads(lines[4]) | {"prediction": "kept from the first run"}
    lines[4] = json.dumps(marked, ensure_ascii=False).encode() + b"\n"
    drawn = (finished / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    drawn[1] = drawn[1].replace(b'"texts": ["', b'"texts": ["kept: ')
    folder = copy_of(
        finished,
        tmp_path / "stopped",
        b"".join(lines[:10]) + lines[10][:-20],
        b"".join(drawn[:3]) + drawn[3][:40],
    )
    evaluate_jsonl.main(arguments(flags | {"output_dir": folder, "batch_size": 4}))
    assert (folder / "predictions.jsonl").read_bytes() == b"".join(lines)
    assert (folder / "rollouts.jsonl").read_bytes() == b"".join(drawn)
    assert not list(folder.glob("*.rank*"))


def test_a_finished_run_is_not_answered_again(finished, flags, tmp_path, monkeypatch):
    lines = (finished / "predictions.jsonl").read_bytes()
    drawn = (finished / "rollouts.jsonl").read_bytes()
    folder = copy_of(finished, tmp_path / "whole", lines.replace(b'"prediction": "', b'"prediction": "kept: '), drawn)
    monkeypatch.setattr(evaluate_jsonl, "load", None)  # no model is loaded
    evaluate_jsonl.main(arguments(flags | {"output_dir": folder}))
    assert all(record["prediction"].startswith("kept: ") for record in records(folder))


def test_answers_to_other_prompts_are_not_kept(finished, flags, tmp_path, monkeypatch):
    """A picture that has changed since, which no manifest knows of: in rows of the setting that shows it, of the one that shows it in place of another, and in rollouts."""
    lines, drawn = ((finished / f"{name}.jsonl").read_bytes() for name in ("predictions", "rollouts"))
    folder = copy_of(finished, tmp_path / "whole", lines, drawn)
    picture = Path(flags["image_folders"]) / "France-0.png"
    before = picture.read_bytes()
    picture.write_bytes((Path(flags["image_folders"]) / "Italy-0.png").read_bytes())
    shown = [record for record in records(finished) if str(picture) in record["image_paths"]]
    assert {record["setting"] for record in shown} == {"normal", "wrong_image"}
    differ = len(shown) + 1  # and the rollouts of the row itself
    try:
        with pytest.raises(InputError, match=f"{differ} of 32 answers kept in .* row 'france' under normal: a picture"):
            evaluate_jsonl.main(arguments(flags | {"output_dir": folder}))
    finally:
        picture.write_bytes(before)
    assert (folder / "predictions.rank0.jsonl").read_bytes() == lines
    monkeypatch.setattr(kept, "MOST", 5)
    evaluate_jsonl.main(arguments(flags | {"output_dir": folder}))


def test_the_prompts_of_kept_answers_are_cut_as_they_were(flags, tmp_path, capsys, monkeypatch):
    cut = flags | {"settings": "gold_only", "max_passage_tokens": 5, "rollouts": 1, "output_dir": tmp_path / "out"}
    evaluate_jsonl.main(arguments(cut))
    monkeypatch.setattr(evaluate_jsonl, "load", None)
    monkeypatch.setattr(kept, "MOST", 5)
    evaluate_jsonl.main(arguments(cut))
    assert "5 of 8 answers kept were drawn: their prompts are those asked now." in capsys.readouterr().out


def test_another_evaluations_predictions_are_refused_or_overwritten(finished, flags, tmp_path):
    folder = copy_of(finished, tmp_path / "other", (finished / "predictions.jsonl").read_bytes())
    other = flags | {"output_dir": folder, "max_new_tokens": 2, "settings": "normal"}
    with pytest.raises(
        InputError, match=r"another evaluation: flags.settings was .* and is 'normal' \(1 more differ\)"
    ):
        evaluate_jsonl.main(arguments(other))
    assert (folder / "predictions.rank0.jsonl").exists()
    evaluate_jsonl.main(arguments(other | {"overwrite": True}))
    assert [record["setting"] for record in records(folder)] == ["normal"] * 8


@pytest.mark.distributed
def test_two_ranks_write_the_same_predictions(finished, flags, tmp_path):
    done = run_ranks(evaluate_jsonl.__file__, *arguments(flags | {"output_dir": tmp_path}))
    for name in ("predictions.jsonl", "rollouts.jsonl", "summary.json", "official_predictions.normal.jsonl"):
        assert (tmp_path / name).read_bytes() == (finished / name).read_bytes()
    assert done.stdout.count("normal - wrong_image") == 1  # printed by rank 0 alone


def test_held_out_rows_are_answered_and_training_rows_teach_the_majority(flags, tmp_path):
    held_out = flags | {"output_dir": tmp_path, "val_split_ratio": 0.5, "settings": "normal", "limit": 3}
    summary = evaluate_jsonl.main(arguments(held_out))
    assert summary["splits"]["all"]["n"] == 3
    assert summary["splits"]["all"]["baselines"]["majority"] == 1.0


def test_an_adapter_answers_as_the_model_it_is_merged_into(flags, tmp_path):
    model = load_model(flags["model_name_or_path"])
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    load_processor(flags["model_name_or_path"]).save_pretrained(tmp_path / "merged")
    predictions = []
    for change in ({}, {"adapter_name_or_path": tmp_path / "adapter"}, {"model_name_or_path": tmp_path / "merged"}):
        folder = tmp_path / f"out{len(predictions)}"
        evaluate_jsonl.main(arguments(flags | {"settings": "normal", "output_dir": folder} | change))
        predictions.append([record["prediction"] for record in records(folder)])
    base, adapter, merged = predictions
    assert adapter == merged != base
    retrained = get_peft_model(load_model(flags["model_name_or_path"]), LoraConfig(target_modules=["q_proj", "v_proj"]))
    retrained.save_pretrained(tmp_path / "adapter")
    again = flags | {
        "settings": "normal",
        "output_dir": tmp_path / "out1",
        "adapter_name_or_path": tmp_path / "adapter",
    }
    with pytest.raises(InputError, match="another evaluation: adapter.adapter_"):
        evaluate_jsonl.main(arguments(again))


def test_an_adapter_is_evaluated_with_the_image_limits_it_was_trained_with(flags, tmp_path):
    torch.manual_seed(0)
    adapted = get_peft_model(
        load_model(flags["model_name_or_path"]),
        LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "bare")
    adapted.save_pretrained(tmp_path / "adapter")
    load_processor(flags["model_name_or_path"], max_pixels=784).save_pretrained(tmp_path / "adapter")
    predictions = []
    for change in (
        {"adapter_name_or_path": "bare"},
        {"adapter_name_or_path": "bare", "max_pixels": 784},
        {"adapter_name_or_path": "adapter"},
    ):
        folder = tmp_path / f"out{len(predictions)}"
        change = change | {"adapter_name_or_path": tmp_path / change["adapter_name_or_path"]}
        evaluate_jsonl.main(arguments(flags | {"settings": "normal", "output_dir": folder} | change))
        predictions.append([record["prediction"] for record in records(folder)])
    unlimited, by_flag, by_processor = predictions
    assert by_processor == by_flag != unlimited


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": "blurred"}, "blurred is no setting"),
        ({"splits": "unseen"}, "no row is of the split unseen; the rows' splits are not named"),
        ({"use_peft": True}, "--use_peft has no effect in evaluation"),
        ({"freeze_projector": True}, "--freeze_projector has no effect in evaluation"),
        ({"adapter_name_or_path": "/nowhere"}, "no adapter_config.json"),
        ({"batch_size": 0}, "--batch_size 0: at least 1 is wanted"),
        ({"limit": 0}, "--limit 0: at least 1 is wanted"),
        ({"conditions": "/nowhere.yaml"}, "--conditions /nowhere.yaml cannot be read"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_written(flags, tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        evaluate_jsonl.main(arguments(flags | {"output_dir": tmp_path / "out"} | change))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["no_passages", "gold_only", "oracle_article", "shuffled_passages", "gold_removed"])
def test_settings_of_passages_want_a_knowledge_base(flags, tmp_path, setting):
    without = {name: value for name, value in flags.items() if name not in ("knowledge_base", "num_passages")}
    with pytest.raises(InputError, match=f"--settings {setting} chooses among passages, and without --knowledge_base"):
        evaluate_jsonl.main(arguments(without | {"output_dir": tmp_path, "settings": f"normal,{setting}"}))


def test_the_checks_look_at_all_levels_that_settings_show():
    levels = evaluate_jsonl.levels_of("normal,no_image,gold_only,oracle_article,no_passages", "retrieved")
    assert levels == ("retrieved", "gold", "oracle_article", "none")


@pytest.mark.parametrize(
    ("change", "tokens"),
    [({"settings": "oracle_article"}, True), ({"settings": "oracle_article", "max_passage_tokens": 8}, False)]
    + [({"settings": "gold_only"}, True), ({"settings": "normal,no_passages"}, False)],
)
def test_prompts_too_long_under_a_setting_are_refused_before_the_model_loads(
    flags, tmp_path, monkeypatch, change, tokens
):
    """The evidence alone is longer than the model's context; nothing that is retrieved is."""
    long = {"id": "capital", "title": "Capital", "text": "It is yes. " + "Nothing more is said of it. " * 2000}
    article = {"key": "france", "title": "France", "url": "", "sections": [long], "images": []}
    others = [json.loads(line) for line in Path(flags["knowledge_base"]).read_text().splitlines()][1:]
    (tmp_path / "kb.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [article, *others]))
    row = json.loads(Path(flags["data_file_paths"]).read_text().splitlines()[0]) | {"candidates": ["italy#capital"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(evaluate_jsonl, "evaluate", lambda *given: "checked")
    change |= {"data_file_paths": tmp_path / "rows.jsonl", "knowledge_base": tmp_path / "kb.jsonl"}
    words = arguments(flags | change | {"output_dir": tmp_path / "out"})
    if tokens:
        with pytest.raises(InputError, match="prompt_too_long: 1"):
            evaluate_jsonl.main(words)
    else:
        assert evaluate_jsonl.main(words) == "checked"


def test_the_longest_answer_belongs_to_the_length(flags, tmp_path):
    with pytest.raises(InputError, match="prompt_too_long: 8"):
        evaluate_jsonl.main(arguments(flags | {"max_new_tokens": 1_000_000, "output_dir": tmp_path / "out"}))
