# launch.sh - starts runs on several ranks; tests source this file after expect.sh, in their folder.
#
# A test sets `invar` first. This file sets `mpi` to true if ranks can be processes.
# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
export NO_COLOR=1 # mpirun gives ranks a terminal
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
expect_logs=(out err)

mpi=false
if command -v mpirun >/dev/null && [ -e "$(dirname "$invar")/invar-mpi.so" ]; then
    mpi=true
fi

# train_on RANKS RECIPE FLAG ...: trains on RANKS threads, or with m before the number on processes;
# writes to out and err.
train_on() {
    local ranks=$1 recipe=$2
    shift 2
    if [[ $ranks = m* ]]; then
        timeout 300 mpirun --oversubscribe -n "${ranks#m}" "$invar" train "$recipe" --no-report "$@"
    else
        timeout 300 "$invar" train "$recipe" --no-report --ranks "$ranks" "$@"
    fi >out 2>err </dev/null
}

# ends CODE RANKS RECIPE FLAG ...: trains like train_on and checks the exit code.
ends() {
    local code=$1 rc=0
    shift
    checks=$((checks + 1))
    train_on "$@" || rc=$?
    ((rc == code)) || complain "$*: exit code $rc, expected $code:" "$(<out)" "$(<err)"
}

# newest RUN: prints the folder of its last checkpoint.
newest() {
    printf '%s/checkpoints/iter_%07d' "$1" "$(<"$1/checkpoints/latest_checkpointed_iteration.txt")"
}

# equal A B: compares the chains and the newest checkpoints, which may differ in the run's uuid
# only.
equal() {
    expect 0 'identical: ' diff "$1" "$2"
    expect 0 'clean' ledger verify "$2"
    holds diff -rq -x state.json -x hashes.xxh "$(newest "$1")" "$(newest "$2")"
    holds diff <(grep -v uuid "$(newest "$1")/state.json") \
        <(grep -v uuid "$(newest "$2")/state.json")
}
