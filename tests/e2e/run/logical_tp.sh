#!/usr/bin/env bash
# logical_tp.sh INVAR FOLDER - logical tensor parallelism: one chain however a run is executed.
#
# Small models with 8 atoms at least on every axis that is cut, one of them with 11; every format,
# dense and with experts. 1, 2, 4 and 8 pieces have a chain each.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
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
wide=(--kv-channels 128) # an atom is a scale block at least

# all_ways NAME RECIPE FLAG ...: 8 pieces, and the same in other ways; fewer have other chains.
all_ways() {
    local name=$1 pieces seen
    shift
    train "$name" "$@" --logical-tp 8
    seen=$chain
    train "$name-ways" "$@" --logical-tp 8 "${ways[@]}"
    [[ $chain == "$seen" ]] || complain "$name: in another way $chain, not $seen"
    for pieces in 1 2 4; do
        train "$name-$pieces" "$@" --logical-tp "$pieces"
        [[ " $seen " != *" $chain "* ]] || complain "$name: $pieces pieces: $chain again"
        seen+=" $chain"
    done
}

all_ways fp32 dense --dtype fp32 --numerics ieee
all_ways bf16 dense
all_ways fp8 dense --dtype fp8 "${wide[@]}"
all_ways mxfp8 dense --dtype mxfp8 "${wide[@]}"
all_ways int4 dense --dtype int4 "${wide[@]}"
all_ways eleven dense --num-attention-heads 22 --num-query-groups 11 --ffn-hidden-size 1408 \
    --vocab-size 2816
all_ways one-kv dense --num-query-groups 1

# ---- experts: pieces of their own --------------------------------------------------------------
seen=
for flags in '--logical-tp 1 --logical-etp 8' '--logical-tp 8 --logical-etp 8' \
    '--logical-tp 8 --logical-etp 2' '--logical-tp 8' ''; do
    # shellcheck disable=SC2086 # several words
    train "experts${flags//[ -]/}" experts $flags
    [[ " $seen " != *" $chain "* ]] || complain "experts $flags: $chain again"
    seen+=" $chain"
done
for format in bf16 fp8; do
    flags=(--dtype "$format" --logical-tp 8 --logical-etp 4 "${wide[@]}")
    train "experts-$format" experts "${flags[@]}"
    seen=$chain
    train "experts-$format-ways" experts "${flags[@]}" "${ways[@]}"
    [[ $chain == "$seen" ]] || complain "experts in $format: in another way $chain, not $seen"
done

# ---- each way alone, resumed, replayed ---------------------------------------------------------
train bf16 dense --logical-tp 8
seen=$chain
for flags in '--threads 3' '--micro-batch-size 3' '--recompute-granularity full' \
    '--log-probs-chunk-size 2' '--audit 40' '--rollout-concurrency 1' '--page-size 3' \
    '--debug-determinism full' '--optimizer-cpu-offload'; do
    # shellcheck disable=SC2086 # several words
    train "alone${flags//[ -]/}" dense --logical-tp 8 $flags
    [[ $chain == "$seen" ]] || complain "$flags: $chain, not $seen"
done
saved=$folder/checkpoints
train resumed dense --logical-tp 8 --save "$saved" --load "$saved" --debug-exit-after-rollout 1
train resumed dense --logical-tp 8 --save "$saved" --load "$saved" "${ways[@]}"
[[ $chain == "$seen" ]] || complain "resumed: $chain, not $seen"
"$invar" replay "$folder/resumed" --step 1 --threads 2 >"$folder/replay" 2>&1 ||
    complain "replay: exit code $?" "$(<"$folder/replay")"

# ---- what it is part of, and what is refused ---------------------------------------------------
"$invar" train "$folder/dense.ini" --run "$folder/resumed" --logical-tp 4 --save "$saved" \
    --load "$saved" >"$folder/out" 2>&1 && complain "a run with 8 pieces goes on with 4"
grep -q "another run" "$folder/out" || complain "8 pieces, then 4:" "$(<"$folder/out")"
"$invar" train "$folder/dense.ini" --run "$folder/none" --logical-etp 2 >"$folder/out" 2>&1 &&
    complain "pieces of experts without experts"
grep -q "'logical-etp' cuts experts, and the model has none" "$folder/out" ||
    complain "logical-etp without experts:" "$(<"$folder/out")"
((failed)) || echo "one chain for all ways: as expected"
exit "$failed"
