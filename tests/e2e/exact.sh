# exact.sh - what tests of chains share: runs in which rollout and training are equal.
#
# Before, a test sets `invar` and `folder`, which has its recipes.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0

# free keys, all at once
ways=(--threads 3 --micro-batch-size 3 --rollout-concurrency 3 --page-size 3
    --chunked-prefill-size 3 --disable-prefix-sharing --recompute-granularity full
    --log-probs-chunk-size 2 --audit 40)

# train RUN RECIPE FLAG ...: sets `chain`. In every step rollout and training are equal.
train() {
    local run=$1 recipe=$2 flags=(--run "$folder/$1" --no-report --json) found
    shift 2
    [[ " $* " == *" --save "* ]] || flags+=(--save none)
    [[ " $* " == *" --threads "* ]] || flags+=(--threads 1)
    "$invar" train "$folder/$recipe.ini" "${flags[@]}" "$@" >"$folder/$run.json" \
        2>"$folder/$run.err" || complain "$run: exit code $?" "$(tail -n 2 "$folder/$run.err")"
    chain=$(member chain "$folder/$run.json")
    [[ $chain == ????????* ]] || complain "$run: no chain: \"$chain\""
    found=$(sqlite3 -readonly "$folder/$run/ledger.db" "SELECT count(*) FROM sample
        WHERE diff_bits <> 0 OR diff_at <> -1")
    [[ $found == 0 ]] || complain "$run: $found log-probabilities differ"
}
