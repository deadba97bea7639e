# expect.sh - for tests of the program: sourced by them; they set `invar`, and exit with `failed`.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
failed=0 checks=0

complain() {
    printf '%s\n' "$@" >&2
    failed=1
}

# expect CODE TEXT ARGUMENT ...: the exit code, and TEXT somewhere in what is printed.
expect() {
    local code=$1 text=$2 output rc=0
    shift 2
    checks=$((checks + 1))
    output=$(timeout 300 "$invar" "$@" 2>&1 </dev/null) || rc=$?
    if ((rc != code)) || [[ $output != *"$text"* ]]; then
        complain "invar $*: exit code $rc, expected $code with \"$text\":" "$output"
    fi
}
