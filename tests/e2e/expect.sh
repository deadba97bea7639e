# expect.sh - functions that shell tests share; a test sources this file and exits with $failed.
#
# A test that calls `expect` sets `invar` first. If all of its calls are of one command, it sets
# `expect_verb` to the words that come first. The files of `expect_logs` are printed when `holds`
# fails.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
failed=0 checks=0 expect_verb=() expect_logs=()
escape=$'\033'

# complain TEXT ...: prints the texts to standard error and marks the test as failed.
complain() {
    printf '%s\n' "$@" >&2
    failed=1
}

# holds COMMAND ...: checks that the command succeeds.
holds() {
    checks=$((checks + 1))
    "$@" || complain "not so: $*" "$(cat /dev/null "${expect_logs[@]}")"
}

# files_differ WHAT FILE FILE: checks that two files exist, are not empty and differ.
files_differ() {
    local rc=0
    checks=$((checks + 1))
    if [[ ! -s $2 || ! -s $3 ]]; then
        complain "$1: $2 or $3 is missing or empty"
        return
    fi
    cmp -s "$2" "$3" || rc=$?
    ((rc == 1)) || complain "$1: $2 and $3 do not differ (exit code $rc of cmp)"
}

# lacks PATTERN FILE: checks that a file that is not empty has no line that matches the extended
# regular expression.
lacks() {
    local found rc=0
    checks=$((checks + 1))
    if [[ ! -s $2 ]]; then
        complain "$2 is missing or empty"
        return
    fi
    found=$(grep -E -- "$1" "$2") || rc=$?
    ((rc == 1)) || complain "$2 has lines with '$1' (exit code $rc of grep):" "$found"
}

# more COMMAND ...: runs a command only in the full variant of a test.
more() {
    [[ ! ${INVAR_TEST_FULL:-} ]] || "$@"
}

# member NAME FILE: prints a top-level member of a JSON file that invar wrote.
member() {
    sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$2"
}

# tiny_recipe ROLLOUTS: prints the recipe tiny.ini, which trains in well under a second, with
# ROLLOUTS rollouts.
tiny=$(realpath "$(dirname "${BASH_SOURCE[0]}")/tiny.ini")
tiny_recipe() {
    sed "/^#/d; s/^num-rollout.*/num-rollout = $1/" "$tiny"
}

# as_ada: makes git ignore this machine's settings and gives all commits one author and date.
as_ada() {
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org
    export GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org
    export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
}

# column RUN QUERY: prints the result of the SQL query on the ledger of the run.
column() {
    sqlite3 -readonly "$1/ledger.db" "$2"
}

# expect CODE TEXT ARGUMENT ...: checks the exit code of invar, and that its output contains TEXT
# and no escape sequence.
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
