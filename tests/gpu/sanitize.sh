#!/usr/bin/env bash
# sanitize.sh COMPARE INVAR FOLDER - compute-sanitizer over random small calls of every op.
#
# Each tool (memcheck, racecheck, initcheck, synccheck) runs COMPARE (cpu_gpu_compare.c) over the
# first COUNT cases of every op, including edge shapes; racecheck, which is slow, over HEAVY cases
# of the ops with products. memcheck also runs INVAR over a rollout and a training step of a small
# recipe. Many processes share the GPU. Prints one line per tool; FOLDER keeps the logs.
#
# racecheck does not recognize some orders of accesses. races.sh lists them; such reports are
# counted as explained if the results were right. Any other report is a finding.
#
# Exit code: 0 no findings, 1 findings, 77 compute-sanitizer is missing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
compare=$1 invar=$2 folder=$3
: "${COUNT:=24}" "${HEAVY:=18}" "${LIMIT:=600}" "${JOBS:=$(nproc)}"
: "${TOOLS:=racecheck memcheck initcheck synccheck}"
export PATH=$PATH:/usr/local/cuda/bin
if ! command -v compute-sanitizer >/dev/null; then
    echo "no compute-sanitizer" >&2
    exit 77
fi
rm -rf "$folder"
mkdir -p "$folder"
mapfile -t ops < <("$compare" 0 2>/dev/null | cut -d ' ' -f 1 | sort -u)
((${#ops[@]}))

# check TOOL NAME COMMAND ...: runs COMMAND under TOOL; writes TOOL.NAME.log, .out, .code and .time
check() {
    local at=$folder/$1.$2 code=0 begin=$SECONDS
    timeout -k 5 "$LIMIT" compute-sanitizer --tool "$1" --error-exitcode 99 --print-limit 1000 \
        --log-file "$at.log" "${@:3}" >"$at.out" 2>&1 || code=$?
    echo "$code" >"$at.code"
    echo "$((SECONDS - begin)) $1 $2" >"$at.time"
}

# start TOOL NAME COMMAND ...: runs check in the background, at most JOBS at a time
start() {
    while (($(jobs -rp | wc -l) >= JOBS)); do
        wait -n || true
    done
    check "$@" &
}

if [[ " $TOOLS " == *" memcheck "* ]]; then
    start memcheck train "$invar" train tests/golden/h200/dense.ini --device cuda --num-rollout 1 \
        --run "$folder/run" --save none --no-report
fi

# cases TOOL OP: prints the number of cases
cases() {
    case $1/$2 in
    racecheck/attention.* | racecheck/*linear.*) echo "$HEAVY" ;;
    *) echo "$COUNT" ;;
    esac
}

for tool in $TOOLS; do
    for op in "${ops[@]}"; do
        start "$tool" "$op" "$compare" "$(cases "$tool" "$op")" "$op"
    done
done
wait

# explained FILE: succeeds if racecheck's reports are all explained and the results were right
explained() {
    [[ $1 == */racecheck.* && $(<"$1.code") == 99 ]] || return 1
    grep -q "0 blocks differ" "$1.out" || return 1
    "$(dirname "$0")/races.sh" "$1.log" >"$1.unknown"
}

# A program passed if it exited with 0 and its tool counted nothing.
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
