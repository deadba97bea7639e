# expect.sh - for tests of the program: sourced by them; they set `invar`, those of one verb
# `expect_verb`, and exit with `failed`.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
failed=0 checks=0 expect_verb=()
escape=$'\033'

complain() {
    printf '%s\n' "$@" >&2
    failed=1
}

# expect CODE TEXT ARGUMENT ...: the exit code, and TEXT somewhere in what is printed, uncoloured.
expect() {
    local code=$1 text=$2 output rc=0
    shift 2
    set -- "${expect_verb[@]}" "$@"
    checks=$((checks + 1))
    output=$(timeout 300 "$invar" "$@" 2>&1 </dev/null) || rc=$?
    if ((rc != code)) || [[ $output != *"$text"* ]]; then
        complain "invar $*: exit code $rc, expected $code with \"$text\":" "$output"
    fi
    [[ $output != *"$escape"* ]] || complain "invar $*: an escape sequence in a file"
}
