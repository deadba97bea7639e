#!/usr/bin/env bash
# kills.sh INVAR FOLDER [SEED] - ranks that are killed or hang, however they divide a model.
#
# One run goes on and on, each time on another layout, and each time a rank of it is killed. It ends
# as one rank does that nobody disturbed. Layouts, ranks and moments are drawn at random; the seed
# is printed. Threads cannot be killed alone: without mpirun the test is skipped.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2 seed=${3:-$((RANDOM + 1))}
rm -rf "$folder"
here=$PWD/tests/e2e/ranks
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
# shellcheck source=tests/e2e/ranks/launch.sh
source "$OLDPWD/tests/e2e/ranks/launch.sh"
$mpi || {
    echo "skipped: there is no mpirun, or no invar-mpi.so"
    exit 77
}
RANDOM=$seed
echo "seed $seed"

# ---- layouts ----------------------------------------------------------------------------------
kills=3
[ -z "${INVAR_TEST_FULL:-}" ] || kills=50
recipe=(small.ini --num-rollout "$((8 + 6 * kills))" --save-interval 2
    --distributed-timeout-minutes 1)
cp "$here/small.ini" .
tp=--tensor-model-parallel-size ep=--expert-model-parallel-size etp=--expert-tensor-parallel-size
pp=--pipeline-model-parallel-size vp=--num-virtual-stages-per-pipeline-rank
cp=--context-parallel-size sp=--sequence-parallel
ro=--rollout-num-gpus re=--rollout-num-gpus-per-engine
layouts=("3" "2 $tp 2" "4 $tp 4 $etp 1" "4 $tp 2" "2 $ep 2" "4 $ep 2" "4 $tp 2 $ep 2" "2 $pp 2"
    "2 $pp 2 $vp 2" "4 $pp 2 $vp 2" "4 $tp 2 $pp 2" "8 $tp 2 $pp 2"
    "3 $ro 1" "6 $tp 2 $ro 2 $re 2" "2 $cp 2" "4 $cp 2 $tp 2 $sp")

# choose LAYOUT: into `ranks` and `flags`.
choose() {
    read -r -a flags <<<"$1"
    ranks=${flags[0]} flags=("${flags[@]:1}")
}

# draw: the next layout at random; all come before one comes again.
deck=()
draw() {
    local i
    ((${#deck[@]})) || deck=("${layouts[@]}")
    i=$((RANDOM % ${#deck[@]}))
    choose "${deck[i]}"
    deck=("${deck[@]:0:i}" "${deck[@]:i+1}")
}

# ---- signals ----------------------------------------------------------------------------------
# ask RUN SQL: a number of its ledger; 0 where there is none yet.
ask() {
    local number
    number=$(sqlite3 -readonly "$1/ledger.db" "$2" 2>/dev/null)
    echo "${number:-0}"
}

# disturb RUN STEPS SIGNAL RANK: starts the run on the drawn layout, or goes on with it; after so
# many steps of this life a rank gets the signal, or with CUT loses its sockets. `rc` is then the
# code of mpirun.
disturb() {
    local pid pids i lives
    lives=$(ask "$1" 'SELECT count(*) FROM segment')
    mpirun --oversubscribe -n "$ranks" "$invar" train "${recipe[@]}" --run "$1" \
        --no-report "${flags[@]}" >out 2>err </dev/null &
    pid=$!
    for ((i = 0; i < 3000; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        (($(ask "$1" "SELECT count(*) FROM step WHERE seg >= $lives") < $2)) || break
        sleep 0.02
    done
    mapfile -t pids < <(pgrep -P "$pid")
    checks=$((checks + 1))
    if ((${#pids[@]} != ranks)); then
        complain "there are ${#pids[@]} ranks of $ranks:" "$(<err)"
    elif [ "$3" = CUT ]; then
        cut_sockets "${pids[$4]}"
    else
        kill -s "$3" "${pids[$4]}"
    fi
    rc=0
    wait "$pid" || rc=$?
    expect 0 'clean' ledger verify "$1"
}

# goes_on RUN: on another layout, as threads, to the end of one rank.
goes_on() {
    draw
    ends 0 "$ranks" "${recipe[@]}" --run "$1" "${flags[@]}"
    equal one "$1"
}
ends 0 1 "${recipe[@]}" --run one
((failed == 0)) || exit

# ---- killed -----------------------------------------------------------------------------------
for ((n = 0; n < kills; n++)); do
    draw
    disturb killed "$((1 + RANDOM % 3))" KILL "$((RANDOM % ranks))"
    ((rc != 0)) || complain "${flags[*]}: a rank was killed, and the run ended well"
done
goes_on killed

# ---- stopped ----------------------------------------------------------------------------------
# A signal to any rank ends all of them after the rollout, saved.
draw
disturb stopped 2 TERM "$((RANDOM % ranks))"
holds [ "$rc" = 143 ]
holds grep -q '; stopped by SIGTERM; start it again to continue' out
last=$(ask stopped 'SELECT max(step) FROM step')
goes_on stopped
holds grep -q "resumed after step $last from" err

# ---- hung -------------------------------------------------------------------------------------
# One that hangs ends the others when its time is over, which is a minute; and it is that one which
# is named, though others wait for ranks that wait for it.
if [ -n "${INVAR_TEST_FULL:-}" ]; then
    for hangs in 0 3 6; do
        choose "8 $tp 2 $pp 2"
        disturb "hung-$hangs" 2 STOP "$hangs"
        holds [ "$rc" = 2 ]
        holds grep -q "^invar: rank $hangs on .* did not come to .* in phase \".*\": rank ." err
        holds [ "$(grep -c ^invar:\ rank err)" = 1 ]
        goes_on "hung-$hangs"
    done
    choose "3 $ro 1"
    disturb hung-sampler 2 STOP 2
    holds grep -q '^invar: rank 2 on .* did not come to .* in phase ".*": rank .' err
    goes_on hung-sampler
fi

# ---- slow -------------------------------------------------------------------------------------
# One side takes longer than the other waits for a rank that hangs, which is a minute: it gets on,
# and says so. All ranks are stopped for most of the time.
slow() {
    local pid pids
    mpirun --oversubscribe -n 2 "$invar" train small.ini --run slow --no-report $ro 1 \
        --distributed-timeout-minutes 1 --num-rollout 1 --rollout-batch-size 64 \
        --max-position-embeddings 512 --rollout-max-response-len 480 --rollout-concurrency 1 \
        --micro-batch-size 1 >out 2>err </dev/null &
    pid=$!
    while sleep 0.1 && kill -0 "$pid" 2>/dev/null; do
        mapfile -t pids < <(pgrep -P "$pid")
        kill -s STOP "${pids[@]}" 2>/dev/null
        sleep 0.9
        kill -s CONT "${pids[@]}" 2>/dev/null
    done
    checks=$((checks + 1))
    wait "$pid" || complain "slow ranks: exit code $?:" "$(<err)"
    for phase in rollout train; do
        holds [ "$(ask slow "SELECT max(duration_ns) > 60e9 FROM work
            WHERE phase = '$phase' AND move = ''")" = 1 ]
    done
}
[ -z "${INVAR_TEST_FULL:-}" ] || slow

# ---- cut --------------------------------------------------------------------------------------
# The sockets between a rank and the others are closed by the kernel, where that may be asked to.
# MPI connects again, or the others end when their time is over; the run goes on as if nothing was.
# shellcheck disable=SC2317 # called by disturb
cut_sockets() {
    local port
    for port in $(ss -tnp 2>/dev/null | sed -n "s/.*:\([0-9]*\) .*pid=$1,.*/\1/p" | sort -u); do
        ! ss -tnp "sport = :$port" | grep -q '"invar"' || ss -K "dport = :$port" >/dev/null 2>&1
    done
}
if [ -n "${INVAR_TEST_FULL:-}" ] && ((UID == 0)) && ss -V >/dev/null 2>&1; then
    choose "4 $tp 2 $pp 2"
    export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    disturb cut 2 CUT 2
    unset OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include
    ((rc == 0)) || holds [ "$(grep -c '^invar: rank . on .* did not come to .* in phase' err)" = 1 ]
    goes_on cut
fi

# ---- a full disk ------------------------------------------------------------------------------
# No file of rank 0, which alone writes, may grow beyond so many KiB: enough for the ledger, not for
# a checkpoint.
choose "4 $tp 2 $pp 2"
ends 0 m4 "${recipe[@]}" --run full "${flags[@]}" --until 3
train=("$invar" train "${recipe[@]}" --run full --no-report "${flags[@]}")
checks=$((checks + 1)) rc=0
# shellcheck disable=SC2016 # of the inner shell
timeout 300 mpirun --oversubscribe -n 1 bash -c 'trap "" XFSZ; ulimit -f 900; exec "$@"' - \
    "${train[@]}" : -n 3 "${train[@]}" >out 2>err </dev/null || rc=$?
holds [ "$rc" = 2 ]
holds [ "$(grep ^invar: err | grep -vcE 'resumed|warning')" = 1 ]
holds grep -q '^invar: full/checkpoints/.*: cannot be written' err
expect 0 'clean' ledger verify full
goes_on full
holds grep -q 'resumed after step 3 from' err

# ---- another run ------------------------------------------------------------------------------
# differ TEXT FLAG ...: the last of four ranks is started with other words; nothing is made.
differ() {
    local text=$1
    shift
    checks=$((checks + 1)) rc=0
    timeout 300 mpirun --oversubscribe -n 3 "$invar" train small.ini --run odd $tp 2 : \
        -n 1 "$@" --run odd >out 2>err </dev/null || rc=$?
    ((rc == 2)) || complain "$*: exit code $rc, expected 2:" "$(<out)" "$(<err)"
    holds grep -q "^invar: rank 3 on .* is another run than rank 0 on .*: its $text" err
    holds [ "$(grep -c ^invar: err)" = 1 ]
    holds [ ! -e odd ]
}
cp "$invar" another && printf '\0' >>another && cp "$(dirname "$invar")/invar-mpi.so" .
differ 'program is ' ./another train small.ini $tp 2
differ 'tensor-model-parallel-size is "4", the other.s "2"' "$invar" train small.ini $tp 4 $etp 1
differ 'tensor-model-parallel-size is "1", the other.s "2"' "$invar" train small.ini $pp 2
differ 'num-layers is "2"' "$invar" train small.ini $tp 2 --num-layers 2

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
