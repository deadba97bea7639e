#!/usr/bin/env bash
# slurm.sh INVAR FOLDER - ranks that srun starts, under a Slurm of this machine alone.
#
# Runs on several ranks must have the chain of one rank, also after a signal and after a killed
# rank. Slurm's daemons (munged, slurmctld, slurmd) run in FOLDER and end with the test. They must
# be installed and are started by root; otherwise the test is skipped.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$(realpath -m "$2")
for program in munged slurmctld slurmd srun scancel; do
    command -v "$program" >/dev/null || {
        echo "skipped: there is no $program (apt-get install slurm-wlm)"
        exit 77
    }
done
((UID == 0)) || {
    echo "skipped: Slurm's daemons are started by root"
    exit 77
}
[ -e "$(dirname "$invar")/invar-mpi.so" ] || {
    echo "skipped: there is no invar-mpi.so"
    exit 77
}
export NO_COLOR=1
rm -rf "$folder"
here=$PWD/tests/e2e/ranks
mkdir -p "$folder"/{munge,state,spool,log} && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
expect_logs=(out err)

# ---- Slurm -------------------------------------------------------------------------------------
port=$((20000 + RANDOM % 10000)) host=$(hostname -s)
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
echo 'CgroupPlugin=cgroup/v1' >cgroup.conf
export SLURM_CONF=$folder/slurm.conf
chmod 700 munge && head -c 64 /dev/urandom >munge/key && chmod 600 munge/key

# shellcheck disable=SC2317 # called by the trap
end_daemons() {
    local file
    for file in slurmd.pid slurmctld.pid munge/pid; do
        [ ! -s "$folder/$file" ] || kill "$(<"$folder/$file")"
    done
}
trap end_daemons EXIT
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" \
    --seed-file="$folder/munge/seed" 2>err || complain "munged does not start:" "$(<err)"
for daemon in slurmctld slurmd; do
    $daemon -c >out 2>err || complain "$daemon does not start:" "$(<err)"
done
for ((i = 0; i < 100; i++)); do
    [ "$(sinfo -h -o %t 2>/dev/null)" != idle ] || break
    sleep 0.2
done
((i < 100)) || complain "the node does not get idle:" "$(tail -n 5 log/*)"

recipe=tiny.ini

# ends CODE SRUN-FLAG ... -- TRAIN-FLAG ...: trains under srun and checks the exit code.
ends() {
    local code=$1 rc=0 flags=()
    shift
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    shift
    checks=$((checks + 1))
    timeout 120 srun "${flags[@]}" "$invar" train "$recipe" --no-report "$@" \
        >out 2>err </dev/null || rc=$?
    ((rc == code)) || complain "srun ${flags[*]} ... $*: $rc, expected $code:" "$(<out)" "$(<err)"
}

# ---- ranks -------------------------------------------------------------------------------------
tiny_recipe 6 >tiny.ini
expect 0 'chain' train tiny.ini --run one --no-report --record-golden one.golden
for ranks in 1 2 4; do
    ends 0 --mpi=pmix -n "$ranks" -- --run "s$ranks" --golden one.golden
    holds grep -q '^golden    identical, 6 of 6' out
    expect 0 'identical: ' diff one "s$ranks"
done
checks=$((checks + 1))
timeout 120 srun --mpi=pmix -n 3 "$invar" doctor --ranks tiny.ini >out 2>err </dev/null ||
    complain "srun ... doctor --ranks: $?:" "$(<out)" "$(<err)"
holds grep -q '^ranks    3: processes, MPI' out
holds grep -q '^bytes    all arrived as they were sent' out
ends 0 -n 1 -- --run alone --golden one.golden
ends 129 -n 2 -- --run apart
holds grep -q 'tasks that do not know each other: give srun --mpi=pmix' err
holds [ ! -e apart ]

# ---- ranks that divide a model ----------------------------------------------------------------
recipe=$here/small.ini
tp=--tensor-model-parallel-size ep=--expert-model-parallel-size
pp=--pipeline-model-parallel-size vp=--num-virtual-stages-per-pipeline-rank
expect 0 'chain' train "$recipe" --run whole --no-report --record-golden whole.golden
for layout in "2 $tp 2" "2 $ep 2" "2 $pp 2 $vp 2" "4 $tp 2" "4 $tp 2 $ep 2" "8 $tp 2 $pp 2"; do
    read -r ranks flags <<<"$layout"
    # shellcheck disable=SC2086 # flags are words
    ends 0 --mpi=pmix -n "$ranks" -- --run "d$layout" --golden whole.golden $flags
    holds grep -q '^golden    identical, 4 of 4' out
    expect 0 'identical: ' diff whole "d$layout"
done
recipe=tiny.ini

# ---- signals ----------------------------------------------------------------------------------
# begin RUN: starts an endless run of three ranks in the background, sets `pid`, and waits for a
# checkpoint.
begin() {
    local i
    srun --mpi=pmix -n 3 "$invar" train tiny.ini --run "$1" --no-report --num-rollout 100000 \
        --save-interval 5 >out 2>err </dev/null &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        [ ! -e "$1/checkpoints/latest_checkpointed_iteration.txt" ] || return
        sleep 0.1
    done
    complain "$1 does not begin:" "$(<err)"
}

# expect_resume RUN: runs ten more steps on two ranks, and compares the run with an undisturbed one
# on one rank.
expect_resume() {
    local last
    last=$(sqlite3 -readonly "$1/ledger.db" 'SELECT max(step) + 10 FROM step')
    expect 0 'clean' ledger verify "$1"
    ends 0 --mpi=pmix -n 2 -- --run "$1" --num-rollout 100000 --save-interval 5 --until "$last"
    expect 0 'chain' train tiny.ini --run "$1-whole" --no-report --num-rollout 100000 \
        --until "$last"
    expect 0 'identical: ' diff "$1-whole" "$1"
}

begin stopped
scancel --signal=TERM "$(squeue -h -o %i)"
rc=0
wait "$pid" || rc=$?
holds [ "$rc" = 143 ]
holds grep -q 'stopped by SIGTERM; start it again to continue' out
expect_resume stopped

begin killed
mapfile -t pids < <(pgrep -f -x -- "$invar train tiny.ini --run killed .*")
holds [ "${#pids[@]}" = 3 ]
((${#pids[@]} != 3)) || kill -KILL "${pids[RANDOM % 3]}"
wait "$pid" && complain "a rank was killed, and the run ended well"
expect_resume killed

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
