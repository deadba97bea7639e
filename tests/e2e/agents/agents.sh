#!/usr/bin/env bash
# agents.sh INVAR FOLDER - samples that agents generate over HTTP.
#
# Recorded sessions become samples by the rule of branches (checked by branches.py). The noise of a
# call depends on its prompt and number, not on the order of arrival, so every execution has one
# chain; an extra call changes it. The record replays without an agent. A kill loses no finished
# session. A failing agent ends the run, or is worth 0. With INVAR_TEST_FULL=1 another seed, further
# agents, templates, replays and damaged records are tested, and the examples also run with the
# package openai of PyPI.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
# shellcheck source=tests/e2e/agents/game.sh
source tests/e2e/agents/game.sh

# ---- sessions become samples --------------------------------------------------------------------
ends 0 1 play.ini --run one --record-golden one.golden --agent-concurrency 4
holds grep -q 'largest difference between rollout and training: 0$' out
holds [ "$(column one "SELECT max(diff) FROM samples")" = 0.0 ]
holds [ "$(column one "SELECT count(*) FROM reward_parts WHERE name = 'found'")" = 16 ]
python3 "$here/branches.py" one/ledger.db >said || complain "$(<said)"
holds grep -q '^16 samples, [1-9]' said
holds [ "$(column one "SELECT count(*) FROM event WHERE kind = 'agent-branch'")" = 4 ]
holds [ "$(column one "SELECT max(value) >= 5 FROM metrics
    WHERE name = 'rollout/branches/max'")" = 1 ]

# The agent rewrites its history: this starts a branch and records an event; the first branch is
# trained on, too.
ends 0 1 play.ini --run forgets --custom-agent-path 'python3 agent.py forget'
holds grep -q 'largest difference between rollout and training: 0$' out
python3 "$here/branches.py" forgets/ledger.db >said || complain "$(<said)"
holds grep -q '^16 samples, 16 of several' said
holds grep -q 'goes on with no earlier call: it agrees with one in its first 1 tokens' <(
    column forgets "SELECT message FROM event WHERE kind = 'agent-branch' LIMIT 1")

# Chats: the template strips earlier responses, like the templates of reasoning models.
cat >chat.ini <<RECIPE
[model]
hf-checkpoint = $root/tests/oracle/folders/4.57.6/qwen3-fp16
dtype = fp32
[rollout]
prompt-data = $folder/data.jsonl
input-key = prompt
label-key = label
apply-chat-template = true
chat-template-path = $folder/strip.jinja
num-rollout = 2
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 8
rollout-max-context-len = 64
custom-agent-path = python3 agent.py chat
[engine]
numerics = ieee
RECIPE
printf '{"prompt": [{"role": "user", "content": "%s"}], "label": "7"}\n' a b >data.jsonl
echo "{% for m in messages if m.role == 'user' %}<{{ m.content }}>{% endfor %}" >strip.jinja
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >keep.jinja
ends 0 1 chat.ini --run chat
holds grep -q 'largest difference between rollout and training: 0$' out
python3 "$here/branches.py" chat/ledger.db >said || complain "$(<said)"
holds grep -q '^8 samples, 8 of several' said
expect 0 identical replay chat --from 0 --step 1
if [[ ${INVAR_TEST_FULL:-} ]]; then
    ends 0 1 chat.ini --run keeps --chat-template-path keep.jinja
    python3 "$here/branches.py" keeps/ledger.db >said || complain "$(<said)"
    holds grep -q 'largest difference between rollout and training: 0$' out
    expect 0 identical replay keeps --step 1
fi

# ---- one chain ----------------------------------------------------------------------------------
# same NAME FLAG ...: checks that the flags change neither the bits nor the sessions.
same() {
    local name=$1
    shift
    ends 0 1 play.ini --run "$name" --golden one.golden "$@"
    holds grep -q '^golden    identical, 4 of 4' out
    expect 0 'identical' diff one "$name"
}
same free --agent-concurrency 1 --threads 3 --micro-batch-size 3 --rollout-concurrency 3 \
    --page-size 3 --chunked-prefill-size 2 --disable-prefix-sharing --recompute-granularity full \
    --log-probs-chunk-size 5
more same crowd --agent-concurrency 16 --use-dynamic-batch-size --max-tokens-per-gpu 8
# Controls: one more call of one sample, and another seed.
ends 4 1 play.ini --run other --golden one.golden --custom-agent-path 'python3 agent.py other'
more ends 4 1 play.ini --run seed --golden one.golden --rollout-seed 7

# ---- repeated -----------------------------------------------------------------------------------
mv agent.py away.py
more expect 0 identical replay one --step 3
expect 0 identical replay one --from 0 --step 3 --threads 2
ends 0 1 play.ini --run recorded --golden one.golden --agent-record one
holds grep -q '^golden    identical, 4 of 4' out
ends 2 1 play.ini --run too-long --num-rollout 5 --agent-record one/ledger.db
holds grep -q 'agent-record: it has no sessions of step 4' err
# Limits that the record exceeds, and records of another agent or of none.
ends 2 1 play.ini --run few-branches --agent-record one --agent-max-branches 1
holds grep -q 'branches, more than 1 (agent-max-branches)' err
ends 2 1 play.ini --run few-calls --agent-record one --agent-max-calls 1
holds grep -q 'it has more than 1 calls (agent-max-calls)' err
expect 129 "another agent's: there custom-agent-path is 'python3 agent.py forget'" train play.ini \
    --run others --no-report --agent-record forgets
tiny_recipe 1 >alone.ini
ends 0 1 alone.ini --run alone
expect 129 'agent-record: no agent led that run' train play.ini --run of-none --no-report \
    --agent-record alone
# The weights sample other tokens than the record has.
ends 1 1 play.ini --run mismatch --agent-record one --rollout-temperature 0.5
holds grep -q 'is in agent-record with token .*; it is of other weights' err
mv away.py agent.py
# Killed in its third rollout, after half of the sessions: these are not run again. The loop waits
# for two steps first, because the second rollout has two finished sessions at some moment, too.
rm -f asked
touch stuck
"$invar" train play.ini --run killed --no-report --agent-concurrency 4 >out 2>err &
victim=$!
for ((i = 0; i < 600; i++)); do
    [ "$(column killed 'SELECT count(*) FROM step' 2>/dev/null)" = 2 ] &&
        [ "$(grep -c '"end"' killed/sessions.jsonl 2>/dev/null)" = 2 ] && break
    sleep 0.1
done
kill -9 "$victim"
wait "$victim" 2>/dev/null
rm -f stuck asked
ends 0 1 play.ini --run killed --golden one.golden
holds grep -q '^golden    identical, 4 of 4' out
holds [ "$(sort -u asked | tr '\n' ' ')" = '2 10 2 8 3 12 3 13 3 14 3 15 ' ]
expect 0 'identical' diff one killed
# A finished session is reused, even though the agent would respond differently now.
touch stuck
rm -f asked
"$invar" train play.ini --run random --no-report --save-interval 1 --agent-concurrency 4 \
    --custom-agent-path 'python3 agent.py random' >out 2>err &
victim=$!
for ((i = 0; i < 600; i++)); do
    [ "$(column random 'SELECT count(*) FROM step' 2>/dev/null)" = 2 ] &&
        [ "$(grep -c '"end"' random/sessions.jsonl 2>/dev/null)" = 2 ] && break
    sleep 0.1
done
kill -9 "$victim"
wait "$victim" 2>/dev/null
rm -f stuck
grep -o '"sample":9,"end":.*' random/sessions.jsonl | grep -o '0\.[0-9]*' >before
cp -r random damaged
cp -r random changed
echo '# another agent' >>agent.py
ends 2 1 play.ini --run changed --custom-agent-path 'python3 agent.py random'
holds grep -q 'sessions.jsonl: the agent has changed (hash .*) and 2 sessions of rollout 2' err
rm changed/sessions.jsonl
more ends 0 1 play.ini --run changed --custom-agent-path 'python3 agent.py random'
sed -i '$d' agent.py
ends 0 1 play.ini --run random --custom-agent-path 'python3 agent.py random'
holds [ "$(column random "SELECT reward = $(<before) FROM samples
    WHERE step = 2 AND idx = 1")" = 1 ]
more expect 0 identical replay random --from 0 --step 3
cp -r damaged summed
sed -i '2s/"prompt":\[12/"prompt":[11/' summed/sessions.jsonl
ends 2 1 play.ini --run summed --custom-agent-path 'python3 agent.py random'
holds grep -q 'sessions.jsonl:2: the sum does not follow from this line.*; remove the file' err
# Version 1 has no sums: errors are detected later, or not at all.
sed -i 's/,"sum":"[0-9a-f]*"}$/}/; 1s/"invar_sessions":2/"invar_sessions":1/
    1s/,"uuid":"[0-9a-f]*"//' damaged/sessions.jsonl
cp -r damaged forged
sed -i 's/"response":\[[0-9]*/"response":[0/' forged/sessions.jsonl
ends 1 1 play.ini --run forged --custom-agent-path 'python3 agent.py random'
holds grep -q 'is in sessions.jsonl with token 0 .*: remove it' err
sed -i '2s/"prompt":\[12/"prompt":[99/' damaged/sessions.jsonl
more ends 2 1 play.ini --run damaged --custom-agent-path 'python3 agent.py random'
more holds grep -q 'sessions.jsonl:2: "prompt" of a call has no token at 0; remove the file' err

# Commands ab, bisect and ci compare runs by a record; without one they would compare agents.
mkdir cases
cp play.ini cases/play.ini
expect 129 'set agent-record = RUN' ci record cases/play.ini --program "$invar"
expect 129 'set agent-record = RUN' ab --a "$invar" --b "$invar" play.ini --seeds 1 --work work
sed '/^custom-agent-path/a agent-record =' play.ini >cases/play.ini
expect 129 'set agent-record = RUN' ci record cases/play.ini --program "$invar"
sed -i 's/^agent-record.*/agent-record = one/' cases/play.ini
expect 129 'set agent-record = RUN' ab --a "$invar" --b "$invar" cases/play.ini --seeds 1 \
    --work work --agent-record ''
expect 0 'the same bits' ci record cases/play.ini --program "$invar"
expect 0 'same' ci check cases/play.ini --program "$invar" --chaos 1
more expect 0 'identical' ab --a "$invar" --b "$invar" cases/play.ini --seeds 1 --work work
holds diff <(grep '^[0-9]' one.golden) <(grep '^[0-9]' cases/play.golden)

# ---- rejected settings, and failing agents ------------------------------------------------------
ends 0 1 play.ini --run probe --custom-agent-path 'python3 agent.py probe' --agent-max-calls 4 \
    --num-rollout 1
ends 0 1 play.ini --run branchy --custom-agent-path 'python3 agent.py branchy' \
    --agent-max-branches 2 --num-rollout 1
# wrong MOOD TEXT FLAG ...: checks that the run ends with exit code 2 and TEXT.
wrong() {
    local mood=$1 text=$2
    shift 2
    expect 2 "$text" train play.ini --run "bad-$mood" --no-report \
        --custom-agent-path "python3 agent.py $mood" "$@"
}
wrong mute 'ends without a "reward", and nothing else gives one (rm-type = none)'
more wrong dies 'it ended with exit code 1: agent.py: it dies'
wrong refuses 'sample 2: it refuses: no such tool'
wrong hangs 'no reply within 1 s (plugin-timeout)' --plugin-timeout 1
wrong rubbish 'sample'
more wrong mixed 'sample'
more wrong odd 'sample'
more wrong vast ': a reward is not finite'
# Agents in flight are ended with the run, even without a timeout.
wrong alone 'sample 2: it refuses: no such tool' --plugin-timeout 0 --agent-concurrency 4
# Rejected sessions are not recorded: a corrected agent runs the sample again.
# shellcheck disable=SC2016 # the script expands it
echo 'exec python3 agent.py $(<mood)' >moody.sh
mended=(train play.ini --run mended --no-report --custom-agent-path 'bash moody.sh')
echo mute >mood
expect 2 'ends without a "reward"' "${mended[@]}"
echo play >mood
expect 0 'largest difference between rollout and training: 0' "${mended[@]}"
# If the run fails because an agent cannot be started, the other agents are not recorded as failed.
# shellcheck disable=SC2016 # the script expands it
echo 'if mkdir strange 2>/dev/null; then sleep 1; exec python3 agent.py stranger; fi
exec python3 agent.py $(<mood)' >some.sh
failing=(train play.ini --run failing --no-report --custom-agent-path 'bash some.sh'
    --agent-failure zero --agent-concurrency 4 --num-rollout 2)
echo sleeps >mood
expect 129 '"agent" does not offer the kind "agent"' "${failing[@]}"
holds [ "$(wc -l <failing/sessions.jsonl)" = 1 ]
echo play >mood
expect 0 'largest difference between rollout and training: 0' "${failing[@]}"
more expect 0 '' "${failing[@]/failing/calm}"
more expect 0 'identical' diff calm failing
holds [ "$(column failing "SELECT count(*) FROM event WHERE kind = 'agent-failure'")" = 0 ]
expect 2 'cannot start ./nobody' train play.ini --run bad-nobody --no-report \
    --custom-agent-path ./nobody --agent-failure zero
more expect 129 '"agent" does not offer the kind "agent"' train play.ini --run bad-stranger \
    --no-report --custom-agent-path 'python3 agent.py stranger'
expect 129 'leads samples of training alone' serve play.ini
expect 0 'reward' train play.ini --run judged --no-report --rm-type overlap --num-rollout 1 \
    --custom-agent-path 'python3 agent.py mute'
# If agent-failure = zero, a failing agent gets the reward 0 and the run continues; an agent may
# also make no call.
moods=(dies nothing)
[[ ! ${INVAR_TEST_FULL:-} ]] || moods+=(refuses)
for mood in "${moods[@]}"; do
    expect 0 'largest difference between rollout and training: 0' train play.ini \
        --run "zero-$mood" --no-report --custom-agent-path "python3 agent.py $mood" \
        --agent-failure zero --num-rollout 2
done
holds grep -q '1 of 4 agents have failed.*sample 2, ' <(
    column zero-dies "SELECT message FROM event WHERE kind = 'agent-failure' AND step = 0")
holds [ "$(column zero-dies 'SELECT reward FROM samples WHERE step = 0 AND idx = 2')" = 0.0 ]
holds [ "$(column zero-nothing "SELECT DISTINCT finish || reward FROM samples")" = abort0.25 ]
expect 0 identical replay zero-dies --step 1
more expect 0 'reward' train play.ini --run zero-part --no-report --agent-failure zero \
    --num-rollout 1 --reward-key quick --custom-agent-path 'python3 agent.py dies'
more holds [ "$(more column zero-part 'SELECT reward FROM samples
    WHERE step = 0 AND idx = 2')" = 0.0 ]
expect 129 'has no such part' train play.ini \
    --run bad-part --no-report --reward-key slow
more expect 0 identical replay zero-nothing --step 1

# ---- the examples -------------------------------------------------------------------------------
cp "$root"/engine/ext/example/agent*.py .
printf '#!/bin/sh\nexec python3 agent.py\n' >lead
chmod +x lead
ends 0 1 play.ini --run plain --custom-agent-path ./lead --record-golden plain.golden
if [[ ${INVAR_TEST_FULL:-} = 1 ]]; then
    # shellcheck source=tests/oracle/venv.sh
    source "$root/tests/oracle/venv.sh"
    venv "$folder" openai==3.51.0
    # Another client that makes the same calls gets the same bits.
    printf '#!/bin/sh\nexec %s agent_openai.py\n' "$python" >lead
    ends 0 1 play.ini --run client --custom-agent-path ./lead --golden plain.golden
    expect 0 'identical' replay client --from 0 --step 3
fi

((failed)) || echo "$checks checks"
exit "$failed"
