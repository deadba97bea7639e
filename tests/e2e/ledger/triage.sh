#!/usr/bin/env bash
# triage.sh INVAR FOLDER - invar triage finds each planted fault in trained runs.
#
# Each fault is found while the run trains and afterwards. Control: healthy runs have no finding.
# The healthy recipes train just long enough that each rule has the steps that it needs; with
# INVAR_TEST_FULL=1 they train to their end.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
recipes=$PWD/recipes tree=$PWD
# shellcheck source=tests/e2e/expect.sh
source tests/e2e/expect.sh
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2

# judge.py REWARD: a plug-in that gives all samples the same reward.
cat >judge.py <<'PYTHON'
import json
import sys

print(json.dumps({"invar": 1, "name": "equal", "kinds": ["reward"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "samples" in asked:
        rewards = [float(sys.argv[1])] * len(asked["samples"])
        print(json.dumps({"id": asked["id"], "rewards": rewards}), flush=True)
PYTHON

# train NAME RECIPE [--key value ...]: trains; warnings go to NAME.err.
train() {
    local name=$1
    shift
    "$invar" train "$@" --run "$name" --no-report >"$name.out" 2>"$name.err" ||
        complain "$name: exit code $?" "$(cat "$name.err")"
}

# finds RUN RULE TEXT: checks that the rule finds a fault, and that the run has warned of it while
# it trained.
finds() {
    expect 1 "$2: " triage "$1"
    expect 1 "$3" triage "$1"
    holds grep -q "warning: step [0-9]*: $2: " "$1.err"
    holds test "$(column "$1" "SELECT count(*) FROM event WHERE kind = 'triage'
        AND level = 'warning' AND message LIKE '$2: %'")" -eq 1
    expect 0 'evidence' ledger query "triage-$2" --run "$1"
}

# ---- faults --------------------------------------------------------------------------------------
tiny_recipe 12 | sed '/^rm-type/d' >silent.ini
train silent silent.ini --custom-rm-path 'python3 judge.py 0'
finds silent zero-signal 'each of the 2 groups had one reward; the mean is 0'
finds silent grad-norm 'it is 0 for 3 steps'
train happy silent.ini --custom-rm-path 'python3 judge.py 1'
finds happy zero-signal 'the mean is 1'

# This learning rate is too large: the policy becomes certain of something that is not rewarded.
small=(--rollout-batch-size 4 --n-samples-per-prompt 4) rollouts=20
[[ ! ${INVAR_TEST_FULL:-} ]] || small=() rollouts=40
train loose "$recipes/bf16.ini" --lr 1 --lr-decay-style constant --num-rollout $rollouts \
    "${small[@]}"
finds loose entropy-collapse 'at most it was'

# A step was much too large, and the next rollout fails.
tiny_recipe 30 >nan.ini
expect 2 'logits that are not finite' train nan.ini --lr 1000 --run nan --no-report
expect 1 'not-finite: ' triage nan
expect 1 'logits that are not finite' triage nan
expect 1 'exit code 2: rollout: draw 0' triage nan
expect 6 'train with --debug-stats true' ledger query nan-birth nan
# Statistics let the event name the tensor, and the suggested query finds it.
expect 2 'the first point that is not finite' train nan.ini --lr 1000 --run nan-stats --no-report \
    --debug-stats true --debug-determinism full
expect 1 'ledger query nan-birth --run nan-stats' triage nan-stats
expect 0 'nans' ledger query nan-birth nan-stats
# A failure before the first step is found, too.
expect 2 'plug-in' train silent.ini --run early --no-report --custom-rm-path 'python3 judge.py none'
expect 1 'failure: ' triage early
expect 1 '0 steps' triage early

# A run that is killed, and resumed.
tiny_recipe 100000 >long.ini
for checkpoint in 1 2; do
    "$invar" train long.ini --run killed --no-report --save-interval 2 >killed.out 2>killed.err &
    pid=$!
    until [[ $(column killed "SELECT count(DISTINCT seg) FROM checkpoint" 2>/dev/null) == \
        "$checkpoint" ]]; do
        kill -0 $pid || exit 2
    done
    holds test -z "$("$invar" triage killed | grep '^killed: ')"
    kill -KILL $pid
    wait $pid 2>/dev/null
done
expect 1 'killed: Is there no record' triage killed
expect 1 "segment 1 has no end: its last step is $(column killed 'SELECT max(step) FROM step')" \
    triage killed
expect 1 'the newest checkpoint is that of step ' triage killed

# A copy without samples gives the same finding, and has no replies of plug-ins.
expect 0 written ledger backup silent --out copy.db --keep-last 0
expect 1 'zero-signal: ' triage copy.db
expect 1 'ledger query metric-summary' triage copy.db
holds test "$(column silent 'SELECT count(*) > 0 FROM reply')" -eq 1
holds test "$(sqlite3 -readonly copy.db 'SELECT count(*) FROM reply')" -eq 0
expect 0 'replies of plug-ins' help keep-samples

# ---- healthy runs --------------------------------------------------------------------------------
# Rules need up to 10 steps, and the one with the longest window needs a past of as many. FP8 takes
# two steps per rollout.
for recipe in bf16:30:4 fp8:6:8 int4:12:4 lora:12:4 moe:12:4; do
    IFS=: read -r recipe rollouts batch <<<"$recipe"
    small=(--num-rollout "$rollouts" --rollout-batch-size "$batch" --n-samples-per-prompt 4)
    [[ ! ${INVAR_TEST_FULL:-} ]] || small=()
    train "$recipe" "$recipes/$recipe.ini" "${small[@]}"
    expect 0 'no finding' triage "$recipe"
    lacks warning "$recipe.err"
done

# A plug-in inserts tokens that the model did not sample and that are not compared.
guess="python3 $tree/engine/ext/example/guess.py"
small=(--rollout-batch-size 4 --n-samples-per-prompt 4)
[[ ! ${INVAR_TEST_FULL:-} ]] || small=()
train guess "$recipes/guess.ini" --num-rollout 6 --custom-generate-function-path "$guess" \
    "${small[@]}"
expect 0 'no finding' triage guess
# Supervised runs have no rewards, and PPO needs no groups as a baseline.
tiny_recipe 12 | sed '/^rm-type/d; /^n-samples/d; /^rollout-max-response/d' >answers.ini
train answers answers.ini --loss-type sft_loss
expect 0 'no finding' triage answers
train alone silent.ini --custom-rm-path 'python3 judge.py 1' --advantage-estimator ppo \
    --n-samples-per-prompt 1 --rollout-batch-size 4
expect 0 'no finding' triage alone

# ---- the command ---------------------------------------------------------------------------------
"$invar" triage silent --json >silent.json
holds test $? -eq 1
holds python3 - <<'PYTHON'
import json
found = json.load(open("silent.json"))
assert found["steps"] == 12 and found["rules"] >= 11, found
rules = {f["rule"]: f for f in found["findings"]}
assert rules["zero-signal"]["step"] == 4, rules
assert "first-step-kl" in found["without_data"], found  # there is no reference
assert not {"zero-signal", "grad-norm"} & set(found["without_data"]), found
assert rules["zero-signal"]["next"] == "ledger query zero-signal --run silent", rules
PYTHON
expect 129 'RUN' triage
expect 2 "no run 'nowhere'" triage nowhere
# The suggested commands are quoted for a shell, and name the ledger that was given.
cp -r silent 'a b;c'
expect 1 "next       $invar ledger query zero-signal --run 'a b;c'" triage 'a b;c'
expect 1 "zero-signal --run 1 --ledger silent/ledger.db" triage 1 --ledger silent/ledger.db
# The query of a rule shows every step, also with other limits.
holds test "$("$invar" ledger query triage-zero-signal --run silent --csv | wc -l)" -eq 9
holds test "$("$invar" ledger query triage-zero-signal --run silent --steps 12 --csv | wc -l)" -eq 2
exit "$failed"
