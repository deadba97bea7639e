#!/usr/bin/env bash
# goals.sh FOLDER [DEEPGEMM] - measures everything in docs/records/gpu-goals.tsv in one session.
#
# Runs on a GPU node, in a bundle that is built (scripts/bundle), and needs PyTorch. Each part
# writes FOLDER/PART.txt; a part whose file exists is skipped, so the command can be repeated after
# an interruption. DEEPGEMM is DeepGEMM's repository (tests/bench/deepgemm.sh); its rows are left
# out if it is not given. Takes eleven minutes of an H200, on which nothing else may run. Exit code
# 1: a part failed.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317 # part calls its commands
set -euo pipefail
if (($# < 1 || $# > 2)) || [[ $1 == -* ]]; then
    echo "goals.sh: expected a folder for what it measures, and where DeepGEMM is" >&2
    exit 2
fi
mkdir -p "$1"
out=$(realpath "$1")
deepgemm=${2:+$(realpath "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
failed=0

# part NAME COMMAND...: runs the command unless NAME.txt exists, which gets its output
part() {
    local name=$1 start=$SECONDS
    shift
    [[ ! -e $out/$name.txt ]] || return 0
    if "$@" >"$out/$name.part" 2>&1; then
        mv "$out/$name.part" "$out/$name.txt"
        echo "$name: $((SECONDS - start)) s"
    else
        failed=1
        echo "$name: failed after $((SECONDS - start)) s; $out/$name.part says more" >&2
    fi
}

bench() { build/invar bench --device cuda "$@"; }

sampling() { build/bench.sampling --device cuda "$@"; }

peers() { build/bench.peers --device cuda "$@"; }

# grpo RECIPE: runs three steps of 512 samples and prints the time of each phase
grpo() {
    local root=$PWD
    (cd "$out" && "$root/build/invar" train "$root/$1" --fresh --name goal --device cuda \
        --num-rollout 3 --rollout-batch-size 64 --n-samples-per-prompt 8 \
        --rollout-max-response-len 512 --save none) &&
        build/invar ledger sql "SELECT step, phase, duration_ns / 1000000 AS ms FROM timing" \
            "$out/runs/goal"
}

# rows COMMAND...: runs gpu.py; accepts missed goals (exit code 1), but no differing elements
rows() {
    "$@" | tee "$out/rows" || (($? == 1)) || return 2
    ! grep -q DIFFERENT "$out/rows"
}

# compile: compiles the peers in parallel, before anything is timed
compile() {
    local peers=()
    if [[ -n $deepgemm ]]; then
        tests/bench/deepgemm.sh "$deepgemm" "$out/deepgemm.so" &
        peers+=($!)
    fi
    (cd tests/bench && python3 -c 'import sys, model; model.make_peer(sys.argv[1])' "$out") &
    peers+=($!)
    local peer
    for peer in "${peers[@]}"; do
        wait "$peer" || return 2
    done
}

part compile compile
if [[ -n $deepgemm ]]; then
    part deepgemm peers --op linear --peer "$out/deepgemm.so" --burst 10
fi
part train-0.6b bench --model qwen3-0.6b --only train --repetitions 10
for run in 1 2 3 4 5; do
    part "ledger-$run" bench --model qwen3-0.6b --only train --repetitions 20
done
for shards in 1 8; do
    part "train-shards-$shards" bench --model qwen3-0.6b --logical-tp "$shards" --only train \
        --repetitions 5
    for batch in 256 128 8; do
        part "decode-$batch-shards-$shards" bench --model qwen3-0.6b --logical-tp "$shards" \
            --only decode --batch "$batch" --repetitions 20
    done
done
part decode-512 bench --model qwen3-0.6b --only decode --batch 512 --repetitions 20
part train-30b bench --model qwen3-30b-a3b --layers 6 --tokens 512x512 --micro-batch 32 \
    --only train --repetitions 3
part decode-30b bench --model qwen3-30b-a3b --layers 6 --only decode --repetitions 10
part grpo-0.6b grpo tests/gpu/qwen3-0.6b.ini
part grpo-30b grpo tests/gpu/qwen3-30b-cut.ini
part emulation build/bench.peers --op linear --threads 2
part engine tests/bench/engine.py build/bench.engine
part rollout sampling --model qwen3-0.6b --only rollout
part speculation-0.6b sampling --model qwen3-0.6b --only speculation
part speculation-8b sampling --model qwen3-8b --only speculation
part ops rows tests/bench/gpu.py build/invar --burst 10 --peer "$out/peer.so"
part attention-200 rows tests/bench/gpu.py build/invar --burst 200 --op attention \
    --peer "$out/peer.so"
exit "$failed"
