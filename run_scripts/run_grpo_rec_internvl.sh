#!/usr/bin/env bash
# GRPO of InternVL on referring expressions: every weight, ZeRO-3, one machine with 8 GPUs.
# InternVL needs a checkpoint whose name ends in -hf or -HF; the others bring code of their own, which is never run here.
#
#   bash setup.sh && bash run_scripts/run_grpo_rec_internvl.sh   set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_rec_internvl.sh            two steps of a tiny model on embedded data, no GPU needed
#   Further flags go to grpo_jsonl.py and win over configs/rec_internvl.yaml.
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs
# (76 GB / 8 for the 4B model), the reference model of the KL penalty 2 more, spread as well. Generation gathers the weights on each GPU
# (2 bytes a parameter: 9.5 GB), and the logits of a completion of 2048 tokens take 2.5 GB while its loss is computed. An image is cut
# into tiles of 256 tokens each, plus an overview of 256: at most 6 tiles here. So of a card with
#   80 GB  about 50 are used as it stands
#   48 GB  add --per_device_train_batch_size 4 --gradient_accumulation_steps 4: the same step in smaller pieces: about 35
#   24 GB  add --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_completion_length 1024 --max_anyres_num 3, and
#          --deepspeed local_scripts/zero3_offload.json, which keeps weights and optimizer in the machine's RAM and is slower
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=OpenGVLab/InternVL3_5-4B-HF
data=data/rec_train.jsonl  # several: a.jsonl:b.jsonl; `kivqa convert` makes them from RefCOCO
images=data/coco           # one folder for each data file, or one for all
output=outputs/grpo_rec_internvl
gpus=8

family=internvl task=rec
source run_scripts/start.sh

torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/rec_internvl.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
