# bit_equal_runs.sh - runs whose rollout and training log-probs are bit-equal, for tests of chains.
#
# A test sources this file after expect.sh and sets `invar` and `folder`, the folder of its recipes.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0

# Flags that set many free keys at once; none of them may change a bit.
free_keys=(--threads 3 --micro-batch-size 3 --rollout-concurrency 3 --page-size 3
    --chunked-prefill-size 3 --disable-prefix-sharing --recompute-granularity full
    --log-probs-chunk-size 2 --audit 40)

# exact_recipe FFN HEADS VOCAB KEY=VALUE ...: prints a recipe of a small model of these sizes; the
# keys are added to its section [model].
exact_recipe() {
    local ffn=$1 heads=$2 vocab=$3
    shift 3
    cat <<RECIPE
[model]
dtype = bf16
num-layers = 2
hidden-size = 32
ffn-hidden-size = $ffn
num-attention-heads = $heads
num-query-groups = 2
kv-channels = 16
vocab-size = $vocab
max-position-embeddings = 32
init-method-std = 0.08
$(printf '%s\n' "${@/=/ = }")
[rollout]
prompt-data = task:max
num-rollout = 2
rollout-batch-size = 2
n-samples-per-prompt = 4
rollout-max-response-len = 3
rm-type = overlap
[grpo]
entropy-coef = 0.01
[optimizer]
lr = 0.01
[engine]
numerics = sm90
RECIPE
}

# train RUN RECIPE FLAG ...: trains and sets `chain`; fails if the log-probs of rollout and training
# differ in any sample.
train() {
    local run=$1 recipe=$2 flags=(--run "$folder/$1" --no-report --json) found
    shift 2
    [[ " $* " == *" --save "* ]] || flags+=(--save none)
    [[ " $* " == *" --threads "* ]] || flags+=(--threads 1)
    "$invar" train "$folder/$recipe.ini" "${flags[@]}" "$@" >"$folder/$run.json" \
        2>"$folder/$run.err" || complain "$run: exit code $?" "$(tail -n 2 "$folder/$run.err")"
    chain=$(member chain "$folder/$run.json")
    [[ $chain == ????????* ]] || complain "$run: no chain: \"$chain\""
    # NULL, and so an empty text, if no sample was compared.
    found=$(sqlite3 -readonly "$folder/$run/ledger.db" "SELECT sum(diff_bits <> 0 OR diff_at <> -1)
        FROM sample")
    [[ $found == 0 ]] || complain "$run: \"$found\" log-probabilities differ, expected 0"
}
