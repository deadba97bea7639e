#!/usr/bin/env bash
# statements.sh INVAR FOLDER - what a run prints and records is true of that run.
#
# Checks the model that was loaded (not the keys of the recipe), the loss of supervised runs, the
# name of a run, and that values which were not measured appear nowhere.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
e2e=$PWD/tests/e2e
# shellcheck source=tests/e2e/expect.sh
source tests/e2e/expect.sh
rm -rf "$folder"
mkdir -p "$folder/runs" && cd "$folder" || exit 2

# train NAME RECIPE [--key value ...]: trains; the output goes to NAME.out and NAME.err.
train() {
    local name=$1
    shift
    "$invar" train "$@" --run "$name" >"$name.out" 2>"$name.err" ||
        complain "$name: exit code $?" "$(cat "$name.err")"
}

# ---- supervised runs: there is no reward, and no rollout to compare with -------------------------
tiny_recipe 3 | sed '/^rm-type/d; /^n-samples/d; /^rollout-max-response/d' >answers.ini
train answers answers.ini --loss-type sft_loss
holds grep -q '^loss  *[0-9.]* at first, [0-9.]* at last$' answers.out
holds grep -q ' loss [0-9.]*  len ' answers.err
holds grep -q ' loss [0-9.]*  len ' answers/train.log
for place in answers.out answers.err answers/train.log; do
    lacks 'reward|logp|log-probs' "$place"
done
expect 0 'next: ' ledger export answers --csv answers.csv
holds grep -q 'train/loss' answers.csv
lacks 'raw_reward|logp_diff|rollout_log_probs|zero_std' answers.csv
expect 0 'clean' ledger verify answers
expect 6 'the run has no rewards' ledger query zero-signal --run answers
expect 6 'has no samples whose log-probs' ledger query logprob-gap --run answers
"$invar" train answers.ini --loss-type sft_loss --run again --json >answers.json 2>answers.err ||
    complain "again: exit code $?" "$(<answers.err)"
holds test "$(member first_reward answers.json)" = null
holds test "$(member worst_diff answers.json)" = null
holds grep -qx '[0-9.]*[0-9]' <(member last_loss answers.json)

# An evaluation without a reward rule has no reward either; with a rule it has one.
eval=(--eval-prompt-data 'max task:max' --eval-interval 1 --eval-max-response-len 2)
train unjudged answers.ini --loss-type sft_loss --debug-rollout-print-every 1 "${eval[@]}"
train judged answers.ini --loss-type sft_loss --eval-rm-type exact "${eval[@]}"
expect 0 'eval/max/response_len/mean' ledger show unjudged
expect 0 'eval/max-pass@1' ledger show judged
expect 0 'eval/max ' ledger query eval-history judged
expect 0 'next: ' ledger export unjudged --csv unjudged.csv
"$invar" eval answers.ini --run unjudged --loss-type sft_loss "${eval[@]}" --json >unjudged.json
"$invar" ledger show unjudged --step 2 --json >step.json
"$invar" ledger query eval-history unjudged >history.txt
for place in unjudged.csv unjudged.json history.txt; do
    holds grep -q 'eval/max-truncated_ratio' "$place"
    lacks 'eval/max"|eval/max |pass@' "$place"
done
lacks reward unjudged.err
holds test "$(column unjudged 'SELECT count(*) FROM samples
    WHERE coalesce(reward, advantage) IS NULL')" = 6
holds python3 -c 'import json; step = json.load(open("step.json"))
assert all(s["reward"] is s["advantage"] is s["diff"] is None for s in step["samples"]), step'

# ---- the name of a run is that of its folder -----------------------------------------------------
train runs/other answers.ini --loss-type sft_loss
expect 0 '"name": "other"' ledger ls runs/other --json
expect 0 'name       other' ledger show runs/other
holds grep -q '^run       runs/other (other)$' runs/other.out
holds grep -q '"label":"other"' runs/other/report.html
train kept runs/other/recipe.ini # the recipe names another folder and run
expect 0 'name       kept' ledger show kept
train renamed answers.ini --loss-type sft_loss --name mine/too
expect 0 'name       mine/too' ledger show renamed

# ---- the suggested next command finds something --------------------------------------------------
holds grep -q 'ledger query metric-summary --run runs/other$' runs/other.out
lacks worst-tokens runs/other.out
expect 0 'train/loss' ledger query metric-summary --run runs/other

# ---- the model that was loaded, not the keys of the recipe ---------------------------------------
"$e2e/run/replay_files.py" files
tiny_recipe 1 >make.ini
train made make.ini --model-type llama --vocab-size 264 --num-layers 2 --save-hf 'hf-{rollout_id}' \
    --save-interval 1 --max-position-embeddings 2048
cp files/hf/tokenizer* hf-0
sed -e '/^num-layers\|^hidden-size\|^ffn-\|^num-att\|^max-pos\|^task-size/d' \
    -e 's/^dtype/hf-checkpoint = hf-0\ndtype/' \
    -e 's/task:max/files\/data.jsonl@[0:8]/' -e 's/^rm-type.*/rm-type = f1\nlabel-key = label/' \
    -e 's/^rollout-max-response-len.*/rollout-max-response-len = 3/' make.ini >hf.ini
train loaded hf.ini
holds test "$(column loaded "SELECT value FROM identity WHERE key = 'model-type'")" = qwen3
weights=$(column loaded "SELECT value FROM identity WHERE key = 'weights hash'")
expect 0 'model      llama, 2 layers, hidden size 16, 7888 parameters' ledger show loaded
expect 0 "weights    $weights" ledger show loaded
expect 0 '"family": "llama"' ledger show loaded --json
expect 0 '"parameters": 7888' ledger ls loaded --json
holds grep -q '"model":{"family":"llama","layers":2,"hidden_size":16,"parameters":7888,' \
    loaded/report.html

# ---- a suspicion names what was measured, and a command to check each possible cause -------------
expect 1 'the mean log-prob of the tokens that the model itself drew is -5.5' triage loaded
expect 1 ', at temperature 1, without a chat template' triage loaded
expect 1 "cause?     weights: excluded if" triage loaded
expect 1 "             $invar generate --hf-checkpoint hf-0 --prompt" triage loaded
"$invar" triage loaded --json >triage.json
holds python3 - "$invar" <<'PYTHON'
import json
import shlex
import subprocess
import sys
[finding] = [f for f in json.load(open("triage.json"))["findings"] if f["rule"] == "template"]
causes = [one["cause"].split(":")[0] for one in finding["causes"]]
assert causes == ["weights", "tokenizer", "chat template", "temperature", "length limit"], causes
for one in finding["causes"]:
    done = subprocess.run([sys.argv[1], *shlex.split(one["check"])], capture_output=True, text=True)
    assert done.returncode == 0, (one, done.stderr)
PYTHON
# The check of the temperature uses the temperature of the run: it can exclude the cause.
train hot hf.ini --rollout-temperature 1.5
for case in loaded:1 hot:1.5; do
    "$invar" triage "${case%:*}" --json >triage.json
    holds python3 - "$invar" "${case#*:}" <<'PYTHON'
import json
import shlex
import subprocess
import sys
[finding] = [f for f in json.load(open("triage.json"))["findings"] if f["rule"] == "template"]
[check] = [c["check"] for c in finding["causes"] if c["cause"].startswith("temperature:")]
done = subprocess.run([sys.argv[1], *shlex.split(check), "--json"], capture_output=True, text=True)
assert f'"{sys.argv[2]}"' in done.stdout, (check, done.stdout, done.stderr)
PYTHON
done
holds test "$(column loaded "SELECT count(*) FROM event WHERE kind = 'triage' AND
    message LIKE 'template: the mean log-prob of %; this may mean: weights, tokenizer, %'")" -eq 1
holds grep -q "may mean: weights.* 'invar triage' says how to find out" loaded.err
exit "$failed"
