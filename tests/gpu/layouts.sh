#!/usr/bin/env bash
# layouts.sh INVAR FOLDER - ranks that split a model on a GPU have the chain of one rank on a CPU.
#
# Ranks are threads, which communicate through host memory, and, if MPI and NCCL are available,
# processes with NCCL; all of them share one GPU. Models with and without experts, in bf16 and fp8,
# with LoRA adapters for data-parallel ranks, and responses long enough that decode passes are
# graphs. Control: another seed must differ.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$(realpath -m "$2")
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../e2e/expect.sh"
unset INVAR_LEDGER
export NO_COLOR=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
recipe=$PWD/tests/e2e/ranks/sharded_model.ini modules=$(dirname "$invar")
experts=(--model-type qwen3_moe --num-experts 8 --moe-router-topk 2 --logical-etp 8)
rows=(--rollout-batch-size 16 --unit-count 2) # units of several token blocks
tp=--tensor-model-parallel-size ep=--expert-model-parallel-size pp=--pipeline-model-parallel-size
sp=(--sequence-parallel true) cp=--context-parallel-size
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

ways=(thread)
if command -v mpirun >/dev/null && [[ -e $modules/invar-mpi.so && -e $modules/invar-nccl.so ]]; then
    ways+=(nccl)
fi

# train WAY RANKS RUN FLAG ...: trains a run; one rank uses the CPU, several use the GPU
train() {
    local way=$1 ranks=$2 run=$3 command=("$invar" train "$recipe")
    shift 3
    set -- --run "$run" --save none --no-report --threads 2 --rollout-max-response-len 26 "$@"
    ((ranks == 1)) || set -- --device cuda "$@"
    case $way in
    thread) command+=(--ranks "$ranks") ;;
    nccl)
        command=(mpirun --oversubscribe --bind-to none -n "$ranks" "${command[@]}"
            --distributed-backend nccl)
        ;;
    esac
    timeout 200 "${command[@]}" "$@" >"$run.out" 2>"$run.err" </dev/null ||
        complain "$run: exit code $?" "$(tail -n 5 "$run.err")"
}

# equal MODEL FORMAT RANKS FLAG ...: compares with one rank, for every kind of ranks. MODEL may
# begin with rows- (units of several token blocks) or lora- (adapters).
equal() {
    local model=$1 format=$2 ranks=$3 way run flags=()
    shift 3
    [[ $model != *experts ]] || flags=("${experts[@]}")
    [[ $model != rows-* ]] || flags+=("${rows[@]}")
    [[ $model != lora-* ]] || flags+=(--lora-rank 5 --lora-alpha 8)
    [[ -e $model-$format ]] || train thread 1 "$model-$format" --dtype "$format" "${flags[@]}"
    for way in "${ways[@]}"; do
        run=$model-$format-$way-$ranks$*
        run=${run//[^a-z0-9-]/}
        checks=$((checks + 1))
        train "$way" "$ranks" "$run" --dtype "$format" "${flags[@]}" "$@"
        expect 0 'identical: ' diff "$model-$format" "$run"
    done
}

for format in bf16 fp8; do
    equal dense "$format" 2 "$tp" 2
    equal dense "$format" 4 "$tp" 4
    equal dense "$format" 4 "$tp" 2
    equal experts "$format" 2 "$ep" 2
    equal experts "$format" 4 "$tp" 2 "$ep" 2
    equal experts "$format" 4 "$tp" 4
    equal dense "$format" 2 "$pp" 2
    equal lora-dense "$format" 2
    equal lora-experts "$format" 2
    equal experts "$format" 4 "$tp" 2 "$pp" 2
    equal rows-dense "$format" 2 "$tp" 2 "${sp[@]}"
    equal rows-experts "$format" 4 "$tp" 2 "$pp" 2 "${sp[@]}" --recompute-granularity full
    equal rows-dense "$format" 4 "$cp" 2 "$tp" 2
    equal rows-experts "$format" 2 "$cp" 2
    equal rows-experts "$format" 4 "$cp" 2 "$ep" 2
    equal dense "$format" 3 --rollout-num-gpus 1
    equal experts "$format" 4 "$tp" 2 --rollout-num-gpus 2 --rollout-num-gpus-per-engine 2
done
equal dense bf16 4 "$tp" 2 --audit 100
equal experts bf16 4 "$ep" 2 "$pp" 2 --audit 100

# seen LEVEL MODEL RANKS FLAG ...: points up to LEVEL equal those of one rank on a CPU
seen() {
    local level=$1 model=$2 ranks=$3 way flags=(--dtype bf16 --debug-determinism "$1")
    shift 3
    [[ $model != experts ]] || flags+=("${experts[@]}")
    train thread 1 "$level-$model" "${flags[@]}"
    for way in "${ways[@]}"; do
        train "$way" "$ranks" "$level-$model-$way" "${flags[@]}" "$@"
        expect 0 'identical: ' diff "$level-$model" "$level-$model-$way"
        holds [ "$("$invar" diff "$level-$model" "$level-$model-$way" |
            grep -c '^identical.*\(differ\|structure\)')" = 0 ]
    done
}
seen point dense 2 "$tp" 2
seen full experts 4 "$ep" 2 "$pp" 2

checks=$((checks + 1))
train thread 2 control --dtype bf16 "$tp" 2 --seed 5
expect 1 'differ' diff dense-bf16 control
echo "$checks checks, ways: ${ways[*]}"
((failed)) || echo "all as expected"
exit "$failed"
