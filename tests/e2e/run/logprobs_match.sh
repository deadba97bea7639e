#!/usr/bin/env bash
# logprobs_match.sh INVAR FOLDER RECIPE [FLAG ...] - training and rollout have bit-equal log-probs.
#
# Trains RECIPE with the FLAGs, such as --device cuda: in every step, each token of each sample must
# have the same log-prob in training as in the rollout. Negative control:
# tests/property/engine/audit.c checks that a differing log-prob is detected.
#
# Exit code: 0 if all tokens agree, else 1.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2 recipe=$3
shift 3
unset INVAR_LEDGER
rm -rf "$folder"
mkdir -p "$folder"
run=$folder/run
if ! "$invar" train "$recipe" --run "$run" --save none --no-report "$@" \
    >"$run.out" 2>"$run.err"; then
    tail -n 3 "$run.err" >&2
    exit 1
fi

# sample_count SQL: prints an integer that the SQL expression computes over all samples.
sample_count() {
    "$invar" ledger sql "SELECT CAST($1 AS INTEGER) FROM sample" "$run" --csv | sed 1d | tr -d '"\r'
}

steps=$(sample_count "count(DISTINCT step)") tokens=$(sample_count "sum(tokens - prompt_tokens)")
differ=$(sample_count "total(diff_bits <> 0 OR rollout_logp <> train_logp)")
echo "$steps steps, $(sample_count "count(*)") samples, $tokens tokens: $differ samples differ"
((steps > 0 && tokens > 0 && differ == 0))
