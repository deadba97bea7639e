#!/usr/bin/env bash
# variant.sh INVAR FOLDER RUNNER CMAKE-ARGUMENT ... - another build of these sources, the same bits.
#
# Builds into FOLDER with the arguments given, runs the self-check there (under RUNNER: an emulator,
# or env), with SIMD and without, and compares what it prints with what INVAR prints. A self-check
# compares its hashes with the recorded ones itself and exits with 1 when one differs.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2
read -ra runner <<<"$3"
shift 3

if ! command -v "${runner[0]}" >/dev/null; then
    echo "${runner[0]} is missing: scripts/setup test installs it" >&2
    exit 2
fi
cmake -B "$folder" "$@"
cmake --build "$folder" --target invar

# compare ARGUMENT ...: the self-check with these arguments.
compare() {
    local rc=0
    "${runner[@]}" "$folder/invar" selfcheck --json "$@" >"$folder/variant.json" || rc=$?
    if ((rc > 1)); then
        echo "the self-check of $folder/invar could not run (exit code $rc)" >&2
        exit 2
    fi
    "$invar" selfcheck --json >"$folder/native.json"
    if ! diff -u "$folder/native.json" "$folder/variant.json" || ((rc)); then
        echo "the bits differ: selfcheck $*" >&2
        exit 1
    fi
}

compare
compare --portable
echo "all $(grep -c digest "$folder/native.json") values are equal"
