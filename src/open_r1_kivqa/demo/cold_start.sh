#!/usr/bin/env bash
# Makes the tiny checkpoint of the demo, from nothing but the embedded data, with this project's own SFT:
#
#     bash src/open_r1_kivqa/demo/cold_start.sh [work folder]
#
# It replaces src/open_r1_kivqa/demo/tiny_qwen2_5_vl. One CPU core is enough; README.md beside this file says how long it took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=${1:-outputs/cold_start}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# A random model, the pictures, and 35,200 rows in the order they are learnt in: 1,100 batches.
python -m open_r1_kivqa.demo.cold_start --output "$work" --rows 35200 --seed 0

# Rows stand in batches of one kind, so they are read in order. A model this small takes a high learning rate.
python src/open_r1_kivqa/sft_jsonl.py \
    --model_name_or_path "$work/random" \
    --data_file_paths "$work/rows.jsonl" \
    --image_folders "$work/images" \
    --task_type factbook \
    --output_dir "$work/trained" \
    --num_train_epochs 1 \
    --per_device_train_batch_size 32 \
    --train_sampling_strategy sequential \
    --learning_rate 2e-3 \
    --adam_beta2 0.98 \
    --warmup_steps 50 \
    --logging_steps 10 \
    --save_strategy no \
    --report_to none \
    --activation_checkpointing False \
    --bf16 False \
    --use_cpu True

python -m open_r1_kivqa.demo.cold_start --export "$work/trained" --output src/open_r1_kivqa/demo/tiny_qwen2_5_vl
