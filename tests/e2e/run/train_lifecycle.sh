#!/usr/bin/env bash
# train_lifecycle.sh INVAR FOLDER - the life of a run: stopped, resumed, started over, moved.
#
# A signal ends a run in order: it saves a checkpoint, and its exit code and ledger name the signal.
# Started again, the run resumes, whatever stopped it, and arrives at the chain of an uninterrupted
# run. Checkpoints belong to one run: those of another run are rejected, and a run that is moved
# takes its checkpoints along. With INVAR_TEST_FULL=1 there are more signals, more spellings of
# folders, and more commands that change nothing.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
full=${INVAR_TEST_FULL:-}
expect_logs=(out err)

tiny_recipe 6 >tiny.ini

# steps RUN: prints the number of steps in its ledger.
steps() {
    local count
    count=$(sqlite3 -readonly "$1/ledger.db" 'SELECT count(DISTINCT step) FROM step' 2>/dev/null)
    echo "${count:-0}"
}

# begin RUN FLAG ...: starts an endless run in the background, sets `pid`, and waits until the run
# has two steps.
begin() {
    local run=$1 i
    "$invar" train tiny.ini --run "$run" --num-rollout 1000000 --no-report "${@:2}" >out 2>err &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        (($(steps "$run") >= 2)) && return
        sleep 0.1
    done
    complain "$run does not begin:" "$(<err)"
}

# expect_end CODE: waits for the background run and checks its exit code.
expect_end() {
    local rc=0
    wait "$pid" || rc=$?
    ((rc == $1)) || complain "exit code $rc, expected $1:" "$(<out)" "$(<err)"
}

# ---- signals -----------------------------------------------------------------------------------
expect 0 'chain' train tiny.ini --run whole --no-report --record-golden whole.golden
# SIGINT, SIGTERM and a limit of file sizes are also tested below.
cases=(HUP:143)
[[ ! $full ]] || cases+=(INT:130 TERM:143 XFSZ:153)
for case in "${cases[@]}"; do
    name=${case%:*} code=${case#*:}
    begin "s-$name" --golden whole.golden
    kill -s "$name" "$pid"
    expect_end "$code"
    holds grep -q "stopping after the current rollout, with a.*a second Ctrl-C ends at once" err
    holds grep -q "; stopped by SIG$name.*; start it again to continue" out
    holds grep -q "^golden    identical so far, " out
    holds [ "$("$invar" ledger ls "s-$name" --json | grep -c "\"state\": \"stopped\"")" = 1 ]
    holds [ "$(sqlite3 -readonly "s-$name/ledger.db" 'SELECT exit_code || reason FROM finish')" = \
        "${code}stopped" ]
    expect 0 "stopped, exit code $code" ledger show "s-$name"
    expect 0 '' ledger verify "s-$name/ledger.db"
done
# A run that ends at --until counts as finished, not as stopped.
expect 0 'golden    identical, 2 of 6 steps' train tiny.ini --run prefix --until 1 --no-report \
    --golden whole.golden
more expect 0 'finished 0' ledger ls prefix
# A golden is recorded only if the run reaches the end that was asked for.
begin unrecorded --record-golden stopped.golden
kill -INT "$pid"
expect_end 130
holds grep -q 'not recorded: the run was stopped' out
holds [ ! -e stopped.golden ]
# A second Ctrl-C ends the run at once, but not the copy of the first one that `timeout` sends.
begin twice
kill -INT "$pid"
kill -INT "$pid"
expect_end 130
holds grep -q 'stopped by SIGINT' out
sed 's/^\(rollout-batch\|task\)-size.*/\1-size = 65536/' tiny.ini >long.ini
"$invar" train long.ini --run long --no-report >out 2>err &
pid=$!
for ((i = 0; i < 300; i++)); do
    [[ $(sqlite3 -readonly long/ledger.db 'SELECT count(*) FROM run' 2>/dev/null) == 1 ]] && break
    sleep 0.1
done
sleep 0.3
kill -INT "$pid"
sleep 0.5
kill -INT "$pid"
expect_end 130
holds [ ! -s out ]
expect 0 'killed' ledger ls long
# A signal that the parent process ignores, as with nohup, stays ignored.
trap '' HUP
begin nohup
trap - HUP
kill -HUP "$pid"
now=$(steps nohup)
for ((i = 0; i < 300 && $(steps nohup) < now + 2; i++)); do
    sleep 0.1
done
kill -TERM "$pid"
expect_end 143
holds grep -q 'stopped by SIGTERM' out
step=$(sed -n 's/^steps .* the last is \([0-9]*\);.*/\1/p' out)
verbs=(watch)
[[ ! $full ]] || verbs+=(show)
for verb in "${verbs[@]}"; do
    expect 0 "; the command that began it resumes after step $step, its newest checkpoint" \
        ledger "$verb" nohup
done
expect 0 'stopped 143' ledger ls nohup
expect 0 'state      killed; it has no checkpoint to resume from' ledger show long
# A golden of another recipe is reported before the run begins.
"$invar" train tiny.ini --run early --seed 5 --golden whole.golden --no-report --until 0 >out 2>err
holds [ $? -eq 4 ]
holds grep -q 'the golden is of a run that was asked for something else' <(head -1 err)
# No run begins without the golden, or with one of another version.
printf '# invar golden 1\n# a\nidentity %032d\n0 %032d\n' 0 0 >old.golden
expect 4 'old.golden' train tiny.ini --run never --golden old.golden
expect 4 'there is no such file; --record-golden writes one' train tiny.ini --run never \
    --golden nowhere.golden
expect 2 'its folder does not exist' train tiny.ini --run never --record-golden nowhere/a.golden
holds [ ! -e never ]
# At a limit of file sizes, the run reports the limit in its message and exit code, and the ledger
# stays undamaged.
(
    ulimit -f 200
    exec "$invar" train tiny.ini --run limit --num-rollout 1000000 --no-report
) >out 2>err &
pid=$!
expect_end 153
holds grep -q 'a file has reached the size that is allowed (ulimit -f)' err
expect 0 '' ledger verify limit/ledger.db

# ---- resumed -------------------------------------------------------------------------------------
# expect_chain RUN: checks that the run has the chain of the uninterrupted run.
chain=$(sqlite3 -readonly whole/ledger.db 'SELECT hex(chain) FROM step ORDER BY step DESC LIMIT 1')
expect_chain() {
    checks=$((checks + 1))
    [[ $chain == ????????* ]] || complain "whole: no chain: \"$chain\""
    [[ $(sqlite3 -readonly "$1/ledger.db" "SELECT hex(s.chain) FROM timeline t JOIN step s
        USING(run, seg, step) WHERE step = 5") == "$chain" ]] || complain "$1: another chain"
    "$invar" ledger verify "$1/ledger.db" >look 2>&1 || complain "$1: $(<look)"
}
again=(train tiny.ini --no-report --run again)
expect 0 'steps     2 executed, the last is 1' "${again[@]}" --until 1
holds [ -s again/checkpoints/owner ]
more expect 0 'resumed after step 1 from again/checkpoints/iter_0000001' "${again[@]}" --until 3
expect 0 ' executed, the last is 5' "${again[@]}" --load again/checkpoints/ --threads 2
expect_chain again
# A finished run reports that it is finished and writes nothing.
state_of() {
    find "$1" -type f ! -name '*-lock' -exec cksum {} + | sort
}
before=$(state_of again)
finished='the run is finished: 6 rollouts are done, num-rollout is'
expect 0 "$finished 6; a larger one continues it, --fresh starts over" train tiny.ini --run again
more expect 0 "$finished 3; a larger one continues it" "${again[@]}" --num-rollout 3 \
    --trace again.json
more expect 0 'nothing is left to do: the run is at step 5, and was to end after step 2' \
    "${again[@]}" --num-rollout 9 --until 2
more expect 0 'golden    identical, 6 of 6 steps' "${again[@]}" --golden whole.golden
"$invar" "${again[@]}" >out 2>err
holds [ -z "$(grep 'resumed after' err)" ]
holds [ "$(state_of again)" = "$before" ]
more holds [ ! -e again.json ]
expect 0 'steps     1 executed, the last is 6' "${again[@]}" --num-rollout 7
more expect 0 'identical, 6 of 6 steps; 1 further step of the run was not compared' "${again[@]}" \
    --num-rollout 7 --golden whole.golden
# If the newest checkpoint is at an earlier step than the ledger, the run reports that step, every
# time.
longer=(train tiny.ini --no-report --run longer --save-interval 2)
expect 0 'the last is 5' "${longer[@]}"
rm -r longer/checkpoints/iter_0000005
echo 3 >longer/checkpoints/latest_checkpointed_iteration.txt
for ((i = 0; i < 1 + ${full:-0}; i++)); do
    expect 0 'steps     0 executed, the last is 3' "${longer[@]}" --num-rollout 4
done
expect 2 'its seed was 1234 and is 5; choose another folder with --run, or start over with' \
    "${again[@]}" --seed 5
expect 2 'its task-size was 8 and is 9; continue it with other keys as a fork: ' "${again[@]}" \
    --task-size 9
expect 2 'its data hash (prompt-data) was ' "${again[@]}" --prompt-data task:last
# The key check-logprobs belongs to the identity, and does not change the chain.
ledger_field() { sed -n "s/.*\"$2\": \"\([0-9a-f]*\)\".*/\1/p" "$1.ls"; }
for checks_logprobs in true false; do
    expect 0 'chain' train tiny.ini --no-report --run "logprobs-$checks_logprobs" \
        --num-rollout 1 --check-logprobs "$checks_logprobs"
    "$invar" ledger ls "logprobs-$checks_logprobs" --json >"logprobs-$checks_logprobs.ls"
done
holds [ -n "$(ledger_field logprobs-true chain)" ]
holds [ "$(ledger_field logprobs-true chain)" = "$(ledger_field logprobs-false chain)" ]
holds [ "$(ledger_field logprobs-true identity)" != "$(ledger_field logprobs-false identity)" ]
# Option --fresh: the old run is set aside and keeps all of its files.
before=$(cd again && find . -type f ! -name '*-shm' ! -name '*-wal' -exec cksum {} + | sort)
expect 0 'the old run is now again.1' "${again[@]}" --fresh --seed 5
more expect 0 ' again.1/checkpoints/iter_' ledger query restore-points again.1
holds [ "$(cd again.1 && find . -type f ! -name '*-shm' ! -name '*-wal' -exec cksum {} + |
    sort)" = "$before" ]
more expect 0 'the old run is now again.2' "${again[@]}" --fresh
more expect_chain again
expect 0 'steps     6 executed' train tiny.ini --no-report --run new --fresh
begin busy
expect 2 'has a writer: pid' train tiny.ini --no-report --run busy --fresh
expect 2 'it has a writer already: pid' train tiny.ini --no-report --run busy
kill -INT "$pid"
expect_end 130
expect 129 'lies outside of the run' train tiny.ini --no-report --run new --fresh \
    --ledger whole/ledger.db
# A run without checkpoints starts again at step 0. Keys that would have no effect are rejected.
none=(train tiny.ini --no-report --run none --save none)
expect 0 'steps     2 executed' "${none[@]}" --until 1
holds [ ! -e none/checkpoints ]
expect 0 'no checkpoint: the run starts again at step 0; its ledger has 2 steps' "${none[@]}"
expect_chain none
expect 129 "'save-interval' would be ignored" "${none[@]}" --save-interval 2
INVAR_SAVE=none more expect 0 'steps     6 executed' train tiny.ini --no-report --run variable
more holds [ ! -e variable/checkpoints ]
INVAR_SAVE=there expect 0 'steps     4 executed' train tiny.ini --no-report --run variable-2 \
    --until 3
holds [ -s there/owner ]
# The ledger records the checkpoint folder as a fact: a restart that does not name it is rejected,
# and a replay uses it.
flags=('')
[[ ! $full ]] || flags+=(--no-save-optim)
for flag in "${flags[@]}"; do
    # shellcheck disable=SC2086
    expect 2 'but the checkpoints of this run are in there: give --save there to continue there' \
        train tiny.ini --no-report --run variable-2 $flag
done
# Another folder, or none, does not start the run again either, and nothing is written to that
# folder.
saves=(mistyped)
[[ ! $full ]] || saves+=(none)
for save in "${saves[@]}"; do
    expect 2 "save = $save, but the checkpoints of this run are in there: " \
        train tiny.ini --no-report --run variable-2 --save "$save"
    expect 2 "save = $save, but the checkpoints of this run are in there: " \
        train tiny.ini --dry-run --run variable-2 --save "$save"
done
holds [ ! -e mistyped ]
holds [ "$(steps variable-2)" = 4 ]
expect 0 'resumed after step 3 from there/iter_' train tiny.ini --no-report --run variable-2 \
    --save there --until 4
expect 0 'after the checkpoint of step 3' replay variable-2 --step 4
INVAR_SAVE=there more expect 0 'steps     1 executed' train tiny.ini --no-report --run variable-2
more expect_chain variable-2
# The default folder under another spelling, or a folder that was removed, is no reason to reject
# the run.
expect 0 'steps     2 executed' train tiny.ini --no-report --run spelt --save spelt/checkpoints \
    --until 1
rm -r spelt/checkpoints
expect 0 'no checkpoint: the run starts again' train tiny.ini --no-report --run spelt
more expect_chain spelt
begin unsaved --save none
kill -INT "$pid"
expect_end 130
holds grep -q 'without a checkpoint (save = none)' err
holds grep -q 'nothing is saved (save = none)' out
mkdir none
expect 2 'load: none has no checkpoint; leave load empty' train tiny.ini --no-report --run l \
    --load none
holds [ ! -e l ]
expect 2 'load: nope: no such folder' train tiny.ini --no-report --run whole --fresh --load nope
expect 2 'has no checkpoint: it is the folder of a run, which keeps them in whole/checkpoints' \
    train tiny.ini --no-report --run l --load whole
expect 2 'continues after step 5, but l/ledger.db has no run' train tiny.ini --no-report --run l \
    --load whole/checkpoints
expect 2 'belongs to another run' train tiny.ini --no-report --run l --seed 5 \
    --load whole/checkpoints
holds [ ! -e l -a ! -e whole.1 ]
for name in x/y ../zz . ..; do
    expect 129 "name: \"$name\" is no name of a folder; a path is given with --run" \
        train tiny.ini --no-report --name $name
done
expect 0 'steps     6 executed' train tiny.ini --no-report --run l --load l-saved --save l-saved/ \
    --name x/y
# The checkpoint of a finished run has another chain than the ledger.
cp -r l swapped && cp -r l-saved swapped/checkpoints && rm -f swapped/checkpoints/owner
last=swapped/checkpoints/iter_0000005
state=$last/state.json
sed -i 's/"chain": "./&0/; s/\("chain": "[0-9a-f]\{32\}\)[0-9a-f]/\1/' "$state"
sum=$(xxhsum -H128 "$state" 2>/dev/null)
sed -i "s/^[0-9a-f]*  state.json/${sum%% *}  state.json/" $last/hashes.xxh
expect 1 "is not the checkpoint's" train tiny.ini --no-report --run swapped
expect 0 'steps     1 executed' train tiny.ini --no-report --run small --no-save-optim --until 0
expect 2 'was written with no-save-optim' train tiny.ini --no-report --run small

# ---- checkpoints belong to one run -------------------------------------------------------------
# The test train.kill covers runs that are killed at any moment and restarted by the same command.
expect 0 'steps     2 executed' train tiny.ini --no-report --run a --save shared --until 1
more expect 2 'shared holds checkpoints of run ' train tiny.ini --dry-run --run b --save shared
expect 2 'of the same recipe in another run folder; give this run a folder of its own with save' \
    train tiny.ini --no-report --run b --save shared
more expect 2 'shared holds checkpoints of run ' train tiny.ini --no-report --run b --save shared \
    --seed 5
holds [ ! -e b ]
expect 0 'steps     4 executed' train tiny.ini --no-report --run a --save shared
expect_chain a
# A fresh start is rejected before anything is moved if its checkpoints are outside of the run's
# folder.
saves=(a/../shared)
[[ ! $full ]] || saves+=(shared ./shared/)
for save in "${saves[@]}"; do
    expect 2 "--fresh sets aside only what is in the run's folder; give this run a folder of" \
        train tiny.ini --no-report --run a/ --save "$save" --fresh
done
INVAR_SAVE=shared expect 2 'shared holds checkpoints of run ' train tiny.ini --no-report --run a \
    --fresh
holds [ ! -e a.1 ]
more expect_chain a
# Checkpoints inside the run's folder are moved with it, under any spelling; a folder without an
# owner is free.
cp -r shared scratch && mkdir free
saves=(new/linked free)
[[ ! $full ]] || saves=(new/checkpoints "$PWD/new/checkpoints/" new/linked free)
for save in "${saves[@]}"; do
    ln -s ../scratch new/linked
    expect 0 'the old run is now new.' train tiny.ini --no-report --run new --save "$save" --fresh
    holds [ -s "$save/owner" ]
done
# Older versions left no owner file: the checkpoints themselves name their run.
rm shared/owner
expect 2 'shared holds checkpoints of run ' train tiny.ini --no-report --run b --save shared
expect 0 'the run is finished' train tiny.ini --no-report --run a --save shared
holds [ -s shared/owner ]
# A damaged owner file, or a link instead of it, is rejected.
echo rubbish >shared/owner
expect 129 'shared/owner' train tiny.ini --no-report --run a --save shared
rm shared/owner && ln -s ../tiny.ini shared/owner
expect 2 'shared/owner: cannot be opened' train tiny.ini --no-report --run a --save shared
rm shared/owner
# A copy of a run has the same name, but not the lock.
begin live --save both
cp -r live copy && rm -f copy/ledger.db-lock
expect 2 'both: a run writes its checkpoints there now' train tiny.ini --no-report --run copy \
    --num-rollout 1000000 --save both
kill -INT "$pid"
expect_end 130

# ---- moved while it runs -----------------------------------------------------------------------
mkdir place
begin place/old --save-interval 1
mv place/old place/moved
now=$(steps place/moved)
for ((i = 0; i < 300 && $(steps place/moved) < now + 3; i++)); do
    sleep 0.1
done
kill -INT "$pid"
expect_end 130
holds [ ! -e place/old ]
holds grep -q 'the run was moved, and continues in .*/place/moved' err
holds grep -q '^run       .*/place/moved ' out
last=$(($(steps place/moved) - 1))
holds [ "$(cat place/moved/checkpoints/latest_checkpointed_iteration.txt)" = "$last" ]
expect 0 "resumed after step $last " train tiny.ini --run place/moved --no-report --num-rollout \
    $((last + 2))
expect_chain place/moved
more expect 0 identical replay place/moved --step "$last"
# A folder that was removed is not created again.
begin place/gone --save-interval 1
kill -STOP "$pid"
rm -r place/gone
kill -CONT "$pid"
expect_end 2
holds [ ! -e place/gone ]
holds grep -q 'gone: the folder was removed while it was written to; what was in it is gone' err

# The ledger alone is removed.
begin place/bare --save-interval 1
kill -STOP "$pid"
rm place/bare/ledger.db
kill -CONT "$pid"
expect_end 2
holds grep -q 'ledger.db: the file was removed while it was written; what was in it is gone' err

# ---- messages that a run prints once -----------------------------------------------------------
# All rewards are alike; some prompts are left out.
"$invar" train tiny.ini --run flat --rm-type math --no-report --until 1 >out 2>err
holds grep -q 'all rewards of rollout 0 are 0: its advantages are 0, and nothing is learnt' err
holds [ "$(grep -c 'all rewards of rollout' err)" = 1 ]
long=(--prompt-data task:copy --rm-type exact --no-report --rollout-max-prompt-len)
expect 0 'prompt-data: 2 of 8 prompts are too long and are left out (rollout-max-prompt-len)' \
    train tiny.ini --run dropped "${long[@]}" 4 --until 0
holds [ "$(sqlite3 -readonly dropped/ledger.db \
    "SELECT value FROM fact WHERE scope = 'data' AND key = 'prompts-left-out'")" = 2 ]
expect 129 'no prompt is left: all 8 are longer than allowed (2 tokens, rollout-max-prompt-len)' \
    train tiny.ini --run empty "${long[@]}" 2
holds [ ! -e empty ]
# The file of the plug-in has changed, and no recorded reply is needed: a warning is enough.
# The plug-ins are in Bash, which starts much faster than Python. A reward is the last token.
cat >judge.sh <<'PLUGIN'
read -r _
echo '{"invar":1,"name":"judge","kinds":["reward"]}'
while read -r request; do
    [[ ! -e mortal ]] || for name in dies-{0..4}{,-again}; do
        [[ $request == *"\"step\":${name//[^0-9]/},"* && -e $name ]] || continue
        rm "$name"
        kill -ABRT $$
    done
    [[ $request =~ \"id\":\ ?([0-9]+) ]] && id=${BASH_REMATCH[1]} rewards=
    while [[ $request =~ \"tokens\":\ ?\[([0-9]+,\ ?)*([0-9]+)\](.*) ]]; do
        rewards+=,${BASH_REMATCH[2]} request=${BASH_REMATCH[3]}
    done
    echo "{\"id\":$id,\"rewards\":[${rewards#,}]}"
done
PLUGIN
sed '/^rm-type/d' tiny.ini >judged.ini
judged=(train judged.ini --no-report --run judged --custom-rm-path "bash judge.sh")
expect 0 'steps     2 executed' "${judged[@]}" --until 1
expect 0 'steps     1 executed' "${judged[@]}" --until 2
holds [ "$(sqlite3 -readonly judged/ledger.db 'SELECT count(*) FROM event')" = 0 ]
echo '# another one' >>judge.sh
expect 0 'plug-in custom-rm-path: it has changed since step 2, hash ' "${judged[@]}"
holds [ "$(sqlite3 -readonly judged/ledger.db "SELECT count(*) FROM event, fact a, fact b
    WHERE level = 'warning' AND event.kind = 'plugin' AND a.scope = 'plugin' AND a.seg = 1
    AND b.scope = 'plugin' AND b.seg = 2 AND a.value <> b.value
    AND message LIKE '%hash ' || b.value || ', was ' || a.value || ';%'")" = 1 ]

# A plug-in that dies is restarted up to max-restarts times, and the chain does not change.
touch mortal
mortal=(train judged.ini --no-report --custom-rm-path "bash judge.sh" --until 3)
expect 0 'steps     4 executed' "${mortal[@]}" --run lives
touch dies-1 dies-3
expect 0 'plug-in custom-rm-path: it died and was started again' "${mortal[@]}" --run reborn \
    --max-restarts 2
expect 0 'identical' diff lives reborn
holds [ "$(sqlite3 -readonly reborn/ledger.db "SELECT group_concat(step || ' ' || kind) FROM event
    WHERE level = 'warning'")" = '1 plugin-restart,3 plugin-restart' ]
expect 0 'clean' ledger verify reborn
more expect 0 'identical' replay reborn --step 3 # a replay starts no plug-in
touch dies-1
expect 2 'custom-rm-path: it was killed by signal 6' "${mortal[@]}" --run dead
touch dies-1 dies-2
expect 2 'it was started again 1 times (max-restarts)' "${mortal[@]}" --run dead --max-restarts 1
more expect 0 'steps' "${mortal[@]}" --run dead
more expect 0 'identical' diff lives dead
# The ledger also records restarts in an evaluation after the last step, and in a step that fails.
# restarts RUN: prints the steps with a restart, and how often each plug-in was started again.
restarts() {
    sqlite3 -readonly "$1/ledger.db" "SELECT step || message FROM event
        WHERE kind = 'plugin-restart'" | sed 's/plug-in .* started again / /; s/ times,.*//'
}
touch dies-4
expect 0 'steps     4 executed' "${mortal[@]}" --run judged-last --max-restarts 1 \
    --eval-prompt-data 'm task:max' --eval-interval 4 --skip-eval-before-train
holds [ "$(restarts judged-last)" = '4 1' ]
touch dies-1 dies-1-again
expect 2 'it was started again 1 times (max-restarts)' "${mortal[@]}" --run dies-twice \
    --max-restarts 1
holds [ "$(restarts dies-twice)" = '1 1' ]

# ---- which weights are evaluated ---------------------------------------------------------------
mkdir eval && cp tiny.ini eval/tiny.ini
eval_of() {
    (cd eval && "$invar" eval tiny.ini --eval-prompt-data 'm task:max' --json "$@") >out 2>err
}
eval_of
holds grep -q '"from": "the initial ones (seed)"' out
holds [ ! -s err ]
(cd eval && "$invar" train tiny.ini --no-report) >out 2>err
eval_of
holds grep -q 'these are the initial weights; runs/tiny has trained ones: --run runs/tiny' err
first=$(grep '"weights"' out)
eval_of --run runs/tiny
holds grep -q '"from": "runs/tiny/checkpoints/iter_0000005"' out
holds grep -q '"rollout": 6' out
holds [ ! -s err ]
holds [ "$(grep '"weights"' out)" != "$first" ]
eval_of --run runs/tiny --load=
holds [ "$(grep '"weights"' out)" = "$first" ]
set=(--eval-prompt-data 'm task:max')
# Settings of one evaluation set give the same result as the same settings in the recipe.
own=(--n-samples-per-eval-prompt 3 --eval-temperature 0.5 --eval-rm-type exact)
"$invar" eval tiny.ini "${set[@]}" "${own[@]}" --json >plain 2>err
printf '%s\n' '[m]' 'path = task:max' 'n-samples-per-eval-prompt = 3' 'temperature = 0.5' \
    'rm-type = exact' >sets.ini
"$invar" eval tiny.ini --eval-config sets.ini --eval-temperature 0 --json >out 2>err
holds grep -q '"eval/m-pass@2"' plain
holds diff plain out
# Another value of such a setting changes the identity of the run.
expect 0 'steps' train tiny.ini --run sets --no-report --until 1 --eval-config sets.ini \
    --eval-interval 1
sed -i 's/0.5/0.6/' sets.ini
expect 2 'eval' train tiny.ini --run sets --no-report --eval-config sets.ini --eval-interval 1
# The evaluation file is read once: a hook changes it during the run, and all evaluations stay the
# same.
cat >edits.sh <<'END'
read -r _
echo '{"invar":1,"name":"edits","kinds":["hook"]}'
while read -r _; do
    echo '[m]' >sets.ini
    echo '{"id":0}'
done
END
evaluated() { sqlite3 -readonly "$1/ledger.db" 'SELECT step, dataset, value FROM evaluation'; }
evaluates=(--eval-config sets.ini --eval-interval 1 --until 2)
expect 0 'steps' train tiny.ini --run still --no-report "${evaluates[@]}"
expect 0 'steps' train tiny.ini --run edited --no-report "${evaluates[@]}" \
    --custom-before-train-step-hook-path 'bash edits.sh'
holds [ "$(<sets.ini)" = '[m]' ]
holds [ -n "$(evaluated still)" ]
holds [ "$(evaluated edited)" = "$(evaluated still)" ]
expect 2 'run: none has no checkpoint; train it, or name weights with --load' eval tiny.ini \
    --run none "${set[@]}"
expect 2 'run: nope: no such folder' eval tiny.ini --run nope "${set[@]}"
expect 2 'a run: it is the folder of a run, which keeps them in whole/checkpoints' \
    eval tiny.ini "${set[@]}" --load whole
expect 129 'name weights of the same model' eval tiny.ini "${set[@]}" --run whole \
    --hidden-size 32

# ---- files and hints that a run leaves ---------------------------------------------------------
# The commands that a run prints work as they stand, and no file of SQLite is left next to a ledger.
files=(elsewhere.db)
[[ ! $full ]] || files+=('')
for file in "${files[@]}"; do
    expect 0 'next:' train tiny.ini --run 'a run' --fresh --ledger "$file"
    "$invar" train tiny.ini --run 'a run' --no-report --ledger "$file" >out 2>err
    sed -n '/^next:/,$p' out | tail -n +2 >next
    holds [ "$(wc -l <next)" = 4 ]
    rm -f 'a run/report.html'
    while read -r line; do
        holds bash -c "$line >look 2>&1"
    done <next
    # a finished run does not write the report again, but the printed command does
    holds [ -s 'a run/report.html' ]
    holds [ -z "$(find 'a run' . -maxdepth 1 -name '*-wal' -o -maxdepth 1 -name '*-shm')" ]
done
# A run resumes after a failed import of another run into its ledger, wherever the ledger is.
for into in whole/ledger.db elsewhere.db; do
    expect 2 "is the ledger of a run, which could not be resumed with others in it; import both" \
        ledger import a --into "$into"
done
more expect 0 'the run is finished' train tiny.ini --no-report --run whole
# The run was killed while the ledger was created.
mkdir begun && touch begun/ledger.db begun/ledger.db-lock
expect 2 'was killed before its first entry; nothing is lost: start the run again' \
    ledger verify begun
more expect 0 'steps     6 executed' train tiny.ini --no-report --run begun
more expect_chain begun
mkdir half && python3 - half/ledger.db <<'HALF'
"""A database whose first transaction was cut off: the pages are there, and so is the journal."""
import os
import shutil
import sqlite3
import sys

path = sys.argv[1]
sql = sqlite3.connect(path, isolation_level=None)
sql.execute("PRAGMA cache_size = 1")
sql.execute("PRAGMA cache_spill = 1")
sql.execute("BEGIN")
sql.execute("CREATE TABLE filler(x)")
sql.executemany("INSERT INTO filler VALUES(?)", [("x" * 3000,)] * 50)
for name in ("", "-journal"):
    shutil.copy(path + name, path + name + ".kept")
sql.execute("ROLLBACK")
sql.close()
for name in ("", "-journal"):
    os.replace(path + name + ".kept", path + name)
open(path + "-lock", "w").close()
HALF
expect 2 'was killed before its first entry; nothing is lost: start the run again' \
    ledger verify half
expect 0 'steps     6 executed' train tiny.ini --no-report --run half
expect_chain half

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
