#!/usr/bin/env bash
# GRPO of Qwen2.5-VL on pairs of screenshots (did the window change as the click should have changed it?): every weight, ZeRO-3, 1200
# steps, one machine with 8 GPUs. docs/tasks.md tells what a row looks like and how to evaluate.
#
#   bash setup.sh && bash run_scripts/run_grpo_gui.sh   set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_gui.sh            two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/gui.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs
# (60 GB / 8 for the 3B model), the reference model of the KL penalty 2 more, spread as well. Generation gathers the weights on each GPU
# (2 bytes a parameter: 7.5 GB), the logits of a completion of 2048 tokens take 2.5 GB while its loss is computed, and a prompt has two
# screenshots of 1280 tokens each. So of a card with
#   80 GB  about 45 are used as it stands
#   48 GB  add --per_device_train_batch_size 4 --gradient_accumulation_steps 2: the same step in smaller pieces: about 30
#   24 GB  add --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_completion_length 1024: about 20
# Still out of memory: --beta 0 (no reference), --max_pixels 401408 (an image token is 28 x 28 pixels), and
# --deepspeed local_scripts/zero3_offload.json, which keeps weights and optimizer in the machine's RAM and is slower.
# With flash-attn installed (setup.sh --gpu) add --attn_implementation flash_attention_2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-3B-Instruct
data=data/gui_train.jsonl  # several: a.jsonl:b.jsonl
images=data/gui_images     # one folder for each data file, or one for all
output=outputs/grpo_gui
gpus=8

family=qwen2_5_vl task=gui
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/gui.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
