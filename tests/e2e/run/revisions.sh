#!/usr/bin/env bash
# revisions.sh INVAR REVISED FOLDER - runs that were computed under other revisions of ops.
#
# REVISED is invar with INVAR_TEST_REVISED (tests/device/other_op_revisions.c). Steps that were
# computed under other revisions are neither continued nor replayed; weights are read by every
# program.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
plain=$(readlink -f "$1") revised=$(readlink -f "$2") folder=$3
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"

tiny_recipe 2 >tiny.ini
printf '[ckpt]\nsave-interval = 1\n' >>tiny.ini

# use_program PROGRAM OPS: selects the program of the following lines; it revises the ops whose
# names begin with OPS.
use_program() {
    invar=$1
    export INVAR_TEST_REVISED=$2
}

prints() { find "$@" -type f ! -name 'ledger.db-*' -exec sha256sum {} + | sort; }

more=(train tiny.ini --no-report --num-rollout)

# ---- a run of this program, and a program with other revisions -----------------------------------

use_program "$plain" none
commit=$("$invar" version --json | sed -n 's/.*"commit": "\([0-9a-f]*\).*/\1/p')
expect 0 '' train tiny.ini --no-report --run a
expect 0 '' train tiny.ini --no-report --run b --seed 5
prints a >before
use_program "$revised" adamw
line='computed under other revisions of ops, so with other bits: adamw 1 (here 2); use a '
expect 2 "${line}program built from commit ${commit:-?}" "${more[@]}" 3 --run a
expect 2 ', or start anew with --fresh' "${more[@]}" 3 --run a
expect 2 ', or start anew with --fresh' "${more[@]}" 3 --run a --load a/checkpoints
expect 2 'adamw 1 (here 2); use a program built from commit' replay a --step 1
expect 2 'adamw 1 (here 2)' diff a b --replay
expect 2 'A cannot be executed again: exit code 2' diff a b --replay
# A key of the run no longer exists: the message about the revisions comes first.
cp -r a older
trigger=$(sqlite3 older/ledger.db "SELECT sql FROM sqlite_master WHERE name = 'identity_change'")
sqlite3 older/ledger.db "DROP TRIGGER identity_change;
    UPDATE identity SET key = 'samples-per-unit' WHERE key = 'unit-rows'; $trigger"
expect 2 'adamw 1 (here 2); use a program built from commit' replay older --step 1
use_program "$plain" none
expect 2 'a key that this program does not know: "samples-per-unit"' replay older --step 1
# The message lists as many ops as fit into a line.
use_program "$revised" ''
line=', attention.bwd 3 (here 4), attention.fwd 3 (here 4), attention.paged 3 (here 4), '
expect 2 "${line}dequantise 1 (here 2) and " replay a --step 0
prints a >after
holds cmp before after
# Commands that only read weights, or only copy, work.
expect 0 '' generate tiny.ini --load a/checkpoints --prompt '12' --rollout-max-response-len 1
expect 0 '' eval tiny.ini --load a/checkpoints --eval-prompt-data 'max task:max'
expect 0 '' pack a --step 1 --output step.tar
expect 2 'adamw 1 (here 2)' replay step.tar
# A new run can be continued and replayed by the revised program only.
expect 0 'the old run is now' train tiny.ini --no-report --run a --fresh
expect 0 'resumed after step 1' "${more[@]}" 3 --run a
expect 0 identical replay a --step 2
use_program "$plain" none
expect 2 'add 2 (here 1), attention.bwd 4 (here 3)' "${more[@]}" 4 --run a
expect 2 'use the program that recorded it, or start anew' "${more[@]}" 4 --run a
expect 2 'use the program that recorded it' replay a --step 2
expect 0 identical replay step.tar
expect 0 identical replay a.1 --step 1
expect 0 'resumed after step 1' "${more[@]}" 3 --run a.1

# ---- ops that only one of the programs has -------------------------------------------------------

# edit SQL: changes facts in the ledger of a.1; its triggers, which only allow additions, are off.
edit() {
    sqlite3 a.1/ledger.db '.dbconfig enable_trigger off' "$1" >output ||
        complain "$1:" "$(<output)"
}

edit "DELETE FROM fact WHERE scope = 'op' AND key = 'adamw'"
expect 0 identical replay a.1 --step 1
edit "UPDATE fact SET key = 'bygone' WHERE scope = 'op' AND key = 'add'"
expect 2 'bygone 1 (here none)' replay a.1 --step 1
edit "DELETE FROM fact WHERE scope = 'op'"
expect 0 'the ledger does not say which revisions' replay a.1 --step 1
expect 0 'the ledger does not say which revisions' "${more[@]}" 4 --run a.1

echo "$checks checks"
exit "$failed"
