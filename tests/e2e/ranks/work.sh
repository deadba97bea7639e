#!/usr/bin/env bash
# work.sh INVAR FOLDER - the times of each rank in the ledger and the trace, and the straggler.
#
# A plug-in, which only rank 0 calls, makes rank 0 slow; another rank is stopped most of the time.
# The query must name each of them. Controls: a wider margin, and a run without a slow rank, name
# none. Without mpirun, ranks are threads only.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2
export NO_COLOR=1 # mpirun gives ranks a terminal
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
rm -rf "$folder"
recipes=$PWD/recipes
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$OLDPWD/tests/e2e/expect.sh"
expect_logs=(out err)

# runs COMMAND ...: checks that the command succeeds.
runs() {
    checks=$((checks + 1))
    timeout 300 "$@" >out 2>err </dev/null || complain "$*: exit code $?:" "$(<out)" "$(<err)"
}

# trains RUN COMMAND ...: runs the command with --run RUN.
trains() {
    local run=$1
    shift
    runs "$@" --no-report --run "$run"
}

# number RUN SQL: prints a number of its ledger.
number() {
    sqlite3 -readonly "$1/ledger.db" "$2"
}

# straggler RUN FLAG ...: prints the rank that the query names; nothing if there is none, or the
# exit code if it is not 0.
straggler() {
    local answer
    answer=$("$invar" ledger query slow-ranks "$@" --csv) || { echo "exit code $?"; return; }
    sed -n 's/^\([0-9]*\),.*,straggler\r$/\1/p' <<<"$answer"
}

# Each rank has a track in the trace, on which slices are nested or disjoint.
cat >tracks.py <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    events = [e for e in json.load(file) if e["pid"] == 2]
ranks = range(int(sys.argv[2]))
names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert sorted(names) == list(ranks), names
for rank in ranks:
    assert names[rank].startswith(f"rank {rank} on "), names
    slices = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events
              if e["ph"] == "X" and e["tid"] == rank]
    phases = [name for _, _, name in sorted(slices) if not name.startswith("wait: ")]
    assert phases.count("train") == phases.count("rollout") == 3, phases
    ends = []
    for begin, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        while ends and ends[-1] <= begin + 50: # microseconds: two clocks, read one after the other
            ends.pop()
        assert not ends or end <= ends[-1] + 50, (rank, begin, end, name)
        ends.append(end)
END

# ---- what each rank did -----------------------------------------------------------------------
tiny_recipe 3 >tiny.ini
trains one "$invar" train tiny.ini --trace one.json
holds [ "$(number one 'SELECT count(*) FROM work')" = 0 ]
holds [ "$(grep -c '"pid":2' one.json)" = 0 ]
expect 6 'trained by one rank' ledger query slow-ranks one
trains four "$invar" train tiny.ini --ranks 4 --trace four.json
expect 0 'identical: 3 steps' diff one four
expect 0 'clean' ledger verify four
holds [ "$(number four 'SELECT count(*) FROM ranks')" = 12 ]
holds [ "$(number four "SELECT count(DISTINCT rank) FROM work WHERE phase = 'train' AND
    move = '' AND calls = 1 AND duration_ns > 0 AND host <> ''")" = 4 ]
holds [ "$(number four 'SELECT sum(sent) = sum(received) AND sum(sent) > 0 FROM work')" = 1 ]
holds [ "$(number four "SELECT min(duration_ns) >= 0 AND min(calls) >= 0 FROM work")" = 1 ]
expect 0 'gradients of units' ledger query rank-moves four
expect 0 '"verdict":' ledger query slow-ranks four --json
expect 0 'gradients of units' ledger show four --step 2
holds python3 tracks.py four.json 4

# If the number of ranks changes, each step has the rows of the newest segment.
trains moves "$invar" train tiny.ini --ranks 2 --until 0 --save-interval 9
trains moves "$invar" train tiny.ini --ranks 3 --save-interval 9
holds [ "$(number moves 'SELECT group_concat(n) FROM
    (SELECT count(*) AS n FROM ranks GROUP BY step ORDER BY step)')" = 2,3,3 ]
expect 0 'clean' ledger verify moves

# ---- a rank that is slow ----------------------------------------------------------------------
cat >late.py <<'END'
import json
import sys
import time

json.loads(sys.stdin.readline())
print(json.dumps({"invar": 1, "name": "late", "kinds": ["reward"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.5)
    rewards = [s["index"] % 3 / 2 for s in request["samples"]]
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
END
judged=(tiny.ini --rm-type none --custom-rm-path 'python3 late.py')
trains late "$invar" train "${judged[@]}" --ranks 3
holds [ "$(straggler late)" = 0 ]
holds [ "$(straggler late --margin 1)" = '' ] # control: with a wider margin no rank is a straggler

if ! command -v mpirun >/dev/null || [ ! -e "$(dirname "$invar")/invar-mpi.so" ]; then
    ((failed)) || echo "$checks checks: all as expected; there is no mpirun"
    exit "$failed"
fi

mpi=(mpirun --oversubscribe)
trains p3 "${mpi[@]}" -n 3 "$invar" train tiny.ini --trace p3.json
expect 0 'identical: 3 steps' diff one p3
holds [ "$(number p3 'SELECT count(*) FROM ranks')" = 9 ]
holds python3 tracks.py p3.json 3

# The model is large enough that the rank is stopped while it computes.
cat >slow.sh <<'END'
"$@" &
while kill -STOP $! 2>/dev/null; do
    sleep 0.2
    kill -CONT $!
    sleep 0.02
done
wait $!
END
large=(train "$recipes/quickstart.ini" --num-rollout 2 --unit-count 2 --hidden-size 128 --threads 1
    --ffn-hidden-size 256 --skip-eval-before-train)
stopped=("$invar" "${large[@]}" --no-report --run stopped)
runs "${mpi[@]}" -n 1 "${stopped[@]}" : -n 1 bash slow.sh "${stopped[@]}"
holds [ "$(straggler stopped)" = 1 ]
# Control: no straggler; repeated in case another program has taken a core meanwhile.
for ((i = 0; i < 4; i++)); do
    rm -rf usual
    trains usual "${mpi[@]}" -n 2 "$invar" "${large[@]}"
    [ "$(straggler usual --margin 0.5)" = '' ] && break
done
holds [ "$(straggler usual --margin 0.5)" = '' ]
expect 0 'identical: 2 steps' diff usual stopped

((failed)) || echo "$checks checks: all as expected"
exit "$failed"
