#!/usr/bin/env bash
# pack.sh INVAR FOLDER [FLAG ...] - the CPU replays a pack of a step that a GPU computed.
#
# FLAGs are passed to the training run only (--device cuda). tests/e2e/run/replay.sh checks that a
# forged pack is found. Exit code: 0 identical, otherwise a step differs or a command failed.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2
shift 2
unset INVAR_LEDGER
rm -rf "$folder"
mkdir -p "$folder"
for model in dense moe; do
    run=$folder/$model
    "$invar" train "tests/golden/h200/$model.ini" --dtype bf16 --num-rollout 4 --run "$run" \
        --save none --no-report "$@" >"$run.out" 2>&1
    "$invar" pack "$run" --step 3 --output "$run.tar" >"$run.out" 2>&1
    "$invar" replay "$run.tar" --device cpu 2>"$run.err" | tee "$run.out"
    grep -qx identical "$run.out"
done
