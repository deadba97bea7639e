#!/usr/bin/env bash
# logical_tp.sh INVAR FOLDER - logical tensor parallelism: the free keys do not change the chain.
#
# The models are small, dense and with experts, in every format. Every axis that logical tensor
# parallelism cuts has at least 8 atoms, once 11. Control: 1, 2, 4 and 8 logical shards must each
# have a chain of their own. By default that is checked in bf16, and other formats and shapes have
# two of these numbers and one rollout; with INVAR_TEST_FULL=1 they have all, and two rollouts.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2 full=${INVAR_TEST_FULL:-}
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
# shellcheck source=tests/e2e/bit_equal_runs.sh
source "$(dirname "$0")/../bit_equal_runs.sh"
rm -rf "$folder"
mkdir -p "$folder" || exit 2
exact_recipe 1024 8 2048 >"$folder/dense.ini"
sed -e 's/^ffn-hidden-size.*/ffn-hidden-size = 1024\nmodel-type = qwen3_moe\nnum-experts = 4/' \
    -e 's/^\[grpo\]/[grpo]\nuse-rollout-routing-replay = true/' \
    -e '/^num-experts/a moe-router-topk = 2' "$folder/dense.ini" >"$folder/experts.ini"
one_rollout=(--num-rollout 1)
[[ ! $full ]] || one_rollout=()
wide=(--kv-channels 128) # an atom is at least one scale block

# check_shards NAME NUMBERS RECIPE FLAG ...: with 8 logical shards, checks that free keys keep the
# chain; and that NUMBERS of logical shards, or in the full test 1, 2 and 4, have their own chains.
check_shards() {
    local name=$1 numbers=$2 n_shards seen
    shift 2
    [[ ! $full ]] || numbers='1 2 4'
    train "$name" "$@" --logical-tp 8
    seen=$chain
    train "$name-ways" "$@" --logical-tp 8 "${free_keys[@]}"
    [[ $chain == "$seen" ]] || complain "$name: in another way $chain, not $seen"
    for n_shards in $numbers; do
        train "$name-$n_shards" "$@" --logical-tp "$n_shards"
        [[ " $seen " != *" $chain "* ]] || complain "$name: $n_shards pieces: $chain again"
        seen+=" $chain"
    done
}

check_shards bf16 '1 2 4' dense
check_shards fp32 4 dense --dtype fp32 --numerics ieee "${one_rollout[@]}"
check_shards fp8 1 dense --dtype fp8 "${wide[@]}" "${one_rollout[@]}"
check_shards mxfp8 2 dense --dtype mxfp8 "${wide[@]}" "${one_rollout[@]}"
check_shards int4 4 dense --dtype int4 "${wide[@]}" "${one_rollout[@]}"
check_shards eleven 2 dense --num-attention-heads 22 --num-query-groups 11 \
    --ffn-hidden-size 1408 --vocab-size 2816 "${one_rollout[@]}"
check_shards one-kv 1 dense --num-query-groups 1 "${one_rollout[@]}"

# ---- experts: their own number of logical shards -----------------------------------------------
seen=
for flags in '--logical-tp 1 --logical-etp 8' '--logical-tp 8 --logical-etp 8' \
    '--logical-tp 8 --logical-etp 2' '--logical-tp 8' ''; do
    # shellcheck disable=SC2086 # several words
    train "experts${flags//[ -]/}" experts $flags "${one_rollout[@]}"
    [[ " $seen " != *" $chain "* ]] || complain "experts $flags: $chain again"
    seen+=" $chain"
done
for format in ${full:+bf16} fp8; do
    flags=(--dtype "$format" --logical-tp 8 --logical-etp 4 "${wide[@]}" "${one_rollout[@]}")
    train "experts-$format" experts "${flags[@]}"
    seen=$chain
    train "experts-$format-ways" experts "${flags[@]}" "${free_keys[@]}"
    [[ $chain == "$seen" ]] || complain "experts in $format: in another way $chain, not $seen"
done

# ---- each free key alone, resumed, replayed ----------------------------------------------------
# By default, those with a value that free_keys does not have.
alone=('--rollout-concurrency 1' '--debug-determinism full' '--optimizer-cpu-offload')
[[ ! $full ]] || alone=('--threads 3' '--micro-batch-size 3' '--recompute-granularity full'
    '--log-probs-chunk-size 2' '--audit 40' '--rollout-concurrency 1' '--page-size 3'
    '--debug-determinism full' '--optimizer-cpu-offload')
train alone dense --logical-tp 8 "${one_rollout[@]}"
seen=$chain
for flags in "${alone[@]}"; do
    # shellcheck disable=SC2086 # several words
    train "alone${flags//[ -]/}" dense --logical-tp 8 $flags "${one_rollout[@]}"
    [[ $chain == "$seen" ]] || complain "$flags: $chain, not $seen"
done
seen=$(member chain "$folder/bf16.json")
saved=$folder/checkpoints
train resumed dense --logical-tp 8 --save "$saved" --load "$saved" --debug-exit-after-rollout 1
train resumed dense --logical-tp 8 --save "$saved" --load "$saved" "${free_keys[@]}"
[[ $chain == "$seen" ]] || complain "resumed: $chain, not $seen"
"$invar" replay "$folder/resumed" --step 1 --threads 2 >"$folder/replay" 2>&1 ||
    complain "replay: exit code $?" "$(<"$folder/replay")"

# ---- identity of the run, and rejected recipes -------------------------------------------------
"$invar" train "$folder/dense.ini" --run "$folder/resumed" --logical-tp 4 --save "$saved" \
    --load "$saved" >"$folder/out" 2>&1 && complain "a run with 8 pieces goes on with 4"
grep -q "another run" "$folder/out" || complain "8 pieces, then 4:" "$(<"$folder/out")"
"$invar" train "$folder/dense.ini" --run "$folder/none" --logical-etp 2 >"$folder/out" 2>&1 &&
    complain "pieces of experts without experts"
grep -q "'logical-etp' cuts experts, and the model has none" "$folder/out" ||
    complain "logical-etp without experts:" "$(<"$folder/out")"
((failed)) || echo "one chain for all ways: as expected"
exit "$failed"
