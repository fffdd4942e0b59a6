#!/usr/bin/env bash
# The demo: evaluates a tiny Qwen2.5-VL on the embedded questions, trains it by GRPO, evaluates it again. Takes minutes on
# a CPU, uses a GPU if there is one (any will do: it took 1.5 GiB on a CPU), needs no network after the set-up.
# Flags: --seed, --output_dir, --max_steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup.sh
exec .venv/bin/python -m open_r1_kivqa.demo.run "$@"
