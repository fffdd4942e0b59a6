#!/usr/bin/env bash
# GRPO of InternVL3 on knowledge-based visual questions: every weight, ZeRO-3, one machine with 8 GPUs.
# InternVL needs a checkpoint whose name ends in -hf; the others bring code of their own, which is never run here.
#
#   bash setup.sh && bash run_scripts/run_grpo_kivqa_internvl.sh     set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_kivqa_internvl.sh              two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/kivqa.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs (33 GB / 8
# for the 2B model), and generation gathers the weights on each GPU (2 bytes a parameter: 4 GB). An image is cut into tiles of 256 tokens
# each, plus an overview of 256: at most 6 tiles here. The rest are activations: 1 to 1.5 GB a completion. So of a card with
#   80 GB  about 20 are used as it stands; so --model_name_or_path OpenGVLab/InternVL3-8B-hf fits too, in about 45
#   48 GB  as it stands
#   24 GB  add --per_device_train_batch_size 4 --gradient_accumulation_steps 4: the same step in smaller pieces: about 14
# Still out of memory: --max_anyres_num 3 (fewer image tokens), --max_completion_length 256, --num_passages 3, and
# --deepspeed local_scripts/zero3_offload.json, which keeps weights and optimizer in the machine's RAM and is slower.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=OpenGVLab/InternVL3-2B-hf
data=data/train.jsonl           # several: a.jsonl:b.jsonl
images=data/images              # one folder for each data file, or one for all
knowledge=data/knowledge.jsonl  # the articles that rows name passages of
output=outputs/grpo_kivqa_internvl
gpus=8

family=internvl task=kivqa
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/kivqa.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --max_anyres_num 6 \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --knowledge_base "$knowledge" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
