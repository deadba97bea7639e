# expect.sh - what shell tests share: sourced by them; they exit with `failed`.
#
# Before `expect` a test sets `invar`, and where all its calls are of one verb `expect_verb`; files
# of `expect_logs` are shown where something does not hold.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
failed=0 checks=0 expect_verb=() expect_logs=()
escape=$'\033'

complain() {
    printf '%s\n' "$@" >&2
    failed=1
}

# holds COMMAND ...: a condition, as a command that must succeed.
holds() {
    checks=$((checks + 1))
    "$@" || complain "not so: $*" "$(cat /dev/null "${expect_logs[@]}")"
}

# member NAME FILE: a member of the first level of a JSON file that invar printed.
member() {
    sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$2"
}

# tiny_recipe ROLLOUTS: a run of so many rollouts that takes no time.
tiny=$(realpath "$(dirname "${BASH_SOURCE[0]}")/tiny.ini")
tiny_recipe() {
    sed "/^#/d; s/^num-rollout.*/num-rollout = $1/" "$tiny"
}

# as_ada: git without this machine's settings; commits are of one author and date.
as_ada() {
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org
    export GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org
    export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
}

# column RUN QUERY: one column of its ledger.
column() {
    sqlite3 -readonly "$1/ledger.db" "$2"
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
