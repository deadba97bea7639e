#!/usr/bin/env bash
# train_fork.sh INVAR FOLDER - a run that goes on from a checkpoint of another one.
#
# A fork that changes nothing has the chain of the run that nobody forked, on any number of ranks;
# one that changes a key does not, and both know their parent. What cannot be is refused before
# anything is written.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"

tiny_recipe 4 >tiny.ini
sed 's/^num-rollout.*/num-rollout = 8/' tiny.ini >more.ini

# chain RUN: where it ended.
chain() { "$invar" ledger ls "$1" --json | sed -n 's/.*"chain": "\([0-9a-f]*\)".*/\1/p'; }

# content RUN: its files, without those that a reader of the ledger makes.
content() { find "$1" -type f ! -name 'ledger.db-*' -exec md5sum {} + | sort; }

expect 0 'chain' train tiny.ini --run old --save-interval 1 --no-report
before=$(content old)
expect 0 'chain' train more.ini --run whole --no-report

# ---- nothing changed: the chain of the run that was not forked ---------------------------------
expect 0 'forked from run' train more.ini --fork old --run same --no-report
expect 2 "--fork: nope: no such folder ($PWD/nope); 'invar ledger ls' lists the runs below" train \
    more.ini --fork nope --run never
holds [ ! -e never ]
holds [ "$(chain same)" = "$(chain whole)" ]
expect 0 'forked from run' train more.ini --fork old --fork-step 1 --run early --ranks 2 --no-report
holds [ "$(chain early)" = "$(chain whole)" ]
expect 0 'identical: 4 steps' diff same whole
expect 0 'identical' replay same --step 4
expect 0 'identical' replay early --step 5
expect 0 'clean' ledger verify same/ledger.db

# ---- another learning rate: another run --------------------------------------------------------
expect 0 'forked from run' train more.ini --fork old/checkpoints --run other --lr 0.01 --no-report
holds [ "$(chain other)" != "$(chain whole)" ]
expect 1 'different: first at step 4' diff other whole
expect 0 'after step 3' ledger show other
holds [ "$("$invar" ledger ls other --json | sed -n 's/.*"parent": "\([0-9a-f]*\)".*/\1/p')" = \
    "$(sqlite3 -readonly old/ledger.db 'SELECT uuid FROM run')" ]
# the refusal to resume with another rate names the command that forks
forks='invar train more.ini --fork old --run old-fork --lr 0.01'
expect 2 "as a fork: $forks; or choose another folder" train more.ini --run old \
    --lr 0.01 --no-report
# shellcheck disable=SC2086 # several words
expect 0 'forked from run' ${forks#invar } --no-report
holds [ "$(chain old-fork)" = "$(chain other)" ]
expect 2 'as a fork: invar train more.ini --fork old --run old-fork-2 --lr 0.01; or' train \
    more.ini --run old --lr 0.01 --no-report
# that of a run which is finished counts on: it works as it is printed
forks='invar train tiny.ini --fork old --run old-fork-2 --num-rollout 8 --lr 0.01'
expect 2 "as a fork: $forks; or choose another folder" train tiny.ini --run old --lr 0.01 \
    --no-report
# shellcheck disable=SC2086 # several words
expect 0 'steps     4 executed, the last is 7' ${forks#invar } --no-report
# a fork of a fork
expect 0 'forked from run' train more.ini --fork other --run third --num-rollout 9 --no-report
expect 0 'after step 7' ledger show third
# without weights in its checkpoints: with those that the parent began with, if these are known
only=(--debug-rollout-only true --no-report)
expect 0 'chain' train tiny.ini --run only "${only[@]}"
expect 0 'chain' train more.ini --run only-whole "${only[@]}"
for ranks in 1 2; do
    expect 0 'forked from run' train more.ini --fork only --run "only-$ranks" --ranks "$ranks" \
        "${only[@]}"
    holds [ "$(chain "only-$ranks")" = "$(chain only-whole)" ]
done
holds [ -e only-1/checkpoints/iter_0000007/model.safetensors ]
expect 0 'resumed after step 7' train more.ini --run only-1 --num-rollout 9 "${only[@]}"
forks='invar train tiny.ini --fork only --run only-fork --num-rollout 8 --rollout-temperature 0.5'
expect 2 "as a fork: $forks --debug-rollout-only true; or" train tiny.ini --run only \
    --rollout-temperature 0.5 "${only[@]}"
# shellcheck disable=SC2086 # words of a command
expect 0 'forked from run' ${forks#invar } "${only[@]}"
# commands that would be refused are not advised
expect 2 'is 9; choose another folder' train tiny.ini --run only --seed 9 "${only[@]}"
expect 2 'is false; choose another folder' train tiny.ini --run only --no-report
expect 129 'begins with others than' train more.ini --fork only --run no --seed 9 "${only[@]}"
expect 129 'has no weights' train more.ini --fork only --run no --no-report
cp -r only/checkpoints copy
expect 129 'no ledger beside it says' train more.ini --fork copy --run no "${only[@]}"
# the newest checkpoint of the parent is gone: an older one is taken, with a warning that stays
expect 0 'chain' train tiny.ini --run aged --no-report
expect 0 'chain' train more.ini --run aged --load aged/checkpoints --save aged.more --no-report
rm -r aged.more
expect 0 'saved as aged.more/iter_0000007, and is not there; an older one is taken' train more.ini \
    --fork aged --run aged-fork --no-report
holds grep -q 'an older one is taken' aged-fork/train.log
holds [ "$(chain aged-fork)" = "$(chain whole)" ]
# it resumes with --fork and without, and to the same bits
expect 0 'chain' train more.ini --fork old --run halves --until 5 --no-report
expect 0 'resumed after step 5' train more.ini --fork old --run halves --until 6 --no-report
expect 0 'resumed after step 6' train more.ini --run halves --no-report
holds [ "$(chain halves)" = "$(chain whole)" ]
# --fork names the parent also then: another one, or another step of it, is refused
expect 0 'chain' train tiny.ini --run stranger --seed 9 --no-report
for parent in "stranger" "old --fork-step 2"; do
    # shellcheck disable=SC2086 # an option
    expect 2 'leave out --fork to resume it' train more.ini --fork $parent --run halves --no-report
done
mkdir none
expect 2 '--fork needs the folder of a run' train more.ini --fork none --run halves --no-report
# checkpoints that do not say which is the newest are not begun again over
own=halves/checkpoints/latest_checkpointed_iteration.txt
mv "$own" latest
expect 2 'nothing says the newest' train more.ini --fork old --run halves --no-report
echo garbage >"$own"
kept=$(content halves)
expect 2 'leave out --fork, and choose' train more.ini --fork old --run halves --no-report
holds [ "$kept" = "$(content halves)" ]
mv latest "$own"
expect 0 'the run is finished' train more.ini --fork old --run halves --no-report
# stopped before it had a checkpoint of its own
rm -r halves/checkpoints
expect 2 'start it again with --fork' train more.ini --run halves --num-rollout 9 --no-report
expect 0 'forked from run' train more.ini --fork old --run halves --num-rollout 9 --no-report
expect 0 'clean' ledger verify halves/ledger.db

# ---- what cannot be ----------------------------------------------------------------------------
expect 129 'num-rollout, which counts them too, is 4' train tiny.ini --fork old --run new
expect 2 'there is no such checkpoint' train more.ini --fork old --fork-step 9 --run new
expect 2 '--fork needs the folder of a run' train more.ini --fork none --run new
expect 129 'it needs --fork' train more.ini --fork-step 2 --run new
expect 129 'leave one of them out' train more.ini --fork old --load old/checkpoints --run new
expect 129 'with --fork-step' train more.ini --fork old --ckpt-step 1 --run new
expect 129 "'skip-damaged' is about" train more.ini --fork old --skip-damaged true --run new
expect 129 'a fork needs checkpoints of its own' train more.ini --fork old --save none --run new
expect 129 'name weights of the same model' train more.ini --fork old --run new --hidden-size 32
expect 129 'a fork keeps that number' train more.ini --fork old --run new --num-steps-per-rollout 2
expect 2 'is not a fork' train more.ini --fork old --run whole
for golden in --golden --record-golden; do
    expect 129 "leave out $golden" train more.ini --fork old --run new $golden fork.golden
done
holds [ ! -e new ]
holds [ "$before" = "$(content old)" ]

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
