#!/usr/bin/env bash
# GRPO of Qwen2.5-VL with LoRA on the language model, vision tower and projector frozen: ZeRO-2, one machine with 8 GPUs.
#
#   bash setup.sh && bash run_scripts/run_grpo_kivqa_lora.sh         set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_kivqa_lora.sh                  two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/kivqa_lora.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: every GPU holds all weights in bf16 (2 bytes a parameter: 7.5 GB for the 3B model, 17 GB
# for the 7B); adapter, gradients and optimizer are small. The rest are activations: 1.5 to 2 GB a completion. So of a card with
#   80 GB  about 32 are used as it stands
#   48 GB  as it stands
#   24 GB  --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --per_device_train_batch_size 4 --gradient_accumulation_steps 4: about 15
# Still out of memory: --max_completion_length 256, --num_passages 3, --max_pixels 200704 make shorter sequences (an image token is
# 28 x 28 pixels); --deepspeed local_scripts/zero3.json spreads the weights over the GPUs while it trains, and generates more slowly.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-7B-Instruct
data=data/train.jsonl           # several: a.jsonl:b.jsonl
images=data/images              # one folder for each data file, or one for all
knowledge=data/knowledge.jsonl  # the articles that rows name passages of
output=outputs/grpo_kivqa_lora
gpus=8

family=qwen2_5_vl task=kivqa
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/kivqa_lora.yaml \
    --deepspeed local_scripts/zero2.json \
    --model_name_or_path "$model" \
    --max_pixels 401408 \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --knowledge_base "$knowledge" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
