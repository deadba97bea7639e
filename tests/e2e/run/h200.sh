#!/usr/bin/env bash
# h200.sh INVAR FOLDER STEPS [FLAG ...] - compares GRPO runs with goldens that an H200 and the CPU
# share.
#
# tests/golden/h200/MODEL-FORMAT.golden has the chain of MODEL.ini with --dtype FORMAT, recorded on
# one of the two and repeated to its end on the other (docs/testing.md, records). The first STEPS
# rollouts are compared; 0 for all. If not all are, the dense model has one format. FLAGs go to
# every run, so that the same script runs on a GPU with --device cuda. With INVAR_RECORD=1 new
# goldens are written into FOLDER instead. Control: a run with another seed must differ from the
# golden.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2 steps=$3
shift 3
goldens=tests/golden/h200
rm -rf "$folder"
mkdir -p "$folder"

# train CODE NAME FLAG ...: trains one run and checks its exit code; NAME is MODEL-FORMAT.
train() {
    local expected=$1 model=${2%-*} format=${2#*-} limit=() rc=0
    shift
    if ((steps)); then
        limit=(--num-rollout "$steps")
    fi
    "$invar" train "$goldens/$model.ini" --dtype "$format" --run "$folder/$1" --save none \
        --no-report "${limit[@]}" "${@:2}" >"$folder/$1.out" 2>"$folder/$1.err" || rc=$?
    ((rc != expected)) || return 0
    echo "$1: exit code $rc, expected $expected" >&2
    tail -n 5 "$folder/$1.out" "$folder/$1.err" >&2
    return 1
}

code=0 count=0
for model in dense moe; do
    for format in bf16 fp8 mxfp8 int4; do
        name=$model-$format
        # Products and weights of the dense model are also parts of the model with experts.
        [[ $model != dense || $format == bf16 || $steps == 0 ]] || continue
        if [[ ${INVAR_RECORD:-} == 1 ]]; then
            train 0 "$name" "$@" --record-golden "$folder/$name.golden"
        elif ! train 0 "$name" "$@" --golden "$goldens/$name.golden" ||
            ! grep -q '^golden    identical' "$folder/$name.out"; then
            echo "$name differs from what an H200 and the CPU gave" >&2
            code=1
        fi
        count=$((count + 1))
    done
done
if [[ ${INVAR_RECORD:-} != 1 ]]; then
    rm -rf "$folder/moe-bf16"
    # Exit code 4, since the golden is of another recipe; the output tells that both were compared.
    if ! train 4 moe-bf16 "$@" --golden "$goldens/moe-bf16.golden" --seed 5 ||
        ! grep -q '^golden    different from step 0 on' "$folder/moe-bf16.out"; then
        echo "control: another seed was not compared with the golden, or agrees with it" >&2
        code=1
    fi
fi
echo "$count runs"
exit "$code"
