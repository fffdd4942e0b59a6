#!/usr/bin/env bash
# Vision-R1's reinforcement learning on mathematics in pictures, after run_sft_cold_start.sh: reward for form and answer together, in
# stages that let completions grow and groups shrink, in one run. Every weight, ZeRO-3, one machine with 8 GPUs. The walk from
# cold-start data to here: docs/vision_r1_walkthrough.md.
#
#   bash setup.sh && bash run_scripts/run_grpo_vision_r1.sh   set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_vision_r1.sh            two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/vision_r1.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs (133 GB / 8
# for the 7B model), the reference model 2 more, spread as well; generation gathers the weights on each GPU (15 GB). The logits of a
# completion take 0.6 MB a token while its loss is computed: 5 GB at 8192 tokens. Keep --per_device_train_batch_size a multiple of the
# first stage's completions over the last one's. So of a card with
#   80 GB  add --per_device_train_batch_size 4 --gradient_accumulation_steps 4: about 65 at 8192 tokens
#   48 GB  the 3B model, with the same flags: about 40
#   24 GB  the 3B model, and ptst=100:1024:8,100:2048:4 below with --per_device_train_batch_size 2 --gradient_accumulation_steps 8: about 20
# Still out of memory: --beta 0 (no reference), --deepspeed local_scripts/zero3_offload.json (slower).
# With flash-attn installed (setup.sh --gpu) add --attn_implementation flash_attention_2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=outputs/sft_cold_start    # what run_sft_cold_start.sh made
data=data/math_train.jsonl      # several: a.jsonl:b.jsonl
images=data/math_images         # one folder for each data file, or one for all
output=outputs/grpo_vision_r1
ptst=100:4096:16,100:8192:8     # steps:tokens of a completion:completions a prompt; the paper's third stage is 100:16384:4
gpus=8

family=qwen2_5_vl task=math
source run_scripts/start.sh
[ "${SMOKE:-0}" = 1 ] && ptst=1:8:4,1:16:2

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/vision_r1.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --ptst "$ptst" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
