#!/usr/bin/env bash
# layouts.sh INVAR FOLDER [PART PARTS] - every layout has the chain and checkpoint of one rank.
#
# The models have at least 8 atoms on every axis that a layout cuts, one of them 11; every format,
# dense and with experts; threads, and processes if there is mpirun. By default the test runs a list
# that has every kind of layout, format, model and transport at least once, with models of two
# layers unless stages are virtual, and one rollout if units have several token blocks. With
# INVAR_TEST_FULL=1 it runs all combinations with models of four layers and two rollouts, of which
# PART (from 0) of PARTS runs its portion, so that parts can run in parallel.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2 part=${3:-0} parts=${4:-1}
export NO_COLOR=1 # mpirun gives ranks a terminal
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_hwloc_base_binding_policy=none # parts that run in parallel would share cores
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

here=$OLDPWD/tests/e2e/ranks recipe=$OLDPWD/tests/e2e/ranks/sharded_model.ini
two_layers="--num-layers 2" one_rollout="--num-rollout 1"
[[ ! $full ]] || two_layers='' one_rollout=''
declare -A flags_of=(
    [dense]="$two_layers"
    [deep]=""
    [experts]="$two_layers --model-type qwen3_moe --num-experts 8 --moe-router-topk 2
        --logical-etp 8 --use-rollout-routing-replay"
    [eleven]="$two_layers --num-attention-heads 11 --num-query-groups 11 --ffn-hidden-size 1408
        --vocab-size 2800"
    [critic]="$two_layers --advantage-estimator ppo --use-kl-loss"
    [teacher]="$two_layers --advantage-estimator on_policy_distillation
        --opd-teacher-load dense-bf16/checkpoints"
    [custom]="$one_rollout --loss-type custom_loss --custom-loss-function-path $here/loss.py
        --num-steps-per-rollout 2"
)
# Units of several token blocks, whose rows can be divided.
for model in dense deep experts; do
    flags_of[rows-$model]="${flags_of[$model]} --rollout-batch-size 16 --unit-count 2 $one_rollout"
    flags_of[lora-$model]="${flags_of[rows-$model]} --lora-rank 4"
done
if [[ ! $full ]]; then
    # Only rows-dense has several units.
    flags_of[rows-experts]="${flags_of[experts]} --rollout-batch-size 8 --unit-count 1 $one_rollout"
    # The second rollout samples with adapters that were trained.
    flags_of[lora-experts]="${flags_of[experts]} --lora-rank 4"
fi

# start TRANSPORT RANKS MODEL FLAG ...: trains; writes to out and err.
start() {
    local transport=$1 ranks=$2 model
    read -r -d '' -a model <<<"${flags_of[$3]}"
    shift 3
    set -- "${model[@]}" "$@"
    if [[ $transport == mpi ]]; then
        timeout 300 mpirun --oversubscribe -n "$ranks" "$invar" train "$recipe" --no-report "$@"
    else
        timeout 300 "$invar" train "$recipe" --no-report --ranks "$ranks" "$@"
    fi >out 2>err </dev/null
}

newest() {
    printf '%s/checkpoints/iter_%07d' "$1" "$(<"$1/checkpoints/latest_checkpointed_iteration.txt")"
}

# reference_run MODEL FORMAT: trains on one rank unless that was done before; sets `reference` to
# the run.
reference_run() {
    reference=$1-$2
    [ ! -e "$reference" ] || return
    start thread 1 "$1" --dtype "$2" --run "$reference" --threads 2 ||
        complain "$reference: exit code $?" "$(<err)"
}

# equal MODEL FORMAT TRANSPORT RANKS FLAG ...: checks that chain and checkpoint are those of one
# rank.
equal() {
    local run=$1-$2-$3-$4 flag
    local model=$1 format=$2 transport=$3 ranks=$4
    shift 4
    reference_run "$model" "$format"
    for flag in "$@"; do
        run+=${flag//[^a-z0-9]/}
    done
    checks=$((checks + 1))
    start "$transport" "$ranks" "$model" --dtype "$format" --run "$run" --threads 1 "$@" ||
        complain "$run: exit code $?" "$(<err)"
    expect 0 'identical: ' diff "$reference" "$run"
    holds diff -rq -x state.json -x hashes.xxh "$(newest "$reference")" "$(newest "$run")"
    [[ ! $full ]] || rm -rf "$run"
}

# refused TEXT MODEL RANKS FLAG ...: checks that the layout is rejected as an error of the recipe,
# on whichever rank it is found, and leaves nothing behind.
refused() {
    local text=$1 model=$2 ranks=$3 rc=0
    shift 3
    checks=$((checks + 1))
    start thread "$ranks" "$model" --run refused "$@" || rc=$?
    if [[ $rc != 129 ]] || ! grep -q -- "$text" err; then
        complain "$model $ranks $*: $rc" "$(<err)"
    fi
    holds [ "$(grep -c '^invar: rank' err)" = 0 ]
    holds [ ! -e refused ]
}

tp=--tensor-model-parallel-size ep=--expert-model-parallel-size etp=--expert-tensor-parallel-size
pp=--pipeline-model-parallel-size vp=--num-virtual-stages-per-pipeline-rank
sp=(--sequence-parallel true) cp=--context-parallel-size
ro=--rollout-num-gpus re=--rollout-num-gpus-per-engine

# layouts RANKS TEXT: prints all layouts of this number of ranks, one per line: the kind of model
# and the flags. Layouts with context parallelism are printed only if TEXT is its flag.
layouts() {
    for c in 2 4; do
        if [[ $2 != "$cp" ]] || ((c > $1)); then continue; fi
        echo "any $cp $c"
        ((2 * c > $1)) || echo "any $cp $c $tp 2"
        ((2 * c > $1)) || echo "any $cp $c $pp 2"
        ((2 * c > $1)) || echo "experts $cp $c $ep 2"
        ((4 * c > $1)) || echo "experts $cp $c $ep 2 $tp 2"
        ((4 * c > $1)) || echo "experts $cp $c $ep 2 $pp 2"
    done
    echo "any"
    for t in 2 4 8; do
        ((t <= $1)) || continue
        echo "dense $tp $t"
        echo "experts $tp $t $etp 1"
        echo "experts $tp $t $etp $t"
        ((2 * t > $1)) || echo "experts $tp $t $ep $(($1 / t))"
        echo "experts $ep $t"
    done
    for s in 2 4; do
        ((s <= $1)) || continue
        echo "any $pp $s"
        ((2 * s > 4)) || echo "any $pp $s $vp 2"
        ((2 * s > $1)) || echo "any $pp $s $tp 2"
    done
    # Some ranks only sample.
    echo "any $ro 1"
    (($1 < 4)) || echo "any $ro $(($1 / 2)) $re 2 $tp 2"
    (($1 < 4)) || echo "experts $ro $(($1 / 2)) $ep 2"
    (($1 < 8)) || echo "any $ro 4 $re 4 $tp 2 $pp 2"
}

# sweep PREFIX TEXT FLAG ...: runs this part's portion of all combinations of layouts that contain
# TEXT and models whose names begin with PREFIX.
sweep() {
    local prefix=$1 text=$2 number=0 format ranks kind flags model transport
    shift 2
    for format in fp32 bf16 fp8 mxfp8 int4; do
        for ranks in 2 4 8; do
            while read -r kind flags; do
                for model in dense experts; do
                    [[ $kind == any || $kind == "$model" ]] || continue
                    for transport in "${transports[@]}"; do
                        if ((number++ % parts == part)); then
                            # shellcheck disable=SC2086 # flags are words
                            equal "$prefix$model" "$format" "$transport" "$ranks" $flags "$@"
                        fi
                    done
                done
            done < <(layouts "$ranks" "$text" | grep -e "$text")
        done
    done
}

over=${transports[-1]} # processes if there is mpirun
if [[ $full ]]; then
    sweep "" ""
    sweep rows- "$tp" "${sp[@]}"
    sweep rows- "$cp"
    sweep lora- ""
    sweep lora- "$tp" "${sp[@]}"
    sweep lora- "$cp"
else
    # At most 4 ranks are processes, which keep their cores busy while they wait.
    equal experts bf16 thread 4 "$tp" 2 "$ep" 2
    equal experts int4 "$over" 4 "$ro" 2 "$ep" 2
    equal dense int4 thread 8 "$ro" 4 "$re" 4 "$tp" 2 "$pp" 2

    equal rows-dense fp32 thread 4 "$ro" 2 "$re" 2 "$tp" 2 "${sp[@]}"
    equal rows-experts mxfp8 "$over" 4 "$pp" 2 "$tp" 2 "$etp" 1 "${sp[@]}"
    equal rows-experts int4 thread 4 "$tp" 2 "$etp" 2 "${sp[@]}"

    equal rows-dense fp32 thread 8 "$cp" 4 "$pp" 2
    equal rows-experts bf16 thread 8 "$cp" 2 "$ep" 2 "$tp" 2
    equal rows-dense fp8 "$over" 4 "$cp" 2 "$tp" 2 "${sp[@]}"
    equal rows-experts mxfp8 thread 4 "$cp" 2 "$ep" 2

    equal lora-dense fp32 thread 4 "$cp" 2 "$tp" 2 "${sp[@]}"
    equal lora-experts fp8 "$over" 2 "$ro" 1
    equal lora-dense fp32 thread 4 "$pp" 2
fi
if ((part > 0)); then # the checks below belong to the first part
    ((failed)) || echo "$checks checks of part $part: all as expected"
    exit "$failed"
fi

# ---- context and sequence parallelism, together with virtual stages ---------------------------
virtual=("$tp" 2 "$pp" 2 "$vp" 2 --recompute-granularity full)
if [[ $full ]]; then
    equal rows-deep bf16 thread 8 "${virtual[@]}" "${sp[@]}"
    equal rows-deep bf16 thread 8 "${virtual[@]}" "$cp" 2
else
    equal rows-deep fp32 thread 8 "${virtual[@]}" "${sp[@]}" "$cp" 2
fi
refused "context-parallel-size 3 does not divide the 8 groups of heads" dense 3 "$cp" 3
refused "does not divide the work of 8 experts, which a rank has" experts 9 "$cp" 9
refused "a rank has with expert-model-parallel-size 4; it takes 1, 2$" experts 16 "$cp" 4 "$ep" 4

refused "'context-parallel-size' is above lora-rank, in steps of 16" lora-dense 17 "$cp" 17

# ---- 11 atoms ---------------------------------------------------------------------------------
[[ ! $full ]] || equal eleven bf16 thread 2 "$tp" 2
equal eleven bf16 thread 4 "$tp" 4 "${sp[@]}"
equal eleven fp8 thread 8 "$tp" 8
refused 'sizes that fit now: 1, 8' eleven 2 --dtype fp8 "$tp" 2

# ---- pipeline stages, together with other features -------------------------------------------
[[ ! $full ]] || equal deep bf16 thread 4 "$pp" 2 "$vp" 2 --recompute-granularity full \
    --log-probs-chunk-size 2
equal experts bf16 thread 6 "$pp" 2 --micro-batch-size 3 --log-probs-chunk-size 2
equal critic bf16 thread 4 "$pp" 2 "$tp" 2 "${sp[@]}"
[[ ! $full ]] || equal critic bf16 thread 4 "$pp" 2
[[ ! $full ]] || equal critic bf16 thread 2 "$tp" 2 "${sp[@]}"
equal custom bf16 thread 4 "$pp" 2 "$vp" 2 # rank 0 calls the plug-in, the last rank has the head
reference_run dense bf16
equal teacher bf16 thread 4 "$pp" 2 "$tp" 2

# ---- resumed on another layout ----------------------------------------------------------------
reference_run deep bf16
start thread 4 deep --dtype bf16 --run moves --until 0 "$tp" 2 "$ro" 2 ||
    complain "moves: exit code $?" "$(<err)"
holds [ "$(column moves 'SELECT max(step) FROM step')" = 0 ]
start thread 4 deep --dtype bf16 --run moves "$pp" 2 "$vp" 2 ||
    complain "moves, resumed: exit code $?" "$(<err)"
expect 0 'identical: ' diff "$reference" moves
holds diff -rq -x state.json -x hashes.xxh "$(newest "$reference")" "$(newest moves)"
expect 0 'identical' replay moves --step 0

# ---- ranks that only sample take part in evaluations -------------------------------------------
evals=(--dtype bf16 --eval-interval 1 --eval-prompt-data "t task:max" --task-size 8)
start thread 1 dense "${evals[@]}" --run evals-one || complain "evals-one: $?" "$(<err)"
start thread 3 dense "${evals[@]}" --run evals "$ro" 1 || complain "evals: $?" "$(<err)"
expect 0 'identical: ' diff evals-one evals
holds diff <("$invar" ledger query eval-history evals-one --csv) \
    <("$invar" ledger query eval-history evals --csv)
# one sync serves the rollout and the evaluation
holds [ "$("$invar" ledger query weight-syncs evals --csv | wc -l)" = 4 ]

# ---- failing ranks save a checkpoint ------------------------------------------------------------
judged=(--dtype bf16 --rm-type none --custom-rm-path "python3 $here/failing.py")
echo 9 >left
start thread 1 dense "${judged[@]}" --run judged || complain "judged: exit code $?" "$(<err)"
echo 1 >left
checks=$((checks + 1))
rc=0
start thread 5 dense "${judged[@]}" --run rescued "$tp" 2 "$ro" 1 || rc=$?
((rc == 2)) || complain "rescued: exit code $rc, expected 2" "$(<err)"
grep -q 'a checkpoint of step 0 is saved' err || complain "no checkpoint:" "$(<err)"
echo 9 >left
start thread 2 dense "${judged[@]}" --run rescued "$ro" 1 || complain "rescued: $?" "$(<err)"
expect 0 'identical: ' diff judged rescued

# ---- impossible layouts -----------------------------------------------------------------------
refused 'start with --ranks 2' dense 1 "$tp" 2
refused 'needs a multiple of 2' dense 3 "$tp" 2
refused 'the model has 0 experts' dense 2 "$ep" 2
refused 'divides experts, and the model has none' dense 2 "$tp" 2 "$etp" 2
refused 'has 128 rows in atoms of 128' dense 2 "$tp" 2 --ffn-hidden-size 128
refused 'it is 1 or that of' experts 4 "$tp" 4 "$etp" 2
refused 'set logical-tp = 2 to divide it (which changes the identity' dense 2 "$tp" 2 \
    --logical-tp 1
refused 'debug-dump: here ranks divide layers or rows' dense 2 "$tp" 2 --debug-dump '*'
refused 'finer points than those of "point"' dense 2 "$cp" 2 --debug-determinism full
refused 'the model has only 4 layers' deep 8 "$pp" 8
refused 'the model has only 4 layers' deep 4 "$pp" 4 "$vp" 2
refused 'needs a pipeline-model-parallel-size of 2 or more' dense 2 "$vp" 2

refused 'this is one: start with --ranks 2' dense 1 "$ro" 1
refused 'leaves 0 of 2 ranks to train' dense 2 "$ro" 2
refused 'needs a multiple of 2: start with --ranks 5' dense 4 "$ro" 1 "$tp" 2
refused 'engines of 2 ranks each' dense 4 "$ro" 3 "$re" 2
refused 'does not divide logical-tp = 8' dense 4 "$ro" 3 "$re" 3
refused 'some ranks only sample' dense 2 "$ro" 1 --audit 10
refused 'would be ignored: it needs rollout-num-gpus' dense 2 "$re" 2

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
