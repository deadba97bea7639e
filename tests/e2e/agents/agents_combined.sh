#!/usr/bin/env bash
# agents_combined.sh INVAR FOLDER - agents with drafts, several ranks, evaluations and a critic.
#
# Drafts and ranks must not change a bit of agent samples. Evaluations run agents, or sample one
# response per prompt. With a critic, a branch is an episode. Impossible combinations are rejected.
# With INVAR_TEST_FULL=1, drafts of 1 token run, too.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
# shellcheck source=tests/e2e/agents/game.sh
source tests/e2e/agents/game.sh

# same REFERENCE NAME RANKS FLAG ...: checks that the run has the bits and sessions of REFERENCE.
same() {
    local as=$1 name=$2 ranks=$3
    shift 3
    ends 0 "$ranks" play.ini --run "$name" --golden "$as.golden" "$@"
    holds grep -q '^golden    identical, 4 of 4' out
    expect 0 'identical' diff "$as" "$name"
    expect 0 'clean' ledger verify "$name"
}

# ---- several ranks ------------------------------------------------------------------------------
ends 0 1 play.ini --run one --record-golden one.golden
same one two 2
same one three 3 --agent-concurrency 2 --micro-batch-size 1
if $mpi; then
    same one processes m2
fi
mv agent.py away.py
same one recorded-two 2 --agent-record two
expect 0 identical replay three --from 0 --step 3
mv away.py agent.py
# A group reward plug-in, and rules, for samples that the agent does not reward.
ends 0 1 play.ini --run judged --rm-type overlap --custom-agent-path 'python3 agent.py mute'
ends 0 2 play.ini --run judged-two --rm-type overlap --custom-agent-path 'python3 agent.py mute'
expect 0 'identical' diff judged judged-two
# A failing agent ends all ranks.
ends 2 2 play.ini --run dies --custom-agent-path 'python3 agent.py dies'
holds grep -q 'it ended with exit code 1: agent.py: it dies' err
ends 129 2 play.ini --run divided --tensor-model-parallel-size 2 --num-attention-heads 2
holds grep -q 'needs ranks that each have the whole model' err
ends 129 2 play.ini --run apart --rollout-num-gpus 1
holds grep -q 'needs ranks that each have the whole model' err

# ---- drafts -------------------------------------------------------------------------------------
long=(--custom-agent-path 'python3 agent.py long' --agent-max-branches 2)
ends 0 1 play.ini --run long "${long[@]}" --record-golden long.golden
holds grep -q 'largest difference between rollout and training: 0$' out
expect 0 '' convert long/checkpoints draft
drawn="SELECT sum(value) > 0 FROM gauge JOIN series USING (series)
    WHERE name = 'rollout/spec_accept_token_num'"
all_tokens=4
[[ ! ${INVAR_TEST_FULL:-} ]] || all_tokens='1 4'
for tokens in $all_tokens; do
    same long "ngram-$tokens" 1 "${long[@]}" --speculative-algorithm ngram \
        --speculative-num-draft-tokens "$tokens" --speculative-ngram-min-match-window-size 1
    holds [ "$(column "ngram-$tokens" "$drawn")" = 1 ]
    same long "draft-$tokens" 1 "${long[@]}" --speculative-algorithm draft \
        --speculative-num-draft-tokens "$tokens" --speculative-draft-model-path draft
    holds [ "$(column "draft-$tokens" "$drawn")" = 1 ]
done
same long guessed-again 1 "${long[@]}" --agent-record long --speculative-algorithm draft \
    --speculative-draft-model-path draft
holds [ "$(column guessed-again "$drawn")" = 1 ]
expect 0 identical replay ngram-4 --step 3

# ---- evaluations --------------------------------------------------------------------------------
held=(--eval-prompt-data 'held task:guess' --eval-interval 2 --eval-temperature 0.5)
results="SELECT step, name, value_bits FROM evaluation JOIN series USING (series) ORDER BY 1, 2"
rm -f examined
ends 0 1 play.ini --run held "${held[@]}" --record-golden held.golden
holds [ "$(sort -u examined | wc -l)" = 24 ]
holds [ -n "$(column held "$results")" ]
ends 0 2 play.ini --run held-two "${held[@]}" --agent-concurrency 3 --golden held.golden
holds grep -q '^golden    identical, 4 of 4' out
holds [ "$(column held "$results")" = "$(column held-two "$results")" ]
# Evaluations have their own settings; they are in no record, and a replay does not need them.
ends 0 1 play.ini --run cool "${held[@]}" --custom-agent-path 'python3 agent.py cool'
holds [ "$(column cool "SELECT DISTINCT value_bits = 0x3ff0000000000000
    FROM evaluation JOIN series USING (series) WHERE name = 'eval/held'")" = 1 ]
holds [ "$(column cool 'SELECT max(reward) FROM samples')" = 0.0 ]
holds [ "$(column cool 'SELECT count(*) FROM reply')" = 16 ]
expect 0 identical replay cool --from 0 --step 3
# The agent of an evaluation fails.
ends 2 1 play.ini --run held-dies "${held[@]}" --custom-agent-path 'python3 agent.py dies'
holds grep -q 'it ended with exit code 1: agent.py: it dies' err
ends 0 1 play.ini --run held-zero "${held[@]}" --custom-agent-path 'python3 agent.py dies' \
    --agent-failure zero
holds grep -q '^evaluation: 1 of 8 agents have failed' <(
    column held-zero "SELECT message FROM event WHERE kind = 'agent-failure' ORDER BY message DESC")
# No agents run in evaluations if there is a record.
rm -f examined
ends 0 1 play.ini --run held-again "${held[@]}" --agent-record held --golden held.golden
holds [ ! -e examined ]
holds [ -z "$(column held-again "$results")" ]
# One response per prompt, with another reward rule than the agent's.
ends 0 1 play.ini --run plain "${held[@]}" --eval-turns false --eval-rm-type overlap
holds [ ! -e examined ]
holds [ -n "$(column plain "$results")" ]
holds [ "$(column plain "$results")" != "$(column held "$results")" ]
expect 129 'nobody judges evaluations' train play.ini --run x "${held[@]}" --eval-turns false
expect 129 'agents lead evaluations of a training run alone' eval play.ini --run held "${held[@]}"
expect 0 'eval/held' eval play.ini --run plain "${held[@]}" --eval-turns false \
    --eval-rm-type overlap

# ---- a critic -----------------------------------------------------------------------------------
critic=(--advantage-estimator ppo --gamma 0.9 --lambd 0.8)
ends 0 1 play.ini --run critic "${critic[@]}" --record-golden critic.golden
holds grep -q 'largest difference between rollout and training: 0$' out
holds [ "$(column critic "SELECT max(value) > 1 FROM metrics
    WHERE name = 'rollout/branches/max'")" = 1 ]
ends 0 2 play.ini --run critic-two "${critic[@]}" --golden critic.golden --micro-batch-size 3
holds grep -q '^golden    identical, 4 of 4' out
expect 0 identical replay critic --from 0 --step 3

((failed)) || echo "$checks checks"
exit "$failed"
