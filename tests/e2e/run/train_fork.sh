#!/usr/bin/env bash
# train_fork.sh INVAR FOLDER - a run that continues from a checkpoint of another run.
#
# A fork that changes nothing has the chain of an uninterrupted run, on any number of ranks.
# Control: a fork that changes a key has another chain. Both record their parent. Impossible forks
# are rejected before anything is written.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"

tiny_recipe 4 >tiny.ini
sed 's/^num-rollout.*/num-rollout = 8/' tiny.ini >more.ini

# chain RUN: prints the chain of its last step.
chain() { "$invar" ledger ls "$1" --json | sed -n 's/.*"chain": "\([0-9a-f]*\)".*/\1/p'; }

# content RUN: prints the digests of its files, without those that a reader of the ledger creates.
content() { find "$1" -type f ! -name 'ledger.db-*' -exec md5sum {} + | sort; }

expect 0 'chain' train tiny.ini --run old --save-interval 1 --no-report
before=$(content old)
expect 0 'chain' train more.ini --run whole --no-report

# ---- nothing changed: the chain of the uninterrupted run ---------------------------------------
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

# ---- another learning rate: another chain ------------------------------------------------------
expect 0 'forked from run' train more.ini --fork old/checkpoints --run other --lr 0.01 --no-report
holds [ "$(chain other)" != "$(chain whole)" ]
expect 1 'different: first at step 4' diff other whole
expect 0 'after step 3' ledger show other
holds [ "$("$invar" ledger ls other --json | sed -n 's/.*"parent": "\([0-9a-f]*\)".*/\1/p')" = \
    "$(sqlite3 -readonly old/ledger.db 'SELECT uuid FROM run')" ]
# The message that rejects resuming with another rate names the command that forks.
forks='invar train more.ini --fork old --run old-fork --lr 0.01'
expect 2 "as a fork: $forks; or choose another folder" train more.ini --run old \
    --lr 0.01 --no-report
# shellcheck disable=SC2086 # several words
expect 0 'forked from run' ${forks#invar } --no-report
holds [ "$(chain old-fork)" = "$(chain other)" ]
expect 2 'as a fork: invar train more.ini --fork old --run old-fork-2 --lr 0.01; or' train \
    more.ini --run old --lr 0.01 --no-report
# If the run is finished, the printed command has a larger num-rollout, so that it works as printed.
forks='invar train tiny.ini --fork old --run old-fork-2 --num-rollout 8 --lr 0.01'
expect 2 "as a fork: $forks; or choose another folder" train tiny.ini --run old --lr 0.01 \
    --no-report
# shellcheck disable=SC2086 # several words
expect 0 'steps     4 executed, the last is 7' ${forks#invar } --no-report
# A fork of a fork.
expect 0 'forked from run' train more.ini --fork other --run third --num-rollout 9 --no-report
expect 0 'after step 7' ledger show third
# Checkpoints without weights: the fork starts from the initial weights of the parent, if these are
# known.
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
# The message does not advise commands that would be rejected.
expect 2 'is 9; choose another folder' train tiny.ini --run only --seed 9 "${only[@]}"
expect 2 'is false; choose another folder' train tiny.ini --run only --no-report
expect 129 'begins with others than' train more.ini --fork only --run no --seed 9 "${only[@]}"
expect 129 'has no weights' train more.ini --fork only --run no --no-report
cp -r only/checkpoints copy
expect 129 'no ledger beside it says' train more.ini --fork copy --run no "${only[@]}"
# The newest checkpoint of the parent is missing: the fork uses an older one, with a warning in its
# log.
expect 0 'chain' train tiny.ini --run aged --no-report
expect 0 'chain' train more.ini --run aged --load aged/checkpoints --save aged.more --no-report
rm -r aged.more
expect 0 'saved as aged.more/iter_0000007, and is not there; an older one is taken' train more.ini \
    --fork aged --run aged-fork --no-report
holds grep -q 'an older one is taken' aged-fork/train.log
holds [ "$(chain aged-fork)" = "$(chain whole)" ]
# A fork resumes with and without --fork, to the same bits.
expect 0 'chain' train more.ini --fork old --run halves --until 5 --no-report
expect 0 'resumed after step 5' train more.ini --fork old --run halves --until 6 --no-report
expect 0 'resumed after step 6' train more.ini --run halves --no-report
holds [ "$(chain halves)" = "$(chain whole)" ]
# On resuming, --fork must name the same parent and step as before; others are rejected.
expect 0 'chain' train tiny.ini --run stranger --seed 9 --no-report
for parent in "stranger" "old --fork-step 2"; do
    # shellcheck disable=SC2086 # an option
    expect 2 'leave out --fork to resume it' train more.ini --fork $parent --run halves --no-report
done
mkdir none
expect 2 '--fork needs the folder of a run' train more.ini --fork none --run halves --no-report
# If the newest own checkpoint cannot be determined, the fork does not start over and changes no
# file.
own=halves/checkpoints/latest_checkpointed_iteration.txt
mv "$own" latest
expect 2 'nothing says the newest' train more.ini --fork old --run halves --no-report
echo garbage >"$own"
content_before=$(content halves)
expect 2 'leave out --fork, and choose' train more.ini --fork old --run halves --no-report
holds [ "$content_before" = "$(content halves)" ]
mv latest "$own"
expect 0 'the run is finished' train more.ini --fork old --run halves --no-report
# The fork has no checkpoint of its own yet.
rm -r halves/checkpoints
expect 2 'start it again with --fork' train more.ini --run halves --num-rollout 9 --no-report
expect 0 'forked from run' train more.ini --fork old --run halves --num-rollout 9 --no-report
expect 0 'clean' ledger verify halves/ledger.db

# ---- impossible forks --------------------------------------------------------------------------
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
