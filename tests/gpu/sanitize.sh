#!/usr/bin/env bash
# sanitize.sh TWIN INVAR FOLDER - compute-sanitizer over random small calls of every op.
#
# Each tool (memcheck, racecheck, initcheck, synccheck) runs TWIN over the first COUNT cases of
# every op, edge shapes among them (racecheck, which is slow, over HEAVY cases of the ops with
# products), and memcheck also runs INVAR over a rollout and a training step of a small recipe. Many
# processes share the GPU. One line per tool; FOLDER keeps what they said.
#
# racecheck does not follow an order that is made in two steps: the lanes of a warp read (or wait
# for their copies), meet in __syncwarp, and one of them arrives at a barrier in shared memory for
# all; who waited there then writes (or reads). EXPLAINED names the kernels whose reports are of
# this kind, by reading them; they are counted, and anything else is a finding. In
# attention_backward_tensor, lanes read -lse2 and delta of a tile before their warp arrives at
# tile_empty, and write sums of dq before it arrives at sum_added; copies replace both later. In
# forward_wgmma, lanes read order[] before their warp arrives at q_empty, and special[] before it
# arrives at v_empty, for which they meet in a named barrier instead.
#
# Exit code: 0 nothing was found, 1 something was, 77 there is no compute-sanitizer.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
twin=$1 invar=$2 folder=$3
: "${COUNT:=24}" "${HEAVY:=18}" "${LIMIT:=600}" "${JOBS:=$(nproc)}"
: "${TOOLS:=racecheck memcheck initcheck synccheck}"
: "${EXPLAINED:=forward_decode<|short_backward_sums<|attention_backward_tensor<|forward_wgmma<}"
export PATH=$PATH:/usr/local/cuda/bin
if ! command -v compute-sanitizer >/dev/null; then
    echo "no compute-sanitizer" >&2
    exit 77
fi
rm -rf "$folder"
mkdir -p "$folder"
mapfile -t ops < <("$twin" 0 2>/dev/null | cut -d ' ' -f 1 | sort -u)
((${#ops[@]}))

# check TOOL NAME COMMAND ...: runs it; the tool's words go to TOOL.NAME.log, seconds to .time
check() {
    local at=$folder/$1.$2 code=0 begin=$SECONDS
    timeout -k 5 "$LIMIT" compute-sanitizer --tool "$1" --error-exitcode 99 --print-limit 1000 \
        --log-file "$at.log" "${@:3}" >"$at.out" 2>&1 || code=$?
    echo "$code" >"$at.code"
    echo "$((SECONDS - begin)) $1 $2" >"$at.time"
}

# start TOOL NAME COMMAND ...: check beside the others, JOBS of them at a time
start() {
    while (($(jobs -rp | wc -l) >= JOBS)); do
        wait -n || true
    done
    check "$@" &
}

if [[ " $TOOLS " == *" memcheck "* ]]; then
    start memcheck train "$invar" train tests/golden/h200/dense.ini --device cuda --num-rollout 1 \
        --run "$folder/run" --save "" --no-report
fi

# cases TOOL OP: how many
cases() {
    case $1/$2 in
    racecheck/attention.* | racecheck/*linear.*) echo "$HEAVY" ;;
    *) echo "$COUNT" ;;
    esac
}

for tool in $TOOLS; do
    for op in "${ops[@]}"; do
        start "$tool" "$op" "$twin" "$(cases "$tool" "$op")" "$op"
    done
done
wait

# explained FILE: racecheck reported something, printed all of it, every report is of the kind
# above, and the results were right.
explained() {
    local reports unknown
    [[ $1 == */racecheck.* && $(<"$1.code") == 99 ]] || return 1
    grep -q "0 blocks differ" "$1.out" || return 1
    reports=$(grep -c "Race reported between" "$1.log") || return 1
    unknown=$(grep -E "Race reported between|and (Read|Write) access" "$1.log" |
        grep -cvE "$EXPLAINED") || true
    ((unknown == 0)) && grep -q "SUMMARY: $reports hazards\? displayed" "$1.log"
}

# A program passed when it ended well and its tool counted nothing.
nothing='SUMMARY: 0 (errors|hazards displayed \(0 errors, 0 warnings\))'
failed=0
for tool in $TOOLS; do
    count=0 known=0 bad=()
    for file in "$folder/$tool".*.code; do
        at=${file%.code} name=${at#"$folder/$tool."} count=$((count + 1))
        if explained "$at"; then
            known=$((known + 1))
        elif [[ $(<"$file") != 0 ]] || ! grep -qE "$nothing" "$at.log"; then
            bad+=("$name ($(<"$file"))")
        fi
    done
    if ((${#bad[@]})); then
        failed=1
        echo "$tool: $count programs, ${#bad[@]} with findings or an exit code: ${bad[*]}"
    else
        echo "$tool: $count programs, nothing found$( ((known == 0)) || echo "; $known explained")"
    fi
done
exit "$failed"
