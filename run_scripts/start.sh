# Sourced by the recipes: which environment they run in, and what SMOKE=1 means.

PATH=$PWD/.venv/bin:$PATH
[ -x .venv-vllm/bin/python ] && PATH=$PWD/.venv-vllm/bin:$PATH # made by `setup.sh --gpu`
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning}  # torch, transformers and DeepSpeed warn each other, hundreds of times

# With SMOKE=1 a recipe runs two steps on embedded rows of its `task` and a tiny random model of its `family`, on two processes, also
# without a GPU: it shows that flags, DeepSpeed and data fit together, and nothing about learning. That replaces model, data,
# images, knowledge, output and gpus; `smoke` holds the flags that come last.
smoke=()
case ${SMOKE:-0} in
    0 | 1) ;;
    *) echo "error: SMOKE=$SMOKE: give 1 to try the recipe, or 0 to run it." >&2 && exit 2 ;;
esac
if [ "${SMOKE:-0}" = 1 ]; then
    export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
    output=${SMOKE_OUTPUT:-outputs/smoke/$(basename "$0" .sh)}
    rm -rf "$output/run" "$output/tiny_$family"
    model=$output/tiny_$family
    python tests/tiny.py $family "$model"
    demo=src/open_r1_kivqa/demo
    data=$output/rows.jsonl
    if [ "$task" = kivqa ]; then
        images=$demo/data/images knowledge=$demo/data/knowledge.jsonl
        head -n 64 $demo/data/train.jsonl >"$data"
    else
        images=$demo/tasks/images
        grep '"split": "train"' $demo/tasks/"$task".jsonl >"$data"
    fi
    output=$output/run
    gpus=2
    smoke=(--max_steps 2 --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --num_train_epochs 1)
    command -v nvidia-smi >/dev/null || smoke+=(--use_cpu true)
    case $(basename "$0") in
        run_grpo_*) smoke+=(--per_device_train_batch_size 4 --num_generations 4 --max_completion_length 16 --save_steps 2 --eval_steps 2 --eval_max_rows 4) ;;
    esac
fi
