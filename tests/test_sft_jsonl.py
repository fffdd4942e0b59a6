"""The supervised entry as users start it, in this process."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sft_run import rewrite_responses, with_responses
from training_rows import write_data

from open_r1_kivqa import sft_jsonl
from open_r1_kivqa.entry import run
from open_r1_kivqa.trainer.checkpoints import MARKER
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor


@pytest.fixture
def flags(tmp_path):
    return with_responses(write_data(tmp_path / "data"))


def arguments(model: str, flags: dict, output_dir: Path, **more) -> list[str]:
    defaults = {
        "model_name_or_path": model,
        **flags,
        "output_dir": output_dir,
        "use_cpu": "true",
        "bf16": "false",
        "gradient_checkpointing": "false",
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "max_steps": 2,
        "save_steps": 1,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": "true",
    }
    return [word for name, value in {**defaults, **more}.items() for word in (f"--{name}", str(value))]


def test_run_with_held_out_rows_then_resume(tiny_model, flags, tmp_path, capsys):
    out = tmp_path / "out"
    argv = arguments(tiny_model("internvl"), flags, out, max_anyres_num=2, val_split_ratio=0.25, eval_steps=1)
    sft_jsonl.main(argv)
    printed = capsys.readouterr().out
    for words in ("Checked 8 rows", "language", "4 rows a step", "step 2/2  loss", "step 2: evaluation  loss"):
        assert words in printed
    assert load_processor(str(out)).image_processor.max_patches == 2
    load_model(str(out))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["entry"] == "sft_jsonl" and manifest["flags"]["max_anyres_num"] == 2

    trained = load_file(out / "model.safetensors")
    shutil.rmtree(out / "checkpoint-2")
    sft_jsonl.main([*argv, "--resume_from_checkpoint", "true"])
    assert (out / "checkpoint-2" / MARKER).is_file()
    assert all(torch.equal(value, trained[name]) for name, value in load_file(out / "model.safetensors").items())


def test_lora_adapter_of_the_unfrozen_parts_is_saved(tiny_model, flags, tmp_path):
    out = tmp_path / "out"
    sft_jsonl.main(
        arguments(tiny_model("qwen2_5_vl"), flags, out, use_peft="true", lora_r=4, freeze_vision_modules="true")
    )
    names = load_file(out / "adapter_model.safetensors").keys()
    assert any("language_model" in name for name in names) and any("visual.merger" in name for name in names)
    assert not any("visual.blocks" in name for name in names)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_length": 100}, "--max_length would cut"),
        ({"packing": "true"}, "--packing"),
        ({"eval_steps": 1}, "needs held-out rows"),
        ({"dtype": "bfloat16"}, "no fp32 master weights"),
        ({"max_pixels": 4000, "min_pixels": 5000}, "at least 5000 and at most 4000"),
        ({"max_anyres_num": 3}, "has nothing to act on"),
        ({"train_sampling_strategy": "group_by_length"}, "random or sequential"),
    ],
)
def test_bad_flags_end_with_one_sentence(more, message, tiny_model, flags, tmp_path, capsys):
    argv = arguments(tiny_model("qwen2_5_vl"), flags, tmp_path / "out", **more)
    with pytest.raises(SystemExit) as end:
        run(lambda: sft_jsonl.main(argv))
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_row_without_response_is_named(tiny_model, flags, tmp_path, capsys):
    rewrite_responses(flags, lambda number: "yes")
    path = Path(flags["data_file_paths"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[2]["conversations"][1]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = arguments(tiny_model("qwen2_5_vl"), flags, tmp_path / "out")
    with pytest.raises(SystemExit):
        run(lambda: sft_jsonl.main(argv))
    error = capsys.readouterr().err
    assert "rows.jsonl:3" in error and "no gpt turn to learn from" in error


def test_folder_of_an_earlier_run_is_not_overwritten(tiny_model, flags, tmp_path, capsys):
    (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
    with pytest.raises(SystemExit):
        run(lambda: sft_jsonl.main(arguments(tiny_model("qwen2_5_vl"), flags, tmp_path / "out")))
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err
