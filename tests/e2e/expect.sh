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
tiny_recipe() {
    cat <<RECIPE
[model]
dtype = fp32
num-layers = 1
hidden-size = 16
ffn-hidden-size = 16
num-attention-heads = 1
max-position-embeddings = 16
[rollout]
prompt-data = task:max
task-size = 8
num-rollout = $1
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 2
rm-type = overlap
[perf]
threads = 1
[engine]
numerics = ieee
RECIPE
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
