#!/usr/bin/env bash
# ab.sh INVAR FOLDER - invar ab: two versions on the same recipe and seeds.
#
# The versions are commits of a small repository whose program is a script that runs INVAR with
# other keys, so that nothing is compiled. Cases: equal and changed versions, committed or not,
# programs and trees, versions that are nondeterministic, do not build or do not run, a stop and its
# continuation. The effects are computed again by ab_numbers.py. Control: a changed number is
# detected. The user's repository must not change.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$folder"
mkdir -p "$folder/tree" && cd "$folder/tree" || exit 2
export XDG_CACHE_HOME=$folder/cache
as_ada

# shellcheck disable=SC2016 # expanded by the shell that builds
build='cp invar.sh "$INVAR_BUILD/invar"'

# ab CODE TEXT ARGUMENT ...: checks the exit code and that TEXT is printed; the answer is in `out`.
ab() {
    local code=$1 text=$2 rc=0
    shift 2
    checks=$((checks + 1))
    timeout 120 "$invar" ab --build "$build" --seeds 1 --steps 3 "$@" >"$folder/out" \
        2>"$folder/err" </dev/null || rc=$?
    if ((rc != code)) || ! grep -qF -e "$text" "$folder/out" "$folder/err"; then
        complain "ab $*: exit code $rc, expected $code with \"$text\":" "$(<"$folder/out")" \
            "$(<"$folder/err")"
    fi
}

# script LINE ...: writes the program invar.sh.
script() {
    printf '%s\n' '#!/bin/sh' "$@" >invar.sh
    chmod +x invar.sh
}

# commit NAME LINE ...: commits a version of the program, with a tag.
commit() {
    script "${@:2}"
    git add -A && git commit -qm "$1" && git tag "$1"
}

# field EXPRESSION: prints a Python expression over the answer `a` in `out`.
field() {
    python3 -c "import json, sys; a = json.load(open(sys.argv[1])); print($1)" "$folder/out"
}

# prints FOLDER: prints the digests of its files.
prints() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }

# same_tree: the tree and its repository are as they were at `before`.
# shellcheck disable=SC2317 # holds calls it
same_tree() { [ "$before" = "$(prints . && git --no-optional-locks status --porcelain)" ]; }

cat >tiny.ini <<'END'
[model]
dtype = fp32
num-layers = 1
hidden-size = 32
ffn-hidden-size = 48
num-attention-heads = 2
max-position-embeddings = 16
init-method-std = 0.08

[rollout]
prompt-data = task:max
num-rollout = 6
rollout-batch-size = 2
n-samples-per-prompt = 4
rollout-max-response-len = 3
rm-type = overlap

[eval]
eval-interval = 2
eval-prompt-data = max task:max
n-samples-per-eval-prompt = 1

[grpo]
advantage-estimator = grpo

[optimizer]
lr = 0.002

[engine]
numerics = ieee
END
recipe=$folder/tiny.ini
cp tiny.ini "$recipe"
git init -q .
run="exec '$invar' \"\$@\""
commit base '# as it was' "$run"
commit refactored '# the same in other words' "$run"
# This version has another learning rate from the second step on.
commit slower "$run --lr-decay-style linear --lr-decay-iters 20"
# shellcheck disable=SC2016 # expanded by the script
commit random "$run --adam-beta2 0.9\$\$"
commit crashing 'echo no such luck >&2' 'exit 7'
# This version reads which side it is, which no program may do.
# shellcheck disable=SC2016 # expanded by the script
commit spying 'case $INVAR_FACTS in *side=b*) set -- "$@" --lr 0.5 ;; esac' "$run"
git rm -q --cached invar.sh && git commit -qm unbuildable && git tag unbuildable
git checkout -q -f base
sed -i 's/^lr = .*/lr = 0.001/' tiny.ini
git commit -qam recipe && git tag recipe
git checkout -q -f base
sed -i 's/^num-rollout = .*/num-rollout = 8/' tiny.ini
git commit -qam longer && git tag longer
git checkout -q -f base
# ---- equal versions ----------------------------------------------------------------------------
ab 0 'identical: 2 seeds, 3 steps each' --a base --b refactored "$recipe" --json --seeds 2
holds [ "$(field 'a["verdict"], a["effects"], a["place"], a["different"]')" = \
    'identical [] None 0' ]
holds [ "$(field 'a["sides"]["a"]["binary"] != a["sides"]["b"]["binary"]')" = True ]
holds [ "$(field 'len(a["equal_metrics"]) > 20 and a["gates"]["a"]["same"]')" = True ]
holds "$here/ab_numbers.py" "$invar" "$folder/out" >/dev/null

ab 2 'nowhere/page.html: its folder does not exist' --a base --b base "$recipe" --html \
    nowhere/page.html

# ---- another learning rate from the second step on ---------------------------------------------
ab 1 'different: from step 1, point' --a base --b slower "$recipe" --seeds 2
holds grep -q 'op adamw on, in 2 of 2 seeds' "$folder/out"
holds grep -q 'identity lr-decay-style: constant -> linear' "$folder/out"
ab 1 '"different"' --a base --b slower "$recipe" --seeds 2 --json --html "$folder/page.html"
again=$(grep -c 'ran before' "$folder/err")
holds "$here/ab_numbers.py" "$invar" "$folder/out" "$folder/page.html" >/dev/null
holds [ "$(field 'a["place"]["step"], a["place"]["op"], a["place"]["fine"]')" = '1 adamw True' ]
holds [ "$(field '[s["first"] for s in a["seeds"]]')" = '[1, 1]' ]
holds [ "$(field 'a["facts"][0]["scope"], a["sides"]["b"]["subject"]')" = 'identity slower' ]
holds [ "$(field 'a["ratios"]["time"] > 0 and a["ratios"]["memory"] > 0')" = True ]
holds [ "$(field 'a["gates"]["b"]["same"]')" = True ]
# Control: a changed number in the answer is detected.
sed '0,/"mean": /s/"mean": .*/"mean": 0.125,/' "$folder/out" >"$folder/forged"
holds [ "$("$here/ab_numbers.py" "$invar" "$folder/forged" 2>&1 | grep -c ab_numbers:)" = 1 ]
# All runs of the second call existed already; now only a further seed is run.
holds [ "$again" = 6 ]
ab 1 'in 3 of 3 seeds' --a base --b slower "$recipe" --seeds 3 --jobs 2
holds [ "$(grep -c ': ran, ' "$folder/err")" = 2 ]
holds grep -q 'some of an earlier call' "$folder/out"

# ---- seeds and keys ----------------------------------------------------------------------------
ab 0 'identical' --a base --b base "$recipe" --seed 7 --rollout-seed=9 --lr 0.5 --json --seeds 2
holds [ "$(field '[(s["seed"], s["rollout_seed"]) for s in a["seeds"]]')" = '[(7, 9), (8, 10)]' ]
ledger=$(field 'a["ledger"]')
holds [ "$(sqlite3 -readonly "$ledger" "SELECT group_concat(value, ' ') FROM (SELECT value FROM
    identity WHERE key IN ('seed', 'rollout-seed') ORDER BY run, key)")" = \
    '9 7 9 7 10 8 10 8' ]
holds [ "$(sqlite3 -readonly "$ledger" "SELECT count(*), min(value), max(value) FROM identity
    WHERE key = 'lr'")" = '4|0.5|0.5' ]
holds [ "$(sqlite3 -readonly "$ledger" "SELECT group_concat(value, ' ') FROM (SELECT value FROM
    fact WHERE scope = 'ab' AND key IN ('seed', 'side') ORDER BY run, key)")" = \
    '7 a 7 b 8 a 8 b' ]
ab 129 'would go beyond' --a base --b base "$recipe" --seed 4294967295 --seeds 2

# ---- a work tree with changes, and programs ----------------------------------------------------
script "$run --lr-decay-style linear --lr-decay-iters 20"
git status --porcelain >/dev/null # this may write the index
before=$(prints . && git --no-optional-locks status --porcelain)
ab 1 'different: from step 1' --a base --b . "$recipe" --json
holds [ "$(field 'a["sides"]["b"]["kind"], a["sides"]["a"]["kind"]')" = 'folder commit' ]
holds same_tree
git checkout -q -f base
ab 0 'identical: 1 seed, 3 steps' --a rev:base --b dir:. "$recipe"
holds grep -q 'A again .*threads 1, micro-batch-size 2: identical' "$folder/out"
git show slower:invar.sh >"$folder/other"
chmod +x "$folder/other"
ab 0 'identical' --a invar.sh --b base "$recipe"
ab 1 'different' --a "file:$folder/other" --b base "$recipe"
# Programs outside of any repository.
mkdir "$folder/alone"
cp invar.sh "$folder/alone/one"
(cd "$folder/alone" && ab 0 'identical' --a ./one --b ./one "$recipe" && exit "$failed") || failed=1

# ---- each side uses its own recipe -------------------------------------------------------------
ab 0 'identical' --a base --b recipe tiny.ini
ab 1 'identity lr: 0.002 -> 0.001' --a base --b recipe --own-recipe tiny.ini
ab 1 'equal in the 6 steps that both have, but A has 0 more and B 2' --a base --b longer \
    --own-recipe tiny.ini --steps 100
ab 129 'no tree' --a base --b "$folder/other" --own-recipe tiny.ini
ab 2 'nowhere.ini' --a base --b recipe --own-recipe nowhere.ini

# ---- sides that cannot be compared -------------------------------------------------------------
ab 3 'nondeterministic: A against itself' --a random --b base "$recipe"
ab 3 'nondeterministic: B against itself' --a base --b random "$recipe" --json
holds [ "$(field 'a["verdict"], a["who"], a["gates"]["a"]["same"], a["gates"]["b"]["same"]')" = \
    'nondeterministic b True False' ]
ab 3 'nondeterministic: A and B are the same program, seed 1234: ' --a spying --b spying "$recipe"
ab 125 'untestable: B: ' --a base --b unbuildable "$recipe" --json
holds [ "$(field '"invar.sh" in open(a["log"]).read() and "invar.sh" in a["story"]')" = True ]
ab 125 'no such luck' --a crashing --b base "$recipe" --json
holds [ "$(field '"no such luck" in open(a["log"]).read(), a["who"]')" = 'True a' ]

# ---- usage -------------------------------------------------------------------------------------
ab 129 'nosuch' --a nosuch --b base "$recipe"
ab 129 'not executable' --a tiny.ini --b base "$recipe"
ab 129 'not executable' --a "file:$folder/tree/tiny.ini" --b base "$recipe"
ab 129 'no folder' --a dir:nosuch --b base "$recipe"
ab 129 'both sides' --a base "$recipe"
ab 129 'RECIPE' --a base --b base
ab 129 'unknown option' --a base --b base "$recipe" --nosuch 1
ab 129 'lr' --a base --b base "$recipe" --lr fast
ab 129 '--seeds' --a base --b base "$recipe" --seeds 0
ab 2 'nowhere.ini' --a base --b base nowhere.ini
ab 129 'inside' --a base --b base "$recipe" --work "$folder/tree/work"
ab 129 'inside' --a dir:. --b invar.sh "$recipe" --repo "$folder" --work "$folder/tree/work"

# ---- facts that a run gets from INVAR_FACTS ----------------------------------------------------
for facts in 'side=a' 'build.commit=1' $'ab.side=a\nab.side=b'; do
    rc=0
    INVAR_FACTS=$facts "$invar" train "$recipe" --run "$folder/refused" >"$folder/out" 2>&1 ||
        rc=$?
    holds [ "$rc:$(grep -c 'INVAR_FACTS, line' "$folder/out")" = 129:1 ]
done
holds [ ! -e "$folder/refused" ]
INVAR_FACTS=$'user.who=me\nci.case=x y' "$invar" train "$recipe" --run "$folder/told" --until 0 \
    --no-report >"$folder/out" 2>&1 || complain "train with facts: $(<"$folder/out")"
holds [ "$(sqlite3 -readonly "$folder/told/ledger.db" "SELECT group_concat(scope || key || value)
    FROM fact WHERE scope IN ('user', 'ci')")" = 'cicasex y,userwhome' ]
# The caller's INVAR_FACTS are not passed to the runs.
INVAR_FACTS=broken ab 0 'identical' --a base --b base "$recipe"

# ---- stopped -----------------------------------------------------------------------------------
"$invar" ab --build "$build" --a base --b base "$recipe" --num-rollout 1000000 \
    >"$folder/out" 2>"$folder/err" &
pid=$!
for ((i = 0; i < 300; i++)); do
    compgen -G "$folder/cache/invar/*/runs/*.tmp/ledger.db" >/dev/null && break
    sleep 0.1
done
kill -INT "$pid"
rc=0
wait "$pid" || rc=$?
holds [ "$rc" = 2 ]
holds grep -q '^stopped: ' "$folder/out"
holds [ "$(find "$folder/cache" -name '*.tmp' | wc -l)" = 0 ]
ab 0 'identical: 1 seed, 3 steps' --a base --b base "$recipe" --num-rollout 1000000


# ---- no repository ------------------------------------------------------------------------------
ab 2 '/: there is no git repository here or above: work in one, or name one with --repo' --repo / \
    --a HEAD --b HEAD "$tiny"
((failed)) || echo "$checks checks: all as expected"
exit "$failed"
