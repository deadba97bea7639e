#!/usr/bin/env bash
# sanitize.sh TWIN INVAR FOLDER - compute-sanitizer over random small calls of every op.
#
# Each tool (memcheck, racecheck, initcheck, synccheck) runs TWIN over the first COUNT cases of
# every op, edge shapes among them (racecheck, which is slow, over HEAVY cases of the ops with
# products), and memcheck also runs INVAR over a rollout and a training step of a small recipe. Many
# processes share the GPU. One line per tool; FOLDER keeps what they said.
#
# racecheck reports some orders that it does not follow. races.sh says which, and those are counted
# as explained where the results were right; anything else is a finding.
#
# Exit code: 0 nothing was found, 1 something was, 77 there is no compute-sanitizer.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
twin=$1 invar=$2 folder=$3
: "${COUNT:=24}" "${HEAVY:=18}" "${LIMIT:=600}" "${JOBS:=$(nproc)}"
: "${TOOLS:=racecheck memcheck initcheck synccheck}"
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
        --run "$folder/run" --save none --no-report
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

# explained FILE: racecheck reported something, all of it is explained, and the results were right
explained() {
    [[ $1 == */racecheck.* && $(<"$1.code") == 99 ]] || return 1
    grep -q "0 blocks differ" "$1.out" || return 1
    "$(dirname "$0")/races.sh" "$1.log" >"$1.unknown"
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
