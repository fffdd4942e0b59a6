#!/usr/bin/env bash
# GRPO of Qwen2.5-VL on several machines: every weight, ZeRO-3 over all their GPUs. The same command starts each node.
#
#   Two machines, by hand; the flags that differ come from the node itself:
#     gpu-01$ bash run_scripts/multinode_training_demo.sh --nnodes 2 --node_rank 0 --master_addr gpu-01
#     gpu-02$ bash run_scripts/multinode_training_demo.sh --nnodes 2 --node_rank 1 --master_addr gpu-01
#   Slurm, where nothing need be told; `--time` should leave the run a minute to save on SIGTERM:
#     #SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --signal=TERM@120
#     srun bash run_scripts/multinode_training_demo.sh
#   SMOKE=1 before it runs two steps of a tiny model on embedded data, no GPU needed; on one machine: SMOKE=1 … --nnodes 1
#
# Each value comes from the flag, else the environment variable, else Slurm:
#   --nnodes          NNODES          SLURM_NNODES                        number of machines
#   --node_rank       NODE_RANK       SLURM_NODEID                        this machine's number, from 0
#   --master_addr     MASTER_ADDR     first host of SLURM_JOB_NODELIST    node 0, by a name or address that all others reach
#   --master_port     MASTER_PORT     29500                               a free port of node 0
#   --nproc_per_node  NPROC_PER_NODE  SLURM_GPUS_ON_NODE                  processes a node; default: `gpus` below
# All further flags go to grpo_jsonl.py and win over configs/kivqa.yaml. If a node was lost or the run stopped, add
# --resume_from_checkpoint true on all of them.
#
# What the machines must share: the output folder (NFS, Lustre, …). Code, environment, data and model may lie on each node's
# own disk, but must be the same: what differs is named and refused before the model loads. All ports between them must be open.
# Network: NCCL and gloo choose an interface themselves; where it is the wrong one, name it on every node:
#   export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0     (`ip -br address` lists them; NCCL_DEBUG=INFO says what NCCL took)
# A node that is not heard for KIVQA_NODE_TIMEOUT seconds (30) ends the run on all others. More: docs/several_machines.md
#
# Memory: weights, gradients and optimizer take 16 bytes a parameter, spread over the GPUs of all nodes: for the 7B model
# 133 GB / 16 on two machines. The rest are activations, which grow with the batch of one GPU. Out of memory? In this order:
#   --per_device_train_batch_size 2 --gradient_accumulation_steps 4   the same step in smaller pieces
#   --max_completion_length 256, --num_passages 3, --max_pixels 401408  shorter sequences (an image token is 28 x 28 pixels)
#   --deepspeed local_scripts/zero3_offload.json                      weights and optimizer in the machines' RAM: slower
# Each step's gathering of weights crosses the network: with less than 100 Gbit/s between nodes prefer LoRA under ZeRO-2,
#   --config configs/kivqa_lora.yaml --deepspeed local_scripts/zero2.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=Qwen/Qwen2.5-VL-7B-Instruct
data=data/train.jsonl           # several: a.jsonl:b.jsonl
images=data/images              # one folder for each data file, or one for all
knowledge=data/knowledge.jsonl  # the articles that rows name passages of
output=outputs/multinode        # on a disk that all nodes share
gpus=8

fail() {
    echo "multinode_training_demo.sh: $*" >&2
    exit 2
}

nnodes=${NNODES:-${SLURM_NNODES:-}}
node_rank=${NODE_RANK:-${SLURM_NODEID:-}}
master_addr=${MASTER_ADDR:-}
master_port=${MASTER_PORT:-29500}
nproc=${NPROC_PER_NODE:-${SLURM_GPUS_ON_NODE:-}}
flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --nnodes | --node_rank | --master_addr | --master_port | --nproc_per_node)
            [ $# -ge 2 ] || fail "$1 comes last, without its value"
            set -- "$1=$2" "${@:3}"
            ;;
        --nnodes=*) nnodes=${1#*=} && shift ;;
        --node_rank=*) node_rank=${1#*=} && shift ;;
        --master_addr=*) master_addr=${1#*=} && shift ;;
        --master_port=*) master_port=${1#*=} && shift ;;
        --nproc_per_node=*) nproc=${1#*=} && shift ;;
        *) flags+=("$1") && shift ;;
    esac
done

number() { # name, value, lowest, highest
    [[ $2 =~ ^[0-9]{1,6}$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || fail "$1 is '$2'; a number from $3 to $4 is wanted"
}

[ -n "$nnodes" ] || fail "how many machines? Give --nnodes, or NNODES, or start it by srun"
number --nnodes "$nnodes" 1 99999
if [ "$nnodes" -gt 1 ]; then
    if [ -n "${SLURM_JOB_ID:-}" ] && [ "$node_rank" = "${SLURM_NODEID:-}" ]; then
        [ -n "${SLURM_STEP_ID:-}" ] || fail "under sbatch it runs on the first node only; start it on all $nnodes of them: srun bash $0"
        [ "${SLURM_LOCALID:-0}" = 0 ] || fail "Slurm starts it several times on one node; give sbatch or srun --ntasks-per-node=1"
        [ "$nnodes" = "${SLURM_NNODES:-$nnodes}" ] || fail "--nnodes is $nnodes, but this Slurm step has $SLURM_NNODES nodes; leave --nnodes and NNODES out"
    fi
    if [ -z "$master_addr" ] && [ -n "${SLURM_JOB_NODELIST:-}" ]; then
        master_addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    fi
    [ -n "$node_rank" ] || fail "which of the $nnodes machines is this one? Give --node_rank, 0 to $((nnodes - 1)), or NODE_RANK"
    number --node_rank "$node_rank" 0 $((nnodes - 1))
    [ -n "$master_addr" ] || fail "where is node 0? Give --master_addr, its name or address as the others reach it, or MASTER_ADDR"
    case $master_addr in
        localhost | 127.* | ::1) fail "--master_addr is $master_addr, which is each machine itself; give node 0's name or address as the others reach it" ;;
    esac
    number --master_port "$master_port" 1024 65535
fi
node_rank=${node_rank:-0}

family=qwen2_5_vl task=kivqa
smoke_output=${SMOKE_OUTPUT:-outputs/smoke/multinode_training_demo}
SMOKE_OUTPUT=$smoke_output/node$node_rank # model and rows of each node apart, or the nodes would write them over each other
source run_scripts/start.sh
if [ "${SMOKE:-0}" = 1 ]; then
    output=$smoke_output/run
    smoke+=(--num_generations 2 --max_completion_length 16 --save_steps 2 --eval_steps 2 --eval_max_rows 4)
    [[ " ${flags[*]} " = *" --resume_from_checkpoint "* ]] || [ "$node_rank" != 0 ] || rm -rf "$output"
fi
nproc=${nproc:-$gpus}
number --nproc_per_node "$nproc" 1 1024

launch=(--nnodes "$nnodes" --nproc_per_node "$nproc")
if [ "$nnodes" = 1 ]; then
    launch=(--standalone "${launch[@]}")
else
    # torchrun numbers the nodes by the order of their addresses, as texts, and takes the first one's for that of rank 0. So
    # node 0 gives the address by which the others reach it, and the others give labels that come after any address.
    [ "$node_rank" = 0 ] && host=1 address=$master_addr || { host=0 && address=$(printf '~node-%05d' "$node_rank"); }
    launch+=(--rdzv_backend c10d --rdzv_id "kivqa-${SLURM_JOB_ID:-$master_port}" --rdzv_endpoint "$master_addr:$master_port")
    launch+=(--rdzv_conf "is_host=$host,join_timeout=900" --local_addr "$address")
fi
if [ "$node_rank" != 0 ]; then
    until timeout 5 bash -c "exec 3<>/dev/tcp/$master_addr/$master_port" 2>/dev/null; do
        [ -n "${told:-}" ] || echo "node $node_rank: waiting for node 0 at $master_addr, port $master_port" && told=yes
        [ $SECONDS -lt 900 ] || fail "node 0 has not answered at $master_addr, port $master_port, for 15 minutes: is it started there, and is the port open between the machines?"
        sleep 1
    done
fi

# SIGTERM (Slurm's time limit, preemption) is for torchrun and its processes, which get it as well and then save. This shell waits
# for them, and torchrun gives them two minutes instead of 30 s before it kills them.
trap : TERM
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}
torchrun "${launch[@]}" src/open_r1_kivqa/grpo_jsonl.py \
    --config configs/kivqa.yaml \
    --deepspeed local_scripts/zero3.json \
    --model_name_or_path "$model" \
    --data_file_paths "$data" \
    --image_folders "$images" \
    --knowledge_base "$knowledge" \
    --output_dir "$output" \
    "${smoke[@]}" "${flags[@]}"
