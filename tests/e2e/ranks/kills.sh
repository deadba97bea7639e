#!/usr/bin/env bash
# kills.sh INVAR FOLDER [SEED] - ranks that are killed or hang, in every layout.
#
# One run is resumed repeatedly, each time on another layout, and each time one of its ranks is
# killed. At the end it must have the chain and checkpoint of an undisturbed run on one rank.
# Layouts, ranks and moments are drawn at random; the seed is printed. A thread cannot be killed
# alone, so the test is skipped without mpirun.
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
kills=2
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

# use_layout LAYOUT: sets `ranks` and `flags`.
use_layout() {
    read -r -a flags <<<"$1"
    ranks=${flags[0]} flags=("${flags[@]:1}")
}

# draw: chooses the next layout at random; each is used once before one is used again.
remaining=()
draw() {
    local i
    ((${#remaining[@]})) || remaining=("${layouts[@]}")
    i=$((RANDOM % ${#remaining[@]}))
    use_layout "${remaining[i]}"
    remaining=("${remaining[@]:0:i}" "${remaining[@]:i+1}")
}

# ---- signals ----------------------------------------------------------------------------------
# query_number RUN SQL: prints a number of its ledger, or 0 if there is none yet.
query_number() {
    local number
    number=$(sqlite3 -readonly "$1/ledger.db" "$2" 2>/dev/null)
    echo "${number:-0}"
}

# disturb RUN STEPS SIGNAL RANK: starts or resumes the run on the chosen layout. After STEPS steps
# of this segment the rank gets the signal; with CUT its sockets are closed. Sets `rc` to the exit
# code of mpirun.
disturb() {
    local pid pids i segments
    segments=$(query_number "$1" 'SELECT count(*) FROM segment')
    mpirun --oversubscribe -n "$ranks" "$invar" train "${recipe[@]}" --run "$1" \
        --no-report "${flags[@]}" >out 2>err </dev/null &
    pid=$!
    for ((i = 0; i < 3000; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        (($(query_number "$1" "SELECT count(*) FROM step WHERE seg >= $segments") < $2)) || break
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

# expect_resume RUN: resumes on another layout, as threads, and compares the end with that of one
# rank.
expect_resume() {
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
expect_resume killed

# ---- stopped ----------------------------------------------------------------------------------
# A signal to any rank ends all of them after the rollout, with a checkpoint.
draw
disturb stopped 2 TERM "$((RANDOM % ranks))"
holds [ "$rc" = 143 ]
holds grep -q '; stopped by SIGTERM; start it again to continue' out
last=$(query_number stopped 'SELECT max(step) FROM step')
expect_resume stopped
holds grep -q "resumed after step $last from" err

# ---- hung -------------------------------------------------------------------------------------
# If a rank hangs, the others end after distributed-timeout-minutes, here one. The message names the
# hanging rank, although other ranks wait for ranks that wait for it.
if [ -n "${INVAR_TEST_FULL:-}" ]; then
    for hangs in 0 3 6; do
        use_layout "8 $tp 2 $pp 2"
        disturb "hung-$hangs" 2 STOP "$hangs"
        holds [ "$rc" = 2 ]
        holds grep -q "^invar: rank $hangs on .* did not come to .* in phase \".*\": rank ." err
        holds [ "$(grep -c ^invar:\ rank err)" = 1 ]
        expect_resume "hung-$hangs"
    done
    use_layout "3 $ro 1"
    disturb hung-sampler 2 STOP 2
    holds [ "$rc" = 2 ]
    holds grep -q '^invar: rank 2 on .* did not come to .* in phase ".*": rank .' err
    expect_resume hung-sampler
fi

# ---- slow -------------------------------------------------------------------------------------
# One role takes longer than distributed-timeout-minutes, but sends heartbeats, so that the other
# ranks keep waiting. All ranks are stopped for most of the time.
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
        holds [ "$(query_number slow "SELECT max(duration_ns) > 60e9 FROM work
            WHERE phase = '$phase' AND move = ''")" = 1 ]
    done
}
[ -z "${INVAR_TEST_FULL:-}" ] || slow

# ---- cut --------------------------------------------------------------------------------------
# The kernel closes the sockets between a rank and the others, if this is permitted. MPI reconnects,
# or the others end after the timeout; then the run resumes.
# shellcheck disable=SC2317 # called by disturb
cut_sockets() {
    local port
    for port in $(ss -tnp 2>/dev/null | sed -n "s/.*:\([0-9]*\) .*pid=$1,.*/\1/p" | sort -u); do
        ! ss -tnp "sport = :$port" | grep -q '"invar"' || ss -K "dport = :$port" >/dev/null 2>&1
    done
}
if [ -n "${INVAR_TEST_FULL:-}" ] && ((UID == 0)) && ss -V >/dev/null 2>&1; then
    use_layout "4 $tp 2 $pp 2"
    export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    disturb cut 2 CUT 2
    unset OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include
    ((rc == 0)) || holds [ "$(grep -c '^invar: rank . on .* did not come to .* in phase' err)" = 1 ]
    expect_resume cut
fi

# ---- a full disk ------------------------------------------------------------------------------
# No file of rank 0, which is the only one that writes, may exceed 900 KiB: enough for the ledger,
# not for a checkpoint.
use_layout "4 $tp 2 $pp 2"
ends 0 m4 "${recipe[@]}" --run full "${flags[@]}" --until 3
train=("$invar" train "${recipe[@]}" --run full --no-report "${flags[@]}")
checks=$((checks + 1)) rc=0
# shellcheck disable=SC2016 # expanded by the inner shell
timeout 300 mpirun --oversubscribe -n 1 bash -c 'trap "" XFSZ; ulimit -f 900; exec "$@"' - \
    "${train[@]}" : -n 3 "${train[@]}" >out 2>err </dev/null || rc=$?
holds [ "$rc" = 2 ]
holds [ "$(grep ^invar: err | grep -vcE 'resumed|warning')" = 1 ]
holds grep -q '^invar: full/checkpoints/.*: cannot be written' err
expect 0 'clean' ledger verify full
expect_resume full
holds grep -q 'resumed after step 3 from' err

# ---- another run ------------------------------------------------------------------------------
# differ TEXT FLAG ...: starts the last of four ranks differently; checks that the run fails with
# TEXT before it makes a folder.
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
differ 'tensor-model-parallel-size is "4", the other.s "2"' "$invar" train small.ini $tp 4 $etp 1
if [ -n "${INVAR_TEST_FULL:-}" ]; then # by default, ranks.sh compares the programs
    differ 'program is ' ./another train small.ini $tp 2
    differ 'tensor-model-parallel-size is "1", the other.s "2"' "$invar" train small.ini $pp 2
    differ 'num-layers is "2"' "$invar" train small.ini $tp 2 --num-layers 2
fi

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
