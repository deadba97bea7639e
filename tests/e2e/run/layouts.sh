#!/usr/bin/env bash
# layouts.sh INVAR FOLDER - one chain and equal checkpoints, however ranks divide a model.
#
# Models with 8 atoms at least on every axis that is cut, one of them with 11; every format, dense
# and with experts; threads, and processes where there is mpirun. By default a set that covers every
# layout, format, kind and transport; with INVAR_TEST_FULL all combinations.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
unset INVAR_LEDGER INVAR_SAVE
export NO_COLOR=1 # mpirun gives ranks a terminal
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
expect_logs=(out err)
full=${INVAR_TEST_FULL:-}

transports=(thread)
if command -v mpirun >/dev/null && [ -e "$(dirname "$invar")/invar-mpi.so" ]; then
    transports+=(mpi)
fi

cat >dense.ini <<'RECIPE'
[model]
num-layers = 4
hidden-size = 32
ffn-hidden-size = 1024
num-attention-heads = 16
num-query-groups = 8
kv-channels = 128
vocab-size = 2100
max-position-embeddings = 32
init-method-std = 0.08
[rollout]
prompt-data = task:max
num-rollout = 2
rollout-batch-size = 2
n-samples-per-prompt = 4
rollout-max-response-len = 3
rm-type = overlap
[grpo]
entropy-coef = 0.01
[optimizer]
lr = 0.01
[engine]
numerics = sm90
logical-tp = 8
RECIPE
sed -e 's/^ffn-hidden-size.*/&\nmodel-type = qwen3_moe\nnum-experts = 8\nmoe-router-topk = 2/' \
    -e 's/^logical-tp.*/&\nlogical-etp = 8/' \
    -e 's/^\[grpo\]/&\nuse-rollout-routing-replay = true/' dense.ini >experts.ini
sed -e 's/^num-attention-heads.*/num-attention-heads = 11/' -e 's/^ffn.*/ffn-hidden-size = 1408/' \
    -e 's/^num-query-groups.*/num-query-groups = 11/' -e 's/^vocab-size.*/vocab-size = 2800/' \
    dense.ini >eleven.ini

# start TRANSPORT RANKS RECIPE FLAG ...: into out and err.
start() {
    local transport=$1 ranks=$2 recipe=$3
    shift 3
    if [[ $transport == mpi ]]; then
        timeout 300 mpirun --oversubscribe -n "$ranks" "$invar" train "$recipe" --no-report "$@"
    else
        timeout 300 "$invar" train "$recipe" --no-report --ranks "$ranks" "$@"
    fi >out 2>err </dev/null
}

newest() {
    printf '%s/checkpoints/iter_%07d' "$1" "$(<"$1/checkpoints/latest_checkpointed_iteration.txt")"
}

# one MODEL FORMAT: the run of one rank, made when it is first asked for: its name in `reference`.
one() {
    reference=$1-$2
    [ -e "$reference" ] && return
    start thread 1 "$1.ini" --dtype "$2" --run "$reference" --threads 2 ||
        complain "$reference: exit code $?" "$(<err)"
}

# equal MODEL FORMAT TRANSPORT RANKS FLAG ...: chain and checkpoint are those of one rank.
equal() {
    local run=$1-$2-$3-$4 flag
    local model=$1 format=$2 transport=$3 ranks=$4
    shift 4
    one "$model" "$format"
    for flag in "$@"; do
        run+=${flag//[^a-z0-9]/}
    done
    checks=$((checks + 1))
    start "$transport" "$ranks" "$model.ini" --dtype "$format" --run "$run" --threads 1 "$@" ||
        complain "$run: exit code $?" "$(<err)"
    expect 0 'identical: ' diff "$reference" "$run"
    holds diff -rq -x state.json -x hashes.xxh "$(newest "$reference")" "$(newest "$run")"
    [[ $full ]] && rm -rf "$run"
}

# refused TEXT MODEL RANKS FLAG ...: as a wrong recipe is, and nothing is left behind.
refused() {
    local text=$1 model=$2 ranks=$3 rc=0
    shift 3
    checks=$((checks + 1))
    start thread "$ranks" "$model.ini" --run refused "$@" || rc=$?
    [[ $rc == 129 ]] && grep -q -- "$text" err || complain "$model $ranks $*: $rc" "$(<err)"
    holds [ ! -e refused ]
}

tp=--tensor-model-parallel-size ep=--expert-model-parallel-size etp=--expert-tensor-parallel-size

# layouts RANKS: every way to divide a model among so many, one a line: its kind, then flags.
layouts() {
    echo "any"
    for t in 2 4 8; do
        ((t <= $1)) || continue
        echo "dense $tp $t"
        echo "experts $tp $t $etp 1"
        echo "experts $tp $t $etp $t"
        ((2 * t <= $1)) && echo "experts $tp $t $ep $(($1 / t))"
        echo "experts $ep $t"
    done
}

number=0
for format in fp32 bf16 fp8 mxfp8 int4; do
    for ranks in 2 4 8; do
        while read -r kind flags; do
            for model in dense experts; do
                [[ $kind == any || $kind == "$model" ]] || continue
                for transport in "${transports[@]}"; do
                    # neighbours differ in everything: a stride covers all of it
                    if [[ $full ]] || ((number++ % 7 == 0)); then
                        # shellcheck disable=SC2086 # flags are words
                        equal "$model" "$format" "$transport" "$ranks" $flags
                    fi
                done
            done
        done < <(layouts "$ranks")
    done
done

# ---- 11 atoms ---------------------------------------------------------------------------------
equal eleven bf16 thread 2 "$tp" 2
equal eleven fp8 thread 8 "$tp" 8
refused 'sizes up to 1 do' eleven 2 --dtype fp8 "$tp" 2

# ---- another layout goes on -------------------------------------------------------------------
one dense bf16
start thread 4 dense.ini --dtype bf16 --run moves --until 0 "$tp" 2
start thread 2 dense.ini --dtype bf16 --run moves
expect 0 'identical: ' diff "$reference" moves
holds diff -rq -x state.json -x hashes.xxh "$(newest "$reference")" "$(newest moves)"
expect 0 'identical' replay moves --step 0

# ---- what cannot be ---------------------------------------------------------------------------
refused 'start with --ranks 2' dense 1 "$tp" 2
refused 'needs a multiple of 2' dense 3 "$tp" 2
refused 'the model has 0 experts' dense 2 "$ep" 2
refused 'it is 1 or that of' experts 4 "$tp" 4 "$etp" 2
refused 'logical-tp is 1' dense 2 "$tp" 2 --logical-tp 1
refused 'ranks divide the model' dense 2 "$tp" 2 --audit 10

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
