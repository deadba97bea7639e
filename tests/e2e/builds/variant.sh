#!/usr/bin/env bash
# variant.sh INVAR FOLDER RUNNER CMAKE-ARGUMENT ... - another build of these sources has the same
# bits.
#
# Builds into FOLDER with the arguments, invar too unless the arguments leave it out. Runs the
# self-check, the tensor-core step and the elementary functions there under RUNNER (an emulator, or
# env), and compares the output with that of the same programs next to INVAR. The self-check also
# compares with the recorded digests and exits with 1 if one differs; golden.*_sums compares the
# other programs with an H200.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=scripts/common.sh
source scripts/common.sh
invar=$1 folder=$2
read -ra runner <<<"$3"
shift 3

if ! command -v "${runner[0]}" >/dev/null; then
    echo "${runner[0]} is missing: scripts/setup test installs it" >&2
    exit 2
fi
configure "$folder" -B "$folder" "$@"
cmake --build "$folder" --target selfcheck_sums step_sums elementary_sums
if grep -q "^INVAR_LEDGER:BOOL=ON" "$folder/CMakeCache.txt"; then
    cmake --build "$folder" --target invar
else
    rm -f "$folder/invar"
fi

# same PROGRAM ARGUMENT ...: compares the output of both builds; short enough for an emulator.
same() {
    local program=$1 rc=0
    shift
    "${runner[@]}" "$folder/$program" "$@" >"$folder/variant.txt" || rc=$?
    if ((rc > 1)); then
        cat "$folder/variant.txt"
        echo "$folder/$program $* could not run (exit code $rc)" >&2
        exit 2
    fi
    "$(dirname "$invar")/$program" "$@" >"$folder/native.txt"
    if ! [[ -s $folder/native.txt ]] ||
        ! diff -u "$folder/native.txt" "$folder/variant.txt" || ((rc)); then
        echo "$program: the bits differ" >&2
        exit 1
    fi
    echo "$program $*: $(wc -l <"$folder/variant.txt") lines, all equal"
}
same selfcheck_sums
same step_sums simd 128
same elementary_sums 2 512
