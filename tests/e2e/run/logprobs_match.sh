#!/usr/bin/env bash
# logprobs_match.sh INVAR FOLDER RECIPE [FLAG ...] - training has the log-probabilities of the
# rollout.
#
# Runs RECIPE: in every step, no token of any sample may have another log-probability in training
# than in the rollout. That others would be noticed: tests/property/engine/audit.c. FLAGs go to the
# run (--device cuda).
#
# Exit code: 0 all tokens agree, 1 not so.
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

# of WHAT: a whole number about the samples
of() {
    "$invar" ledger sql "SELECT CAST($1 AS INTEGER) FROM sample" "$run" --csv | sed 1d | tr -d '"\r'
}

steps=$(of "count(DISTINCT step)") tokens=$(of "sum(tokens - prompt_tokens)")
differ=$(of "total(diff_bits <> 0 OR rollout_logp <> train_logp)")
echo "$steps steps, $(of "count(*)") samples, $tokens tokens: $differ samples differ"
((steps > 0 && tokens > 0 && differ == 0))
