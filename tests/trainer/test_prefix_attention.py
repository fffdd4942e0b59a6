"""The attention over packed rows, with the kernels of flash attention written out in torch."""

import pytest
import torch
from grpo_run import config, make_trainer
from training_rows import write_data
from transformers import PreTrainedModel, modeling_flash_attention_utils

from open_r1_kivqa.trainer.prefix_attention import NAME, use_shared_prefix


def varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    """flash_attn_varlen_func by its documentation: the causal mask is aligned with the bottom right corner."""
    assert dropout_p == 0
    heads, outputs = q.size(1) // k.size(1), []
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert queries[-1] == len(q) and keys[-1] == len(k)
    for start, end, first, last in zip(queries, queries[1:], keys, keys[1:], strict=False):
        assert end - start <= max_seqlen_q and last - first <= max_seqlen_k
        its, theirs = (part[first:last].repeat_interleave(heads, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[start:end], its) * (softmax_scale or q.size(-1) ** -0.5)
        if causal:
            seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(scores.size(2) - scores.size(1))
            scores = scores.masked_fill(~seen, -torch.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), theirs))
    return torch.cat(outputs)


def batched(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """flash_attn_func: (batch, length, heads, head width)."""
    starts = [torch.arange(len(q) + 1) * part.size(1) for part in (q, k)]
    outputs = varlen(
        *(part.flatten(0, 1) for part in (q, k, v)), *starts, q.size(1), k.size(1), dropout_p, softmax_scale, causal
    )
    return outputs.view(q.shape)


@pytest.fixture
def flash_attention(monkeypatch):
    """transformers as with flash-attn on a GPU. It knows its kernels by name, and no others than these."""
    asked = set()

    def kernels(implementation, *args, **kwargs):
        asked.add(implementation)
        assert implementation == "flash_attention_2"
        utils = modeling_flash_attention_utils
        return batched, varlen, None, utils._pad_input, utils._unpad_input

    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", kernels)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda *args, **kwargs: True)
    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda self, name, **kwargs: name)
    return asked


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl"])
def test_flash_attention_gives_what_sdpa_gives(family, flash_attention, tiny_model, tmp_path):
    """Generation, reference and loss of a run on rows with none to two images; with and without sharing."""
    flags = write_data(tmp_path / "data", kinds="12010020")
    runs = []
    for attention, shares in (("sdpa", True), ("flash_attention_2", True), ("flash_attention_2", False)):
        args = config(
            tmp_path / f"{attention}-{shares}",
            per_device_train_batch_size=8,
            num_generations=4,
            beta=0.1,
            logging_steps=1,
            shared_prefix=shares,
            shared_prefill=shares,
            keep_groups=True,
        )
        trainer = make_trainer(tiny_model(family), flags, args, {"attn_implementation": attention, "dtype": "float32"})
        assert trainer.shares_prefix == shares
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        runs.append([entry[name] for entry in logs for name in ("loss", "grad_norm", "entropy", "kl", "reward")])
        names = {its.config._attn_implementation for its in trainer.model.modules() if hasattr(its, "config")}
        assert names == ({attention, NAME + attention} if shares else {attention})  # the language model's alone
    assert len(runs[0]) == 10 and flash_attention == {"flash_attention_2"}
    assert runs[1] == pytest.approx(runs[0], rel=2e-4, abs=1e-6)
    assert runs[2] == pytest.approx(runs[0], rel=2e-4, abs=1e-6)


def test_other_attention_is_left_alone(flash_attention, tiny_model, tmp_path):
    flags = write_data(tmp_path / "data", kinds="1")
    options = config(tmp_path / "run", shared_prefix=False, num_generations=4)
    trainer = make_trainer(tiny_model("qwen2_5_vl"), flags, options, {"attn_implementation": "eager"})
    assert not use_shared_prefix(trainer.model)
    assert trainer.model.config.text_config._attn_implementation == "eager"
