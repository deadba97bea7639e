#!/usr/bin/env bash
# train_life.sh INVAR FOLDER - the life of a run: stopped, started again, begun anew, moved.
#
# A signal ends a run in order: saved, with an exit code and a ledger that say so.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
unset INVAR_LEDGER INVAR_SAVE
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"

cat >tiny.ini <<'RECIPE'
[model]
dtype = fp32
num-layers = 1
hidden-size = 16
ffn-hidden-size = 16
num-attention-heads = 1
max-position-embeddings = 16
[rollout]
prompt-data = task:max
task-size = 8
num-rollout = 6
rollout-batch-size = 2
n-samples-per-prompt = 2
rollout-max-response-len = 2
rm-type = overlap
[perf]
threads = 1
[engine]
numerics = ieee
RECIPE

# holds WORD ...: the command succeeds.
holds() {
    checks=$((checks + 1))
    "$@" || complain "not so: $*" "$(cat out err)"
}

# steps RUN: how many are in its ledger.
steps() {
    local count
    count=$(sqlite3 -readonly "$1/ledger.db" 'SELECT count(DISTINCT step) FROM step' 2>/dev/null)
    echo "${count:-0}"
}

# begin RUN FLAG ...: an endless run in the background, `pid`, that has two steps.
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

# end_of CODE: the background's exit code.
end_of() {
    local rc=0
    wait "$pid" || rc=$?
    ((rc == $1)) || complain "exit code $rc, expected $1:" "$(<out)" "$(<err)"
}

# ---- signals -----------------------------------------------------------------------------------
expect 0 'chain' train tiny.ini --run whole --no-report --record-golden whole.golden
for case in INT:130 TERM:143 HUP:143 XFSZ:153; do
    name=${case%:*} code=${case#*:}
    begin "s-$name" --golden whole.golden
    kill -s "$name" "$pid"
    end_of "$code"
    holds grep -q "stopping after the current rollout.*a second Ctrl-C ends at once" err
    holds grep -q "; stopped by SIG$name" out
    holds grep -q "^golden    identical so far, " out
    holds [ "$("$invar" ledger ls "s-$name" --json | grep -c "\"state\": \"stopped\"")" = 1 ]
    holds [ "$(sqlite3 -readonly "s-$name/ledger.db" 'SELECT exit_code || reason FROM finish')" = \
        "${code}stopped" ]
    expect 0 "stopped, exit code $code" ledger show "s-$name"
    expect 0 '' ledger verify "s-$name/ledger.db"
done
# what was asked for is no stop
expect 0 'golden    identical, 2 of 6 steps' train tiny.ini --run prefix --until 1 --no-report \
    --golden whole.golden
expect 0 'finished 0' ledger ls prefix
# a golden is recorded of what was asked for
begin unrecorded --record-golden stopped.golden
kill -INT "$pid"
end_of 130
holds grep -q 'not recorded: the run was stopped' out
holds [ ! -e stopped.golden ]
# the second one ends at once, and not the copy of the first that `timeout` sends
begin twice
kill -INT "$pid"
kill -INT "$pid"
end_of 130
holds grep -q 'stopped by SIGINT' out
sed 's/^\(rollout-batch\|task\)-size.*/\1-size = 4096/' tiny.ini >long.ini
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
end_of 130
holds [ ! -s out ]
expect 0 'killed' ledger ls long
# ignored by who starts it, as nohup does
(
    trap '' HUP
    exec "$invar" train tiny.ini --run nohup --num-rollout 1000000 --no-report
) >out 2>err &
pid=$!
sleep 1
kill -HUP "$pid"
sleep 0.5
kill -TERM "$pid"
end_of 143
holds grep -q 'stopped by SIGTERM' out
# no golden, no run
expect 4 'there is no such file; --record-golden writes one' train tiny.ini --run never \
    --golden nowhere.golden
expect 2 'its folder is not there' train tiny.ini --run never --record-golden nowhere/a.golden
holds [ ! -e never ]
# a limit of file sizes: said, with its code; the ledger stays whole
(
    ulimit -f 200
    exec "$invar" train tiny.ini --run limit --num-rollout 1000000 --no-report
) >out 2>err &
pid=$!
end_of 153
holds grep -q 'a file has reached the size that is allowed (ulimit -f)' err
expect 0 '' ledger verify limit/ledger.db

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
