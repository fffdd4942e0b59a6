#!/usr/bin/env bash
# Cold start before GRPO: SFT of Qwen2.5-VL on rows whose last turn holds reasoning and answer. Every weight, ZeRO-3, one
# machine with 8 GPUs. Give its output folder to run_grpo_kivqa.sh as model.
#
#   bash setup.sh && bash run_scripts/run_sft_cold_start.sh          set the paths below first
#   SMOKE=1 bash run_scripts/run_sft_cold_start.sh                   two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to sft_jsonl.py and win over configs/sft.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs (60 GB / 8
# for the 3B model, 133 GB / 8 for the 7B). The rest are activations, most of them logits of all tokens of a row: about 4 GB for a row of
# 3000 tokens. So of a card with
#   80 GB  about 27 are used as it stands, 38 with the 7B model
#   48 GB  as it stands
#   24 GB  add --per_device_train_batch_size 1 --gradient_accumulation_steps 8: the same step in smaller pieces: about 14
# Still out of memory: --num_passages 3, --max_pixels 200704 make shorter sequences (an image token is 28 x 28 pixels);
# --deepspeed local_scripts/zero3_offload.json keeps weights and optimizer in the machine's RAM and is slower.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-3B-Instruct
data=data/cold_start.jsonl      # several: a.jsonl:b.jsonl
images=data/images              # one folder for each data file, or one for all
knowledge=data/knowledge.jsonl  # the articles that rows name passages of
output=outputs/sft_cold_start
gpus=8

family=qwen2_5_vl task=kivqa
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/sft_jsonl.py \
    --config configs/sft.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --max_pixels 401408 \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --knowledge_base "$knowledge" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
