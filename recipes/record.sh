#!/usr/bin/env bash
# record.sh INVAR [OTHER ...] - records the goldens of the recipes again, if other builds agree.
#
# Each recipe that has a golden (or is named in INVAR_RECIPES) is trained to its end by INVAR on one
# thread, then on three with every other free key changed. Each OTHER is a command, an invar of
# another compiler or of another architecture under an emulator, that must agree on the first
# rollouts (5, or INVAR_ROLLOUTS). Only then the golden is replaced. For example:
#
#   recipes/record.sh build/invar build-clang/invar \
#       "qemu-x86_64 -cpu max -L /usr/x86_64-linux-gnu build-cross-x86-64/invar"
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# == 0)); then
    sed -n '2,/^# SPDX/{/^# SPDX/d;s/^# \{0,1\}//p}' recipes/record.sh
    exit 2
fi
invar=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# train COMMAND ...: the training must succeed, and agree with a golden if one is given.
train() {
    "$@" --save none --no-report >"$work/out" 2>"$work/err" || {
        cat "$work/out" "$work/err" >&2
        echo "$name: $* does not agree: nothing was recorded" >&2
        exit 1
    }
}

names=${INVAR_RECIPES:-$(cd recipes && echo *.golden)}
for name in ${names//.golden/}; do
    recipe=recipes/$name.ini new=$work/$name.golden
    # keeps the history of acceptances
    [[ ! -e recipes/$name.golden ]] || cp "recipes/$name.golden" "$new"
    train "$invar" train "$recipe" --run "$work/$name" --threads 1 --record-golden "$new"
    train "$invar" train "$recipe" --run "$work/$name-free" --golden "$new" --threads 3 \
        --micro-batch-size 7 --rollout-concurrency 5 --page-size 3 --chunked-prefill-size 3 \
        --disable-prefix-sharing --recompute-granularity full --log-probs-chunk-size 5
    number=0
    for other in "$@"; do
        number=$((number + 1))
        read -ra command <<<"$other"
        train "${command[@]}" train "$recipe" --run "$work/$name-$number" --golden "$new" \
            --num-rollout "${INVAR_ROLLOUTS:-5}"
    done
    if cmp -s "$new" "recipes/$name.golden" && [[ -e recipes/$name.points ]]; then
        echo "$name: as it was"
    else
        mv "$work/$name.points" "recipes/$name.points"
        mv "$new" "recipes/$name.golden"
        echo "$name: recorded, $# other builds agree"
    fi
done
