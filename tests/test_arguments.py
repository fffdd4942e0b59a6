"""Every flag of ours and of VLM-R1 acts or is refused with a reason."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer, ModelConfig, SFTConfig

from open_r1_kivqa import entry, grpo_flags
from open_r1_kivqa.arguments import (
    LOSS_TYPES,
    DataArguments,
    VLMGRPOConfig,
    VLMModelConfig,
    VLMSFTConfig,
)
from open_r1_kivqa.curriculum.arguments import CurriculumArguments
from open_r1_kivqa.entry import parse_some
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.arguments import EvaluationArguments
from open_r1_kivqa.rewards.arguments import JudgeArguments, RewardArguments

SOURCE = Path(__file__).parents[1] / "src" / "open_r1_kivqa"
GRPO = (DataArguments, VLMModelConfig, VLMGRPOConfig)
SFT = (DataArguments, VLMModelConfig, VLMSFTConfig)
REQUIRED = ["--data_file_paths", "a.jsonl", "--model_name_or_path", "m", "--output_dir", "out"]
CPU = ["--use_cpu", "true", "--bf16", "false"]

# VLM-R1's flags and values from its scripts. None: refused, with a reason.
VLM_R1 = {
    "data_file_paths": "a.jsonl:b.jsonl",
    "image_folders": "a:b",
    "reward_method": "default:default",
    "val_split_ratio": "0.1",
    "reward_funcs": "accuracy format",
    "max_pixels": "12845056",
    "min_pixels": "3136",
    "max_anyres_num": "12",
    "task_type": "default",
    "freeze_vision_modules": "true",
    "model_name_or_path": "m",
    "use_peft": "true",
    "lora_r": "64",
    "lora_alpha": "128",
    "lora_dropout": "0.05",
    "lora_task_type": "CAUSAL_LM",
    "attn_implementation": "flash_attention_2",
    "num_generations": "8",
    "max_completion_length": "2048",
    "beta": "0.04",
    "num_iterations": "1",
    "epsilon": "0.2",
    "epsilon_high": "0.28",
    "reward_weights": "1 0.5",
    "learning_rate": "1e-5",
    "per_device_train_batch_size": "8",
    "gradient_accumulation_steps": "2",
    "num_train_epochs": "2",
    "logging_steps": "1",
    "bf16": "false",
    "gradient_checkpointing": "true",
    "run_name": "x",
    "save_steps": "100",
    "save_only_model": "true",
    "report_to": "tensorboard",  # wandb in its scripts, which need not be installed here
    "temperature": "0.9",
    "top_p": "1.0",
    "log_completions": "true",
    "resume_from_checkpoint": "true",
    "sync_ref_model": "false",
    "data_seed": "42",
    "is_reward_customized_from_vlm_module": "true",
    "arrow_cache_dir": None,
}


def parse(kinds, *argv):
    return entry.parse(kinds, [*REQUIRED, *CPU, *argv])


@pytest.mark.parametrize("name", [name for name, value in VLM_R1.items() if value is not None])
def test_a_flag_of_vlm_r1_arrives(name):
    beside = ["--use_peft", "true"] if name.startswith("lora_") else []
    arguments = parse(GRPO, f"--{name}", *VLM_R1[name].split(), *beside)
    found = [getattr(each, name) for each in arguments if hasattr(each, name)]
    assert len(found) == 1
    shown = found[0] if isinstance(found[0], list) else [found[0]]
    for got, wanted in zip(shown, VLM_R1[name].split(), strict=True):
        assert str(got).lower() == wanted.lower() or float(got) == float(wanted)


@pytest.mark.parametrize("name", [name for name, value in VLM_R1.items() if value is None])
def test_a_flag_of_vlm_r1_without_use_is_refused_with_a_reason(name):
    with pytest.raises(InputError, match=f"--{name} "):
        parse(GRPO, f"--{name}", "true")


@pytest.mark.parametrize("name", entry.FORMER)
def test_a_flag_of_older_scripts_says_what_to_do_instead(name, tmp_path):
    wanted = re.escape(entry.FORMER[name])
    for spelling in (f"--{name}", f"--{name.replace('_', '-')}"):
        with pytest.raises(InputError, match=f"{spelling}.*{wanted}"):
            parse(GRPO, spelling, "1")
    with pytest.raises(InputError, match=f"--{name}=1.*{wanted}"):
        parse(GRPO, f"--{name}=1")
    (tmp_path / "flags.yaml").write_text(f"{name}: 1\n")
    with pytest.raises(InputError, match=f"{name}.*{wanted}"):
        parse(GRPO, "--config", str(tmp_path / "flags.yaml"))


def own_fields():
    """Flags that TRL doesn't have."""
    stock = {field.name for kind in (GRPOConfig, SFTConfig, ModelConfig) for field in fields(kind)}
    kinds = (DataArguments, VLMModelConfig, VLMGRPOConfig, VLMSFTConfig, EvaluationArguments, CurriculumArguments)
    kinds += (JudgeArguments, RewardArguments)
    return sorted({field.name for kind in kinds for field in fields(kind)} - stock)


@pytest.mark.parametrize("name", own_fields())
def test_a_flag_of_ours_is_read_outside_its_definition_or_refused(name):
    if VLM_R1.get(name, "") is None:
        return
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "arguments.py"]
    # What other files ask the curriculum's flags for comes after their checks.
    texts.append((SOURCE / "curriculum" / "arguments.py").read_text(encoding="utf-8").partition("    def levels(")[2])
    read = re.compile(rf"\b\w*(args|arguments|data|model|settings|self)\w*\.{name}\b|attrgetter\(.*{name}|\"{name}\"")
    assert any(map(read.search, texts)), f"--{name} is never read"


@pytest.mark.parametrize(
    ("kinds", "argv", "message"),
    [
        (GRPO, ["--val_split_ratio", "1.5"], "--val_split_ratio 1.5"),
        (GRPO, ["--val_split_ratio", "0.1", "--eval_data_file_paths", "b.jsonl"], "give one of them"),
        (GRPO, ["--eval_image_folders", "x"], "--eval_data_file_paths"),
        (GRPO, ["--num_passages", "0"], "at least 1"),
        (GRPO, ["--context_level", "hardest"], "'hardest'"),
        (GRPO, ["--context_level", "0"], "'0'"),
        (GRPO, ["--freeze_vision_modules", "--freeze_projector", "--freeze_language_model"], "nothing is left"),
        (GRPO, ["--load_in_4bit"], "--use_peft"),
        (GRPO, ["--trust_remote_code"], "-hf"),
        (GRPO, ["--num_generations", "1"], "at least 2"),
        (GRPO, ["--num_generations_eval", "4"], "greedy"),
        (GRPO, ["--answer_extraction", "loose"], "'loose'"),
        (GRPO, ["--log_multimodal", "true"], "image paths"),
        (GRPO, ["--remove_unused_columns", "true"], "row numbers"),
        (GRPO, ["--eval_on_start"], "--eval_steps"),
        (GRPO, ["--context_level", "²"], "'²'"),
        (GRPO, ["--system_prompt", "See <|image_pad|>"], "--system_prompt spells the model token <|image_pad|>"),
        (GRPO, ["--context_level", "gold"], "--context_level gold acts on passages"),
        (GRPO, ["--num_passages", "3"], "--num_passages 3 acts on passages"),
        (GRPO, ["--use_peft", "--lora_r", "0"], "--lora_r 0: at least 1"),
        (SFT, ["--lora_r", "8"], "--lora_r acts only with LoRA: add --use_peft"),
        (SFT, ["--lora_modules_to_save", "merger"], "--lora_modules_to_save acts only with LoRA"),
        (SFT, ["--enable_jit_checkpoint", "true"], "--enable_jit_checkpoint has nothing to act on"),
        (SFT, ["--model_init_kwargs", '{"dtype": "float32"}'], "dtype has a flag of its own"),
        (GRPO, ["--use_peft", "--lora_dropout", "1"], "--lora_dropout 1.0"),
        (GRPO, ["--max_steps", "0"], "--max_steps 0: at least 1"),
        (GRPO, ["--num_train_epochs", "0"], "--num_train_epochs 0.0"),
        (GRPO, ["--per_device_train_batch_size", "0"], "at least 1"),
        (GRPO, ["--gradient_accumulation_steps", "0"], "at least 1"),
        (GRPO, ["--num_iterations", "0"], "--num_iterations 0"),
        (GRPO, ["--steps_per_generation", "0"], "--steps_per_generation 0"),
        (GRPO, ["--max_completion_length", "0"], "--max_completion_length 0"),
        (GRPO, ["--eval_steps", "1", "--eval_max_rows", "0"], "--eval_max_rows 0"),
        (GRPO, ["--save_steps", "0"], "--save_steps 0"),
        (GRPO, ["--eval_steps", "0"], "--eval_steps 0"),
        (GRPO, ["--learning_rate", "nan"], "--learning_rate nan"),
        (GRPO, ["--temperature", "0"], "--temperature 0.0"),
        (GRPO, ["--beta", "-0.1"], "--beta -0.1: at least 0"),
        (GRPO, ["--sync_ref_model", "true"], "--sync_ref_model has no reference model to act on with --beta 0.0"),
        (GRPO, ["--seed", "-1"], "--seed -1: at least 0"),
        (GRPO, ["--loss_type", "gspo"], "--loss_type 'gspo' is unknown: give one of grpo"),
        (GRPO, ["--reward_weights", "1"], "1 numbers for the 2 rewards accuracy, format"),
        (GRPO, ["--reward_weights", "1", "nan"], "finite"),
        (
            GRPO,
            ["--metric_for_best_model", "loss"],
            "--metric_for_best_model loss is unknown: give one of eval_accuracy",
        ),
        (GRPO, ["--report_to", "nosuch"], "--report_to nosuch is unknown"),
        (SFT, ["--report_to", "clearml"], "clearml is not installed: pip install clearml"),
        (SFT, ["--max_steps", "0"], "--max_steps 0"),
        (SFT, ["--max_length", "1024"], "cut"),
        (SFT, ["--packing"], "images"),
        (SFT, ["--completion_only_loss", "false"], "response only"),
    ],
)
def test_refusals(kinds, argv, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse(kinds, *argv)


IDLE_WITHOUT = {
    "vllm_server_base_url": ("http://localhost:8000", "--use_vllm true"),
    "vllm_mode": ("server", "--use_vllm true"),
    "ref_model_sync_steps": ("64", "--sync_ref_model true --beta 0.1"),
    "ref_model_mixup_alpha": ("0.9", "--sync_ref_model true --beta 0.1"),
    "sapo_temperature_neg": ("1.2", "--loss_type sapo"),
    "vespo_k_neg": ("4", "--loss_type vespo"),
    "entropy_coef_max": ("0.5", "--use_adaptive_entropy true"),
    "entropy_target": ("1", "--use_adaptive_entropy true"),
    "eval_max_rows": ("8", "--eval_steps 2"),
    "eval_batch_size_greedy": ("8", "--eval_steps 2"),
}


@pytest.mark.parametrize("name", IDLE_WITHOUT)
def test_a_flag_that_acts_with_another_one_alone_is_refused_without_it(name):
    value, other = IDLE_WITHOUT[name]
    with pytest.raises(InputError, match=f"--{name} acts only with {other.split()[0]}"):
        parse(GRPO, f"--{name}", value)
    if not name.startswith("vllm"):  # which may not be installed
        assert str(getattr(parse(GRPO, f"--{name}", value, *other.split())[2], name)) in (value, f"{value}.0")


@pytest.mark.parametrize("name", sorted(grpo_flags.IDLE))
def test_a_flag_of_trl_or_transformers_that_nothing_reads_is_refused(name):
    field = GRPOConfig.__dataclass_fields__[name]
    value = {bool: str(not field.default), int: "3", float: "0.1"}.get(type(field.default), "3")
    value = {"train_sampling_strategy": "sequential", "transformers_continuous_batching_config": "{}"}.get(name, value)
    with pytest.raises(InputError, match=f"--{name} has nothing to act on"):
        parse(GRPO, f"--{name}", value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--importance_sampling_level", "seq"], "'seq' is unknown: give one of token, sequence"),
        (["--scale_rewards", "std"], "'std' is unknown: give one of group, batch, none"),
        (["--multi_objective_aggregation", "sum"], "'sum' is unknown"),
        (["--top_p", "1.5"], "--top_p 1.5: a number above 0 and at most 1"),
        (["--min_p", "-0.1"], "--min_p -0.1"),
        (["--top_k", "-1"], "--top_k -1: at least 0"),
        (["--repetition_penalty", "0"], "--repetition_penalty 0.0"),
        (["--top_entropy_quantile", "20"], "--top_entropy_quantile 20.0: a number from 0 to 1"),
        (["--epsilon", "-1"], "--epsilon -1.0: at least 0"),
        (["--loss_type", "cispo"], "--loss_type cispo cuts the ratio itself to --epsilon_high, here 0.2"),
        (["--delta", "2", "--loss_type", "sapo"], "--delta acts only with a loss that clips"),
        (["--sync_ref_model", "true", "--beta", "0.1", "--fsdp", "full_shard"], "--sync_ref_model with --fsdp"),
        (["--generation_kwargs", '{"temperature": 0.5}'], "temperature has a flag of its own, .*: say --temperature"),
        (["--generation_kwargs", '{"max_new_tokens": 5}'], "say --max_completion_length"),
        (["--generation_kwargs", '{"num_return_sequences": 2}'], "num_return_sequences gives no plain batch"),
        (["--generation_kwargs", '{"no_repeat_ngrams_size": 2}'], "did you mean no_repeat_ngram_size"),
    ],
)
def test_values_that_would_fail_or_mean_nothing_in_the_first_step(argv, message):
    with pytest.raises(InputError, match=message):
        parse(GRPO, *argv)


@pytest.mark.parametrize(("given", "meant"), [("true", "group"), ("False", "none"), ("batch", "batch")])
def test_truth_values_that_trl_names_for_scale_rewards(given, meant):
    assert parse(GRPO, "--scale_rewards", given)[2].scale_rewards == meant


def test_numbers_of_evaluation():
    with pytest.raises(InputError, match="--batch_size 0: at least 1"):
        EvaluationArguments(batch_size=0)
    with pytest.raises(InputError, match="--seed -1: at least 0"):
        EvaluationArguments(seed=-1)


def test_required_flags_are_named():
    with pytest.raises(InputError, match="--data_file_paths is missing"):
        DataArguments()
    with pytest.raises(InputError, match="--model_name_or_path is missing"):
        VLMModelConfig()


def test_how_passages_are_shown():
    data = DataArguments(data_file_paths="a", knowledge_base="k", max_passage_tokens=256, passage_images=2)
    assert (data.max_passage_tokens, data.passage_images) == (256, 2)
    for name in ("max_passage_tokens", "passage_images"):
        with pytest.raises(InputError, match=f"--{name} acts on passages, and without --knowledge_base there are none"):
            DataArguments(data_file_paths="a", **{name: 2})
    with pytest.raises(InputError, match="--max_passage_tokens 0: at least 1 is wanted"):
        DataArguments(data_file_paths="a", knowledge_base="k", max_passage_tokens=0)
    with pytest.raises(InputError, match="--passage_images -1: at least 0 is wanted"):
        DataArguments(data_file_paths="a", knowledge_base="k", passage_images=-1)


def test_eval_steps_alone_turns_evaluation_on():
    *_, args = parse(GRPO, "--eval_steps", "4")
    assert args.eval_strategy == "steps" and args.eval_steps == 4


def test_loss_types_are_all_that_trl_knows():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    compared = re.findall(r"self\.loss_type (?:==|in) (\[[^]]*\]|\"\w+\")", source)
    assert set(LOSS_TYPES) == set(re.findall(r"\w+", " ".join(compared)))


def test_the_best_model_is_that_of_a_measure_of_greedy_evaluation():
    *_, args = parse(GRPO, "--eval_steps", "500", "--metric_for_best_model", "format")
    assert args.metric_for_best_model == "eval_format" and args.greater_is_better
    *_, args = parse(GRPO, "--eval_steps", "500", "--load_best_model_at_end", "--save_strategy", "steps")
    assert args.metric_for_best_model == "eval_accuracy" and args.greater_is_better


def test_the_template_follows_the_knowledge_base():
    assert DataArguments(data_file_paths="a").task_type == "default"
    assert DataArguments(data_file_paths="a", knowledge_base="k").task_type == "kivqa"
    assert DataArguments(data_file_paths="a", knowledge_base="k", task_type="default").task_type == "default"


def test_yaml_gives_defaults_that_the_command_line_overrides(tmp_path):
    config = tmp_path / "recipe.yaml"
    config.write_text(
        "num_passages: 3\nnum_generations: 4\nreward_funcs: [format]\nuse_peft: true\nlora_r: 8\nknowledge_base: k\n"
    )
    data, model, args = parse(GRPO, "--config", str(config), "--num_generations", "2")
    assert (data.num_passages, args.num_generations, args.reward_funcs, model.lora_r) == (3, 2, ["format"], 8)


def test_parse_some_makes_the_wanted_and_still_refuses_unknown_flags():
    more = ["--num_generations", "4", "--max_pixels", "5000", "--deepspeed", "zero3.json"]
    data, model, flags = parse_some(GRPO, GRPO[:2], [*REQUIRED, *more])
    assert (data.data_file_paths, model.max_pixels, flags.deepspeed) == ("a.jsonl", 5000, "zero3.json")
    with pytest.raises(InputError, match="did you mean --num_generations"):
        parse_some(GRPO, GRPO[:2], [*REQUIRED, "--num_generation_s", "4"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nosuchflag", "1"], "--nosuchflag"),
        (["--num_generations", "many"], "invalid int value: 'many'"),
        (["--num_generations", "3"], "divisible by num_generations"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml does not exist, seen from /"),
        (["--num_generation", "4"], "did you mean --num_generations"),  # argparse would take it for the whole word
    ],
)
def test_what_the_parser_or_trl_refuses_is_bad_input_too(argv, message):
    with pytest.raises(InputError, match=message):
        entry.parse(GRPO, [*REQUIRED, *CPU, *argv])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_told_apart_from_one_that_lacks_bf16(monkeypatch):
    """transformers says the same of both."""
    with pytest.raises(InputError, match="^No GPU was found.* add --use_cpu true"):
        entry.parse(GRPO, REQUIRED)
    monkeypatch.setattr(entry, "no_accelerator", lambda: False)
    with pytest.raises(InputError, match="setup doesn't support bf16"):
        entry.parse(GRPO, REQUIRED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_pasages: 3", "--config: 'num_pasages' is no flag; did you mean 'num_passages'"),
        ("num_passages: 2.5", "invalid int value: '2.5'"),
        ("num_passages: [1]", "num_passages is [1], which this flag cannot be"),
        ("num_passages: {a: 1}", "num_passages is {'a': 1}, which"),
        ("num_passages:", "num_passages is empty"),
        ("reward_weights: [1, high]", "invalid float value: 'high'"),
        ("use_peft: 2", "got 2 but expected"),
        ("dtype: float7", "invalid choice: 'float7'"),
        ("a: [1", "while parsing a flow"),
        ("- a", "mapping"),
        ("\0", "special characters are not allowed"),
    ],
)
def test_a_yaml_that_cannot_be_used(text, message, tmp_path):
    config = tmp_path / "recipe.yaml"
    config.write_text(text + "\n")
    with pytest.raises(InputError, match=re.escape(message)):
        entry.parse(GRPO, [*REQUIRED, *CPU, "--config", str(config)])


def test_values_of_a_yaml_are_read_as_on_the_command_line(tmp_path):
    config = tmp_path / "recipe.yaml"
    config.write_text(
        "learning_rate: 1e-6\nknowledge_base: k\ncontext_level: 3\nreward_funcs: accuracy\nreward_weights: 1\nreport_to: [tensorboard]\n"
        "lora_target_modules: [q_proj, v_proj]\nmax_pixels: null\nlr_scheduler_kwargs: {num_cycles: 2}\nuse_peft: yes\n"
    )
    data, model, args = parse(GRPO, "--config", str(config))
    assert (args.learning_rate, data.context_level, model.max_pixels, model.use_peft) == (1e-6, "3", None, True)
    assert (args.reward_funcs, args.reward_weights, args.report_to) == (["accuracy"], [1.0], ["tensorboard"])
    assert model.lora_target_modules == ["q_proj", "v_proj"] and args.lr_scheduler_kwargs == {"num_cycles": 2}
