#!/usr/bin/env bash
# kept.sh INVAR FOLDER - samples that the ledger keeps with their text (keep-samples).
#
# Keeping samples changes no chain, content or identity. Kept samples are those that were sampled
# (checked by reader.py), also after ranks, resumes and multi-turn runs; copies of the ledger have
# them. Verify and the seal detect a changed byte.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2 root=$PWD
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$root/tests/e2e/expect.sh"
# shellcheck source=tests/e2e/ranks/launch.sh
source "$root/tests/e2e/ranks/launch.sh"

# hashes RUN: prints what must not depend on keep-samples.
hashes() {
    column "$1" "SELECT lower(hex(identity)) FROM run; SELECT chain, content FROM timeline"
}

# kept RUN: prints all kept samples.
kept() {
    column "$1" "SELECT step, idx, hex(data) FROM kept_samples ORDER BY step, idx"
}

# ---- no bit changes -----------------------------------------------------------------------------
tiny_recipe 6 >tiny.ini
ends 0 1 tiny.ini --run one --record-golden tiny.golden \
    --save-debug-rollout-data '{rollout_id}.jsonl'
holds [ "$(column one "SELECT count(*), count(DISTINCT step) FROM kept_samples")" = '24|6' ]
for keep in 0 1 3 256; do
    ends 0 1 tiny.ini --run "keep-$keep" --golden tiny.golden --keep-samples "$keep"
    holds grep -q '^golden    identical, 6 of 6' out
    holds [ "$(hashes "keep-$keep")" = "$(hashes one)" ]
    expect 0 'identical' diff one "keep-$keep"
    count=$((keep < 4 ? keep : 4)) # a step has four samples
    holds [ "$(column "keep-$keep" "SELECT count(*) FROM kept_samples")" = $((6 * count)) ]
done
# The lowest reward is kept first, then the highest.
low="SELECT count(*) FROM kept_samples k JOIN samples s USING(run, step, idx) WHERE s.reward =
    (SELECT min(reward) FROM samples t WHERE t.step = s.step)"
holds [ "$(column keep-1 "$low")" = 6 ]
holds [ "$(column keep-3 "${low/min(/max(}")" -ge 6 ]
ends 129 1 tiny.ini --run refused --keep-samples 257
holds grep -q 'keep-samples' err

# ---- kept samples are those that were sampled ---------------------------------------------------
holds python3 "$root/tests/e2e/kept_samples/reader.py" one '%d.jsonl'
holds python3 "$root/tests/e2e/kept_samples/reader.py" keep-256 '%d.jsonl'

# ---- ranks, resume, turns, replay ---------------------------------------------------------------
ends 0 2 tiny.ini --run ranks --golden tiny.golden
holds [ "$(kept ranks)" = "$(kept one)" ]
ends 0 1 tiny.ini --run halves --num-rollout 3
ends 0 1 tiny.ini --run halves --golden tiny.golden
holds [ "$(column halves 'SELECT max(seg) FROM segment')" = 1 ]
holds [ "$(kept halves)" = "$(kept one)" ]
cp "$root/tests/e2e/multi_turn/environment.py" .
tiny_recipe 2 | sed "s/task:max/task:guess/; s/response-len = 2/response-len = 12/
    s/^rm-type.*/custom-generate-function-path = python3 environment.py play\n\
rollout-max-turns = 4\nrollout-max-turn-len = 1/" >guess.ini
ends 0 1 guess.ini --run turns --save-debug-rollout-data 'turns-{rollout_id}.jsonl'
holds python3 "$root/tests/e2e/kept_samples/reader.py" turns 'turns-%d.jsonl' inserted
expect 0 'identical' replay one --step 2

# ---- copies -------------------------------------------------------------------------------------
expect 0 '' ledger backup one --out whole.db
expect 0 '' ledger import one keep-3 --into merged.db
expect 0 '' ledger backup one --out short.db --keep-last 2
count='SELECT count(*) FROM kept_sample'
holds [ "$(sqlite3 -readonly whole.db "$count")" = 24 ]
holds [ "$(sqlite3 -readonly merged.db "$count")" = $((24 + 18)) ]
holds [ "$(sqlite3 -readonly short.db "$count")" = 8 ]
for file in whole.db merged.db short.db; do
    expect 0 '' ledger verify "$file"
done
expect 0 'kept_sample' ledger export one --jsonl -

# ---- a changed byte -----------------------------------------------------------------------------
seal=$("$invar" ledger seal one 2>err) || complain "$(<err)"
expect 0 '' ledger verify one --seal "$seal"
expect 1 '' ledger verify keep-3 --seal "$seal"
# tamper SQL: copies the ledger to bad.db and changes one row; the triggers stay.
# shellcheck disable=SC2317 # holds calls it
tamper() {
    python3 - "$1" <<'PYTHON'
import shutil, sqlite3, sys
shutil.copy("one/ledger.db", "bad.db")
db = sqlite3.connect("bad.db")
triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
for name, _ in triggers:
    db.execute(f"DROP TRIGGER {name}")
assert db.execute(sys.argv[1]).rowcount == 1
for _, sql in triggers:
    db.execute(sql)
db.commit()
PYTHON
}
where='WHERE step = 3 AND idx = 1'
byte="CAST(substr(data, 1, 40) || 'Z' || substr(data, 42) AS BLOB)"
for change in "UPDATE kept_sample SET data = $byte $where" \
    "UPDATE kept_sample SET idx = 9 $where" "DELETE FROM kept_sample $where"; do
    holds tamper "$change"
    expect 2 '' ledger verify bad.db
done
# A report shows the other samples, and names the one that it leaves out.
holds tamper "UPDATE kept_sample SET data = $byte $where"
expect 2 'what is kept of sample 1 of step 3 is no gzip data' ledger report bad.db --out bad.html
expect 2 'the page leaves out 1 kept sample that is damaged' ledger report bad.db --out bad.html
holds grep -q '"damaged":\[{"step":3,"idx":1,"why":"is no gzip data' bad.html
expect 0 'good.html: written' ledger report one --out good.html
holds [ "$(grep -o '"credit":' good.html | wc -l)" = 24 ]
holds [ "$(grep -o '"credit":' bad.html | wc -l)" = 23 ]

((failed)) || echo "kept: $checks checks"
exit "$failed"
