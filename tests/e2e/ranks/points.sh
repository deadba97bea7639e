#!/usr/bin/env bash
# points.sh INVAR INVAR_FAR INVAR_WRONG FOLDER - the points, statistics and audits of several ranks.
#
# Points of every op, their statistics and dumps must be those of one rank, row by row and byte by
# byte. Control: a run with another seed differs. An audit must name the rank whose device computes
# other bits. Divided models have two layers unless stages are virtual, and one rollout; with
# INVAR_TEST_FULL=1 all have four layers and two rollouts, on more numbers of ranks and in more
# layouts. INVAR_FAR has a fake GPU, INVAR_WRONG a device with a wrong op; both are called cuda.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") fake_gpu=$(readlink -f "$2") wrong=$(readlink -f "$3") folder=$4
export NO_COLOR=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
INVAR_MODULES=$(dirname "$invar") # the other programs are in another folder
export INVAR_MODULES
rm -rf "$folder"
recipes=$PWD/recipes here=$PWD/tests/e2e/ranks
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
expect_logs=(out err)
full_test=${INVAR_TEST_FULL:-}

mpi=false
if command -v mpirun >/dev/null && [ -e "$INVAR_MODULES/invar-mpi.so" ]; then
    mpi=true
fi
tiny_recipe 2 >tiny.ini

recipe=tiny.ini

# ends CODE RANKS PROGRAM FLAG ...: trains on threads, or with m before the number on processes, and
# checks the exit code; writes to out and err.
ends() {
    local code=$1 ranks=$2 program=$3 rc=0
    shift 3
    checks=$((checks + 1))
    if [[ $ranks = m* ]]; then
        timeout 300 mpirun --oversubscribe -n "${ranks#m}" "$program" train "$recipe" --no-report \
            "$@" >out 2>err </dev/null || rc=$?
    else
        timeout 300 "$program" train "$recipe" --no-report --ranks "$ranks" "$@" \
            >out 2>err </dev/null || rc=$?
    fi
    ((rc == code)) || complain "$ranks $*: exit code $rc, expected $code:" "$(<out)" "$(<err)"
}

# rows RUN: prints all rows of its ledger about points, digests and statistics.
rows() {
    sqlite3 -readonly "$1/ledger.db" 'SELECT * FROM point ORDER BY 1, 2, 3, 4' \
        'SELECT * FROM digest ORDER BY 1, 2, 3, 4' 'SELECT * FROM stat ORDER BY 1, 2, 3, 4'
}

# same_dumps RUN RUN: checks that both have the same files in their dumps, at least one.
same_dumps() {
    holds diff -rq "$1/dump" "$2/dump"
    holds [ -n "$(find "$1/dump" -name '*.npy')" ]
}

# same NAME WORLDS FLAG ...: checks that worlds of several ranks record the rows of one rank; f
# before the number selects the fake GPU, m processes.
same() {
    local name=$1 worlds=$2 world program flags
    shift 2
    ends 0 1 "$invar" --run "$name-1" "$@"
    rows "$name-1" >"$name-1/rows"
    holds [ -s "$name-1/rows" ]
    for world in $worlds; do
        program=$invar flags=()
        [[ $world != f* ]] || program=$fake_gpu flags=(--device cuda)
        [[ $world != m* ]] || $mpi || continue
        ends 0 "${world#f}" "$program" --run "$name-$world" "$@" "${flags[@]}"
        rows "$name-$world" >"$name-$world/rows"
        holds cmp "$name-1/rows" "$name-$world/rows"
        [[ " $* " != *" --debug-dump "* ]] || same_dumps "$name-1" "$name-$world"
        expect 0 'identical: ' diff "$name-1" "$name-$world"
        expect 0 'clean' ledger verify "$name-$world"
    done
}
full=(--debug-determinism full --debug-stats --debug-dump 'layer.*,head.logits,train.*,grad.*')
experts=(--model-type qwen3_moe --num-experts 3 --moe-router-topk 2 --dtype bf16
    --advantage-estimator ppo --rollout-batch-size 5 --n-samples-per-prompt 3
    --num-steps-per-rollout 3 --unit-count 3)
worlds_of_dense='2 m4 f2' worlds_of_few=8 worlds_of_experts='4 f3'
[[ ! $full_test ]] || worlds_of_dense='2 4 m2 m4 f2' worlds_of_few='3 8' \
    worlds_of_experts='2 4 m3 f3'
same dense "$worlds_of_dense" "${full[@]}" # 4 samples: on 4 ranks, each has one
same few "$worlds_of_few" "${full[@]}" --rollout-batch-size 1 # some ranks have no sample
same experts "$worlds_of_experts" "${full[@]}" "${experts[@]}" --rollout-stop '["1"]'
same fp8 '3' --debug-determinism full --dtype fp8 --hidden-size 32 --ffn-hidden-size 32
same point '2' --debug-determinism point --dynamic-sampling-filter nonzero_std \
    --over-sampling-batch-size 3
[[ ! $full_test ]] || same stats '3' --debug-stats
[[ ! $full_test ]] || same dump '2' --debug-dump 'layer.0.*'
holds [ "$(sqlite3 experts-1/ledger.db 'SELECT count(*) FROM point')" -gt 150 ]
holds [ "$(find experts-1/dump -name '*.npy' | wc -l)" -gt 100 ]
# Control: another seed gives other rows and dumps.
ends 0 2 "$invar" --run other "${full[@]}" --seed 7
rows other >other/rows
holds [ "$(diff dense-1/rows other/rows | grep -c '^<')" -gt 100 ]
holds [ "$(diff -rq dense-1/dump other/dump | wc -l)" -gt 20 ]
# The diff finds the differing point as it does for runs of one rank.
expect 1 'differ' diff dense-2 other
ends 129 3 "$invar" --run nothing --debug-dump 'no.such.*'
holds grep -q '^invar: .*debug-dump: no point of the step is called "no.such.\*"' err

# ---- ranks that divide a model ----------------------------------------------------------------
# same_divided NAME LEVEL WORLD FLAG ... -- LAYOUT-FLAG ...: checks that ranks that divide a model
# record the points of one rank.
same_divided() {
    local name=$1 level=$2 world=$3 program=$invar model=()
    shift 3
    while [ "$1" != -- ]; do
        model+=("$1")
        shift
    done
    shift
    [[ $world != m* ]] || $mpi || return
    [ -e "$name-1" ] ||
        ends 0 1 "$invar" --run "$name-1" --debug-determinism "$level" --threads 2 "${model[@]}"
    [[ $world != f* ]] || program=$fake_gpu
    [[ $world != f* ]] || set -- "$@" --device cuda
    ends 0 "${world#f}" "$program" --run "$name-$world" --debug-determinism "$level" --threads 1 \
        "${model[@]}" "$@"
    rows "$name-1" >"$name-1/rows"
    rows "$name-$world" >"$name-$world/rows"
    holds [ -s "$name-1/rows" ]
    holds cmp "$name-1/rows" "$name-$world/rows"
    [[ " ${model[*]} " != *" --debug-dump "* ]] || same_dumps "$name-1" "$name-$world"
    expect 0 'identical: ' diff "$name-1" "$name-$world"
    expect 0 'clean' ledger verify "$name-$world"
}
recipe=$here/sharded_model.ini
tp=--tensor-model-parallel-size ep=--expert-model-parallel-size pp=--pipeline-model-parallel-size
vp=--num-virtual-stages-per-pipeline-rank
moe=(--model-type qwen3_moe --num-experts 8 --moe-router-topk 2 --logical-etp 8)
one_rollout=(--num-rollout 1) small=(--num-layers 2 --num-rollout 1)
[[ ! $full_test ]] || one_rollout=() small=()
tensors=("${small[@]}" --dtype bf16 --advantage-estimator ppo --debug-stats
    --debug-dump 'grad.*,weight.*,train.*,critic.grad.*')
[[ ! $full_test ]] || same_divided tensors point 4 "${tensors[@]}" -- "$tp" 2
same_divided tensors point m4 "${tensors[@]}" -- "$tp" 2 --sequence-parallel "$pp" 2
same_divided tensors point f2 "${tensors[@]}" -- "$tp" 2 --sequence-parallel
# units of several token blocks
rows=("${small[@]}" --dtype bf16 --rollout-batch-size 16 --unit-count 2 --debug-stats)
same_divided rows point 4 "${rows[@]}" -- --context-parallel-size 2 "$tp" 2 --sequence-parallel
same_divided rows point f4 "${rows[@]}" -- --context-parallel-size 2 "$pp" 2
moe_full=("${small[@]}" --dtype fp8 "${moe[@]}" --debug-stats
    --debug-dump 'layer.1.*,grad.*,weight.*')
same_divided experts_full full 4 "${moe_full[@]}" -- "$ep" 2 "$pp" 2 --recompute-granularity full
same_divided experts_full full f2 "${moe_full[@]}" -- "$ep" 2
[[ ! $full_test ]] ||
    same_divided both point 4 "${small[@]}" --dtype bf16 "${moe[@]}" -- "$ep" 2 "$tp" 2
stages=("${full[@]:2}" "${one_rollout[@]}" --dtype bf16 --advantage-estimator ppo --unit-count 3)
same_divided stages full 6 "${stages[@]}" -- "$pp" 2 "$vp" 2
[[ ! $full_test ]] || same_divided stages full m2 "${stages[@]}" -- "$pp" 2
same_divided stages full 3 "${stages[@]}" -- --rollout-num-gpus 1 # one rank only samples
holds [ "$(sqlite3 stages-6/ledger.db "SELECT count(*) FROM point WHERE layer = 3")" -gt 100 ]
holds [ "$(sqlite3 experts_full-1/ledger.db 'SELECT count(*) FROM point')" -gt 200 ]
ends 129 2 "$invar" --run unmade --debug-determinism full "$tp" 2
holds grep -q 'finer points than those of "point" need whole values' err
ends 129 2 "$invar" --run unmade --debug-dump 'grad.*,layer.0.q' --context-parallel-size 2
holds grep -q 'debug-dump: here ranks divide layers or rows' err
holds [ ! -e unmade ]
recipe=tiny.ini

# ---- values that are not finite ---------------------------------------------------------------
# A run that diverges, as in train_errors.sh: one message names the point once, and a checkpoint is
# saved.
diverge=(--lr 1000 --weight-decay 1000 --debug-stats --threads 1)
for i in 1 ${full_test:+2 3}; do
    checks=$((checks + 1))
    "$invar" train "$recipes/bf16.ini" --no-report --ranks 4 --run "odd-$i" "${diverge[@]}" \
        --num-rollout 4 >out 2>err </dev/null && complain "a run diverges, and ends well"
    holds [ "$(grep -c '^invar: .*not finite is rollout.layer.1.norm_in' err)" = 1 ]
    holds [ "$(grep -c 'first point.*first point' err)" = 0 ]
    holds grep -q 'a checkpoint of step 0 is saved' err
    expect 0 'clean' ledger verify "odd-$i"
done

# ---- audits -----------------------------------------------------------------------------------
# audited RUN: prints how many elements its audits checked, and how many differed.
audited() {
    sqlite3 -readonly "$1/ledger.db" "SELECT s.name, cast(sum(value) AS INTEGER) FROM gauge g
        JOIN series s USING (series) WHERE s.name LIKE 'audit/%' GROUP BY 1 ORDER BY 1" |
        tr '\n' ' '
}
ends 0 4 "$invar" --run sound --audit 40
holds [ "$(audited sound)" = 'audit/differ|0 audit/elements|80 ' ]
expect 0 'identical: ' diff dense-1 sound

# The device is wrong on all ranks: one message, and one event per finding.
INVAR_TEST_WRONG=linear.fwd ends 1 3 "$wrong" --run threads --device cuda --audit 3000
holds grep -q '^invar: step [01]: audit: rank [012] on .*: linear.fwd.*: y\[.*computed again' err
holds [ "$(grep -c '^invar: step' err)" = 1 ]
expect 0 'audit-mismatch' ledger query events --run threads --text audit:

# Ranks that divide the model: each one audits its partition.
recipe=$here/sharded_model.ini
for layout in ${full_test:+"$tp 2"} "$pp 2 $tp 2" "$ep 2 $pp 2"; do
    read -r -a flags <<<"$layout"
    name=sound${layout//[^a-z0-9]/}
    ends 0 4 "$invar" --run "$name" --audit 200 --threads 1 --dtype bf16 "${small[@]}" \
        "${moe[@]}" "${flags[@]}"
    holds [ "$(audited "$name" | sed 's/elements|[1-9][0-9][0-9] $/enough/')" = \
        'audit/differ|0 audit/enough' ]
done
recipe=tiny.ini

$mpi || {
    ((failed)) || echo "$checks checks: all as expected; there is no mpirun"
    exit "$failed"
}
# audit_wrong_rank NAME SOUND FLAG ...: runs SOUND ranks with a correct device, and one more with a
# wrong one.
audit_wrong_rank() {
    local command=("$wrong" train tiny.ini --device cuda --no-report --run "$1" --audit 3000)
    local sound=$2
    shift 2
    rc=0
    timeout 300 mpirun --oversubscribe -n "$sound" "${command[@]}" "$@" : \
        -n 1 -x INVAR_TEST_WRONG=linear.dw "${command[@]}" "$@" >out 2>err </dev/null || rc=$?
}
audit_wrong_rank stage 3 --num-layers 2 "$pp" 2
holds [ "$rc" = 1 ]
holds grep -q '^invar: step [01]: audit: rank 3 on .*: linear.dw' err
holds [ "$(grep -c '^invar: step' err)" = 1 ]
[[ ! $full_test ]] || {
    audit_wrong_rank stopped 2
    holds [ "$rc" = 1 ]
    holds grep -q '^invar: step [01]: audit: rank 2 on .*: linear.dw' err
    holds [ "$(grep -c '^invar: step' err)" = 1 ]
}
audit_wrong_rank recorded 2 --on-mismatch record
holds [ "$rc" = 0 ]
holds [ "$(sqlite3 recorded/ledger.db "SELECT count(*) FROM event WHERE kind = 'audit-mismatch'
    AND message NOT LIKE 'audit: rank 2 on %'")" = 0 ]
holds [ "$(sqlite3 recorded/ledger.db "SELECT count(*) FROM event WHERE kind = 'audit-mismatch'
    AND step = 1")" -gt 0 ]

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
