#!/usr/bin/env bash
# races_test.sh FOLDER - races.sh accepts the explained reports and no others.
#
# The reports are those of compute-sanitizer 2025.3.1, with shorter lists of accesses and arguments.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
folder=$1 checks=0 failed=0
rm -rf "$folder"
mkdir -p "$folder"

wgmma='void <unnamed>::forward_wgmma<(int)64, (bool)1>(forward::tiles::tensor_maps)'
decode='void <unnamed>::forward_decode<(int)128, (int)1>(<unnamed>::parts, long)'
backward='void backward::tensor::attention_backward_tensor<(int)64>(backward::tensor::arguments)'
sums='void short_backward_sums<__nv_bfloat16, (int)8, (bool)1>(short_sums<T1>)'
stream='void stream_backward<__nv_bfloat16, (int)8>(backward_rows<T1>)'
plain='linear(forward_wgmma<T1>)'

# report FIRST KERNEL [NEXT KERNEL] ...: prints a report; each kind of access has its kernel
report() {
    echo "========= Error: Race reported between $1 access at $2+0xdd60"
    while (($# > 2)); do
        echo "=========     and $3 access at $4+0x1d820 [12 hazards]"
        set -- "$1" "$2" "${@:5}"
    done
    echo "========= "
}

# log COUNT REPORT ...: prints the output of the tool, whose last line counts COUNT hazards
log() {
    echo "========= COMPUTE-SANITIZER"
    printf '%s\n' "${@:2}"
    echo "========= RACECHECK SUMMARY: $1 hazard$( (($1 == 1)) || echo s) displayed ($1 errors)"
}

# expect CODE WHAT COUNT REPORT ...: checks the exit code of races.sh for such a log
expect() {
    local rc=0
    checks=$((checks + 1))
    log "${@:3}" >"$folder/log"
    tests/gpu/races.sh "$folder/log" >"$folder/out" || rc=$?
    if ((rc != $1)); then
        failed=1
        echo "$2: exit code $rc, expected $1" >&2
        cat "$folder/log" "$folder/out" >&2
    fi
}

known=$(report Read "$wgmma" Write "$wgmma")
expect 0 "a read and a write" 1 "$known"
expect 0 "in the other order, several" 1 "$(report Write "$wgmma" Read "$wgmma" Read "$wgmma")"
expect 0 "all kinds" 5 "$known" "$(report Read "$decode" Write "$decode" Write "$decode")" \
    "$(report Write "$backward" Read "$backward")" "$(report Write "$backward" Write "$backward")" \
    "$(report Write "$sums" Read "$sums" Read "$sums")"

expect 1 "two writes where reads are explained" 1 "$(report Write "$wgmma" Write "$wgmma")"
expect 1 "the same beside one that is explained" 2 "$known" \
    "$(report Write "$decode" Read "$decode" Write "$decode")"
expect 1 "the same in a norm" 1 "$(report Write "$sums" Write "$sums")"
expect 1 "a kernel without explanation" 1 "$(report Read "$stream" Write "$stream")"
expect 1 "a kernel with the name in its arguments" 1 "$(report Read "$plain" Write "$plain")"
expect 1 "another kernel on one side" 1 "$(report Read "$wgmma" Write "$decode")"
expect 1 "a report that is not printed" 2 "$known"
expect 1 "a report without its second access" 1 "$(report Read "$wgmma")"
expect 1 "no report" 0
((failed)) || echo "$checks checks"
exit "$failed"
