#!/usr/bin/env bash
# GRPO of Qwen2.5-VL on referring expressions with LoRA on the language model, vision tower and projector frozen: ZeRO-2, one machine
# with 8 GPUs.
#
#   bash setup.sh && bash run_scripts/run_grpo_rec_lora.sh   set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_rec_lora.sh            two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/rec_lora.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: every GPU holds all weights in bf16 (2 bytes a parameter: 7.5 GB for the 3B model, 17 GB
# for the 7B); adapter, gradients and optimizer are small, and the reference of the KL penalty is the model without its adapter. The logits
# of a completion of 2048 tokens take 2.5 GB while its loss is computed. So of a card with
#   80 GB  about 35 are used as it stands; 45 with the 7B model
#   48 GB  as it stands; the 7B model with --per_device_train_batch_size 4 --gradient_accumulation_steps 4: about 32
#   24 GB  add --per_device_train_batch_size 2 --gradient_accumulation_steps 8: about 16; the 7B model does not fit with room to spare
# Still out of memory: --max_completion_length 1024, --max_pixels 401408 (an image token is 28 x 28 pixels).
# With flash-attn installed (setup.sh --gpu) add --attn_implementation flash_attention_2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-3B-Instruct
data=data/rec_train.jsonl  # several: a.jsonl:b.jsonl; `kivqa convert` makes them from RefCOCO
images=data/coco           # one folder for each data file, or one for all
output=outputs/grpo_rec_lora
gpus=8

family=qwen2_5_vl task=rec
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/rec_lora.yaml \
    --deepspeed local_scripts/zero2.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
