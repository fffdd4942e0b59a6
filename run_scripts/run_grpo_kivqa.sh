#!/usr/bin/env bash
# GRPO of Qwen2.5-VL on knowledge-based visual questions with the curriculum of Wiki-R1: every weight, ZeRO-3, one machine with
# 8 GPUs. Contexts go from the gold passage alone to what the retriever finds, and the samples that are likely to teach are
# drawn more often; what is seen of a sample tells of its neighbours in the graph, which is built here if it is not there yet.
#
# From the published files of InfoSeek or Encyclopedic-VQA to these rows, with candidates of a retriever: docs/kivqa_walkthrough.md.
#
#   bash setup.sh && bash run_scripts/run_grpo_kivqa.sh              set the paths below first
#   SMOKE=1 bash run_scripts/run_grpo_kivqa.sh                       two steps of a tiny model on embedded data, no GPU needed
#   bash run_scripts/run_grpo_kivqa.sh --resume_from_checkpoint true further flags go to grpo_jsonl.py and win over configs/kivqa_wiki_r1.yaml
#
# Memory, reckoned and not measured, on 8 GPUs: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs (60 GB / 8
# for the 3B model, 133 GB / 8 for the 7B). Generation gathers the weights on each GPU (2 bytes a parameter: 7.5 and 17 GB), and the rest
# are activations, which grow with the batch: 1 to 2 GB a completion. So of a card with
#   80 GB  about 22 are used as it stands, 45 with the 7B model
#   48 GB  as it stands; the 7B model with --per_device_train_batch_size 2 --gradient_accumulation_steps 4: the same step in smaller pieces
#   24 GB  add --per_device_train_batch_size 1 --gradient_accumulation_steps 8; the 7B model does not fit
# Still out of memory: --max_completion_length 128, --num_passages 3, --max_pixels 401408 make shorter sequences (an image token is
# 28 x 28 pixels); --deepspeed local_scripts/zero3_offload.json keeps weights and optimizer in the machine's RAM and is slower.
# Without the curriculum: --config configs/kivqa.yaml in the command below, and no --curriculum_graph.
# With flash-attn installed (setup.sh --gpu) add --attn_implementation flash_attention_2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-3B-Instruct
data=data/train.jsonl           # several: a.jsonl:b.jsonl
images=data/images              # one folder for each data file, or one for all
knowledge=data/knowledge.jsonl  # the articles that rows name passages of
graph=data/graph.npz            # of the data's rows; `kivqa graph --help` tells what else can make them similar
output=outputs/grpo_kivqa
gpus=8

family=qwen2_5_vl task=kivqa
source run_scripts/start.sh
if [ "${SMOKE:-0}" = 1 ]; then
    graph=$(dirname "$data")/graph.npz
    smoke+=(--curriculum_window 16) # of 64 rows
fi

[ -e "$graph" ] || kivqa graph --data_file_paths "$data" --knowledge_base "$knowledge" --output "$graph"
torchrun --standalone --nproc_per_node $gpus src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/kivqa_wiki_r1.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --knowledge_base "$knowledge" \
    --curriculum_graph "$graph" \
    --output_dir "$output" \
    "${smoke[@]}" "$@"
