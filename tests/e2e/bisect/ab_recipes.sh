#!/usr/bin/env bash
# ab_recipes.sh INVAR FOLDER - invar ab of two recipes: differing keys, rewards and evaluations.
#
# The answer names the keys that differ and always has rewards and evaluations. The effects are
# computed again by ab_numbers.py. Models of other shapes have no first differing tensor.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
export XDG_CACHE_HOME=$folder/cache
seeds=2 # two give an interval; one is enough for equal bits and for refusals
expect_verb=(ab --seeds 1)

# ab CODE ARGUMENT ...: checks the exit code; the answer is in `out`.
ab() {
    local code=$1 rc=0
    shift
    checks=$((checks + 1))
    "$invar" ab --seeds "$seeds" "$@" >out 2>err </dev/null || rc=$?
    ((rc == code)) || complain "ab $*: exit code $rc, expected $code" "$(cat out err)"
}

# field EXPRESSION: prints a Python expression over the answer `a` in `out`.
field() { python3 -c "import json, sys; a = json.load(open('out')); print($1)"; }

tiny_recipe 3 | sed 's/^rollout-batch-size.*/rollout-batch-size = 4/
    s/^n-samples.*/n-samples-per-prompt = 4/' >a.ini
printf '[eval]\neval-interval = 2\neval-prompt-data = max task:max\n' >>a.ini
printf '[optimizer]\nlr = 0.01\n' >>a.ini
printf 'include = a.ini\n[optimizer]\nlr = 0.02\nweight-decay = 0.5\n[perf]\nthreads = 2\n' >b.ini

# ---- different ---------------------------------------------------------------------------------
ab 1 a.ini b.ini
holds grep -q '^ab: ' err
holds grep -q '^A  *file .*, recipe a.ini$' out
holds [ "$(sed -n '/^keys that differ$/,/^$/p' out | grep -c ' -> ')" = 3 ]
holds grep -q '^  identity lr: 0.01 -> 0.02$' out
holds grep -q '^  identity weight-decay: 0.01 -> 0.5$' out
holds grep -q '^  free threads: 1 -> 2$' out
holds grep -q 'rollout/raw_reward' out
holds grep -q 'eval/max/' out
ab 1 a.ini b.ini --json --html page.html
holds "$here/ab_numbers.py" "$invar" out page.html >/dev/null
holds [ "$(field 'sorted(f["key"] for f in a["facts"] if f["is_key"])')" = \
    "['lr', 'threads', 'weight-decay']" ]
holds [ "$(field 'a["sides"]["a"]["recipe_named"], a["sides"]["b"]["recipe_named"]')" = \
    'a.ini b.ini' ]
names='[e["name"] for e in a["effects"] + a["pinned_equal"]]'
holds [ "$(field "$names.count('rollout/raw_reward')")" = 1 ]
# Pinned metrics come first, and they are rewards and evaluations.
holds [ "$(field '[e["pinned"] for e in a["effects"]] == sorted((e["pinned"] for e in a["effects"]),
    reverse=True)')" = True ]
holds [ "$(field 'all(e["name"].startswith(("eval/", "rollout/raw_reward", "rollout/reward/")) ==
    e["pinned"] for e in a["effects"] + a["pinned_equal"])')" = True ]
holds [ "$(field 'sum(e["pinned"] for e in a["effects"] + a["pinned_equal"]) >= 2')" = True ]

# ---- models of other shapes: there is no first differing tensor --------------------------------
seeds=1
{
    printf 'include = a.ini\n[model]\n'
    printf '%s\n' 'hidden-size = 32' 'num-layers = 2' 'ffn-hidden-size = 24'
} >model.ini
ab 1 a.ini model.ini
for change in 'hidden-size 16 -> 32' 'num-layers 1 -> 2' 'ffn-hidden-size 16 -> 24'; do
    holds grep -q "^different: the models have other shapes.* differ: .*$change" out
done
holds [ "$(grep -c '^first  ' out)" = 0 ]
ab 1 a.ini model.ini --json --html page.html
holds [ "$(field 'a["place"]')" = None ]
holds grep -q 'the models have other shapes' page.html
# One model in another number format is compared tensor by tensor.
printf 'include = a.ini\n[model]\ndtype = bf16\n' >format.ini
ab 1 a.ini format.ini
holds grep -q '^different: from step 0, point ' out

# ---- equal -------------------------------------------------------------------------------------
sed 's/^threads.*/threads = 2/' a.ini >c.ini
ab 0 a.ini c.ini
holds grep -q '^  free threads: 1 -> 2$' out
holds grep -q '^  rollout/raw_reward: equal in every bit$' out
cp a.ini same.ini
ab 0 a.ini same.ini
holds grep -q '^keys that differ: none$' out
# Both sides run on the same seeds: another seed in the second recipe is an error, not ignored.
printf 'include = a.ini\n[model]\nseed = 99\n' >seed.ini
expect 129 "B's has 99; both sides run on the same seeds: give --seed" a.ini seed.ini
ab 0 a.ini seed.ini --seed 99

# ---- rejected ----------------------------------------------------------------------------------
expect 129 'both sides are needed' a.ini
expect 129 'both sides are needed' a.ini b.ini --a HEAD
expect 129 'one recipe is in both trees' a.ini b.ini --a "$invar" --b "$invar" --own-recipe
expect 129 "unexpected argument 'c.ini'" a.ini b.ini c.ini
# If this program rejects a recipe, nothing runs.
sed '/^num-layers/d' a.ini >lacks.ini
expect 129 "lacks.ini: recipe: 'num-layers' is missing" a.ini lacks.ini
holds [ -z "$("$invar" ab a.ini lacks.ini 2>&1 >/dev/null | grep '^ab: ')" ]
expect 0 identical a.ini lacks.ini --num-layers 1
# If another program rejects a recipe, nothing is compared.
ab 125 a.ini lacks.ini --a "$invar" --b "$invar"
holds [ -z "$(grep 'that differ' out)" ]
expect 1 'lr: 0.01 -> 0.02' a.ini b.ini --a "$invar" --b "$invar"

echo "$checks checks"
exit $failed
