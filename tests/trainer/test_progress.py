import io
import time

import pytest
import torch
from rich.console import Console
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers import ProgressCallback as StockProgressCallback
from trl import GRPOConfig

from open_r1_kivqa.arguments import VLMGRPOConfig
from open_r1_kivqa.trainer import progress
from open_r1_kivqa.trainer.progress import PhaseReport, PhaseTimer, ProgressCallback


def grpo_config(folder, **flags) -> GRPOConfig:
    flags = {"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4} | flags
    return VLMGRPOConfig(output_dir=str(folder), bf16=False, use_cpu=True, report_to="none", **flags)


def test_batch_report_counts_prompts_and_completions(tmp_path):
    # 4 processes x 4 x 4 = 64 completions = 8 prompts; 40 micro-batches make 10 steps
    assert progress.batch_report(grpo_config(tmp_path), 4, 40, 20) == (
        "64 completions a step = 8 prompts x 8 (4 per device x 4 processes x 4 accumulated); 10 steps an epoch, 20 steps in all\n"
        "64 completions = 8 prompts x 8 generated at a time, each used 1 time\n"
        "A loss near 0 is as it should be: the advantages of a group cancel. What is learnt shows in the reward."
    )


def test_batch_report_tells_generation_batch_from_step(tmp_path):
    config = grpo_config(tmp_path, steps_per_generation=8, num_iterations=2)
    # a generation batch is 4 x 8 = 32 completions on one process, an optimizer step takes 16 of them
    report = progress.batch_report(config, 1, 64, 16)
    assert report.startswith(
        "16 completions a step = 2 prompts x 8 (4 per device x 1 process x 4 accumulated); 16 steps"
    )
    assert report.splitlines()[1] == "32 completions = 4 prompts x 8 generated at a time, each used 2 times"


def test_batch_report_of_sft_counts_rows(tmp_path):
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=3, use_cpu=True)
    report = progress.batch_report(args, 1, 7, 6)
    assert report == "6 rows a step (2 per device x 1 process x 3 accumulated); 3 steps an epoch, 6 steps in all"


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        (
            {"reward": 0.6, "rewards/accuracy/mean": 0.5, "rewards/accuracy/std": 0.1, "loss": 0.0},
            "reward 0.600  accuracy 0.500",
        ),
        ({"reward": 0.6, "rewards/accuracy/mean": None}, "reward 0.600"),
        ({"loss": 1.25, "mean_token_accuracy": 0.75}, "loss 1.250  token accuracy 0.750"),
        ({"eval_accuracy": 0.5, "eval_runtime": 3.0}, ""),
        ({"train_runtime": 3.0, "train_loss": 0.1}, ""),
    ],
)
def test_training_words(logs, words):
    assert progress.training_words(logs) == words


def test_evaluation_words_leave_running_times_out():
    logs = {"eval_accuracy": 0.5, "eval_format": 1.0, "eval_runtime": 3.0, "eval_samples_per_second": 2.0, "epoch": 1.0}
    assert progress.evaluation_words(logs) == "accuracy 0.500  format 1.000"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (40, "40 s"), (200, "3 min"), (5000, "83 min"), (9000, "2 h 30 min")]
)
def test_duration(seconds, text):
    assert progress.duration(seconds) == text


def test_time_belongs_to_the_innermost_phase():
    timer = PhaseTimer()
    with timer.phase("loss"):
        time.sleep(0.01)
    assert not timer.seconds  # off until started
    timer.start()
    with timer.phase("loss"):
        time.sleep(0.05)
        with timer.phase("generation"):
            time.sleep(0.1)
        time.sleep(0.05)
    time.sleep(0.05)  # in no phase
    assert timer.seconds["generation"] == pytest.approx(0.1, abs=0.04)
    assert timer.seconds["loss"] == pytest.approx(0.1, abs=0.04)
    assert sum(timer.seconds.values()) < 0.25


def test_phase_of_a_failing_block_is_closed():
    timer = PhaseTimer()
    timer.start()
    with pytest.raises(RuntimeError), timer.phase("loss"):
        raise RuntimeError
    assert timer.open == [] and timer.seconds["loss"] > 0


def test_phase_report_in_words():
    text = progress.phase_report({"generation": 6.0, "loss": 3.0}, tokens=1200, wall=10.0, steps=4, left=7200)
    assert text == (
        "2.5 s a step: generation 1.5 s (60%), loss 0.75 s (30%), rest 0.25 s (10%)\n"
        "200 generated tokens a second on each process; 2 h 00 min left"
    )


def test_phase_report_without_phases():
    assert progress.phase_report({}, tokens=0, wall=10.0, steps=4, left=7200) == "2.5 s a step\n2 h 00 min left"


class Line(torch.nn.Module):
    """Least squares through the origin: the smallest thing that transformers' Trainer trains."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, labels):
        return {"loss": ((self.slope * x - labels) ** 2).mean()}


@pytest.fixture
def line_trainer(tmp_path):
    rows = [{"x": float(i), "labels": 2.0 * i} for i in range(8)]
    args = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=1,
        max_steps=8,
        logging_steps=2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    )
    return Trainer(Line(), args, train_dataset=rows)


def test_add_progress_replaces_the_stock_bar(line_trainer):
    progress.add_progress(line_trainer, PhaseTimer())
    kinds = [type(callback) for callback in line_trainer.callback_handler.callbacks]
    assert StockProgressCallback not in kinds and PrinterCallback not in kinds
    assert kinds[-2:] == [ProgressCallback, PhaseReport]


def test_log_file_gets_plain_lines(line_trainer):
    text = io.StringIO()
    console, timer = Console(file=text, width=400), PhaseTimer()
    line_trainer.remove_callback(StockProgressCallback)
    line_trainer.add_callback(ProgressCallback("1 parameter", console))
    line_trainer.add_callback(PhaseReport(timer, console))
    stock_step = line_trainer.training_step

    def training_step(*args, **kwargs):
        with timer.phase("generation"):
            timer.add_tokens(10)
        return stock_step(*args, **kwargs)

    line_trainer.training_step = training_step
    line_trainer.train()
    lines = text.getvalue().splitlines()
    assert lines[0] == "1 parameter"
    assert lines[1] == "1 rows a step (1 per device x 1 process x 1 accumulated); 8 steps an epoch, 8 steps in all"
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["2/8", "4/8", "6/8", "8/8"]
    assert all(" loss " in line and line.endswith(" left") for line in steps)
    assert sum("s a step: generation" in line for line in lines) == 1  # after step 5, once
    assert any("generated tokens a second" in line and "GiB of RAM" in line for line in lines)
    assert timer.tokens == 40 and not timer.on  # steps 2 to 5


def test_terminal_gets_a_bar(line_trainer):
    text = io.StringIO()
    line_trainer.remove_callback(StockProgressCallback)
    line_trainer.add_callback(ProgressCallback("", Console(file=text, force_terminal=True, width=120)))
    line_trainer.train()
    assert "8/8" in text.getvalue() and "s a step" in text.getvalue()
    assert "\x1b[?25h" in text.getvalue()  # the cursor is back


def test_window_is_a_whole_number_of_generation_batches(tmp_path):
    report = PhaseReport(PhaseTimer())
    for steps_per_generation, window in ((4, 4), (12, 6), (32, 8)):  # 1, 3 and 8 steps a generation batch
        config = grpo_config(tmp_path, steps_per_generation=steps_per_generation, save_strategy="no")
        report.on_train_begin(config, None, None)
        assert report.window == window
