#!/usr/bin/env bash
# archive.sh INVAR FOLDER - results of ci and bisect in ledgers, and the queries over them:
# ci-history, golden-drift and bisect-report.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/tree" && cd "$folder" || exit 2
export XDG_CACHE_HOME=$folder/cache
as_ada

# rows QUERY ARGUMENT ...: prints the rows of the result without the header, or the exit code if it
# is not 0.
rows() {
    local answer
    answer=$("$invar" ledger query "$@" --csv 2>/dev/null) || { echo "exit code $?"; return; }
    sed 1d <<<"$answer"
}

# ---- ci ------------------------------------------------------------------------------------------
tiny_recipe 2 >a.ini
cp a.ini b.ini
for case in a b; do
    expect 0 "$case" ci record $case.ini
done
expect 0 same ci check a.ini b.ini --archive ci.db
expect 0 same ci check a.ini b.ini --archive ci.db
holds [ "$(rows ci-history --ledger ci.db | wc -l)" = 4 ]
holds [ "$(rows golden-drift --ledger ci.db | wc -l)" = 0 ]
# Another golden of the same recipe is a drift, but only of this case.
sed -i 's/^lr.*//; $a [optimizer]\nlr = 0.5' b.ini
expect 0 b ci record b.ini --force
expect 0 same ci check a.ini b.ini --archive ci.db
holds [ "$(rows golden-drift --ledger ci.db | cut -d, -f2)" = b ]
holds [ "$(rows golden-drift --ledger ci.db --case a | wc -l)" = 0 ]
holds [ "$(rows ci-history --ledger ci.db --case b | wc -l)" = 3 ]
holds [ "$(rows ci-history --ledger ci.db | cut -d, -f7 | sort -u)" = same ]
# --case is an exact name unless it contains a %; a name that was never checked is an error.
cp a.ini m_x.ini && cp a.ini mAx.ini
for case in m_x mAx; do
    expect 0 "$case" ci record $case.ini
done
expect 0 same ci check m_x.ini mAx.ini --archive names.db
holds [ "$(rows ci-history --ledger names.db --case m_x | cut -d, -f5)" = m_x ]
holds [ "$(rows ci-history --ledger names.db --case m_% | cut -d, -f5)" = m_x ]
holds [ "$(rows ci-history --ledger names.db --case m% | wc -l)" = 2 ]
for query in ci-history golden-drift; do
    expect 129 "no case 'm_y' (did you mean 'm_x'?)" ledger query $query --ledger names.db \
        --case m_y
done
expect 0 'none found' ledger query golden-drift --ledger names.db --case m_x
expect 6 'is no answer of a bisect' ledger query bisect-report --run names.db
# Recipes with one name in two folders are two cases, also if each is checked alone; their paths are
# relative to the work tree.
git init -q . && mkdir -p sub && cp b.ini sub/m_x.ini
expect 0 sub/m_x.golden ci record sub/m_x.ini
expect 0 'sub/m_x' ci check m_x.ini sub/m_x.ini --archive two.db
expect 0 same ci check sub/m_x.ini --archive two.db
expect 0 same ci check m_x.ini --archive two.db
holds [ "$(rows golden-drift --ledger two.db | wc -l)" = 0 ]
holds [ "$(rows ci-history --ledger two.db | cut -d, -f5 | sort | tr '\n' ' ')" = \
    'm_x m_x m_x sub/m_x ' ]
holds [ "$(rows ci-history --ledger two.db | cut -d, -f6 | sort -u | tr '\n' ' ')" = \
    'm_x.ini sub/m_x.ini ' ]
# The current folder does not matter.
cd sub && expect 0 same ci check m_x.ini --archive ../tree.db && cd ..
holds [ "$(rows ci-history --ledger tree.db | cut -d, -f6)" = sub/m_x.ini ]
rm -rf .git
# The recorded commit is that of the program that ran, not of the program that compares.
mkdir other && cp "$invar" other/invar
commit=0123456789abcdef0123456789abcdef01234567
sed "s/^commit = .*/commit = $commit/; s/^dirty = .*/dirty = clean/" "$invar.build" \
    >other/invar.build
expect 0 same ci check a.ini --program other/invar --archive program.db
holds [ "$(rows ci-history --ledger program.db | cut -d, -f3,4)" = "$commit,clean" ]
own=$(sed -n 's/^commit = //p' "$invar.build")
holds [ "$(rows ci-history --ledger program.db | tr -d '\r' | cut -d, -f11)" = "$own" ]
holds [ "$(rows ci-history --ledger two.db | cut -d, -f3 | sort -u)" = "$own" ]
# Cases without a verdict are archived, too.
cp a.golden c.golden && cp a.points c.points && sed 's/^task-size.*/task-size = 9/' a.ini >c.ini
expect 4 obsolete ci check c.ini --archive ci.db
holds [ "$(rows ci-history --ledger ci.db --case c | cut -d, -f7)" = obsolete ]
expect 0 '' ledger verify ci.db
# A file that is not a ledger is rejected before anything runs.
echo mine >mine
expect 2 mine ci check a.ini --archive mine
holds [ "$(cat mine)" = mine ]

# ---- bisect --------------------------------------------------------------------------------------
cd tree && git init -q .
for number in 0 1 2 3; do
    printf '#!/bin/sh\nexec "%s" "$@" %s\n# %s\n' "$invar" \
        "$( ((number < 2)) || echo --weight-decay 0.5)" $number >invar.sh
    git add -A && git commit -qm "commit $number"
done
found=$(git rev-parse --short=12 HEAD~1)
# shellcheck disable=SC2016 # expanded by the shell that builds
build='cp invar.sh "$INVAR_BUILD/invar" && chmod +x "$INVAR_BUILD/invar"'
for _ in 1 2; do # the second call replaces the result of the first
    expect 0 "found: $found" bisect --good HEAD~3 --build "$build" ../a.ini
    set -- "$folder"/cache/invar/*/bisects/*/answer.db
    holds [ $# = 1 ]
    holds [ "$(sqlite3 -readonly "$1" 'SELECT count(*) FROM run')" = 1 ]
done
expect 0 '' ledger verify "$1"
holds [ "$(rows bisect-report --run "$1" | grep ',changed it,' | cut -d, -f3,4)" = \
    "$found,commit 2" ]
holds [ "$(rows bisect-report --run "$1" | grep -c ',good end,')" = 1 ]
holds [ ! -e "${1%/*}/new" ]
# Ledgers of several results can be merged and queried.
expect 0 '' ledger import "$1" ../ci.db --into all.db
holds [ "$(rows ci-history --ledger all.db | wc -l)" = 7 ]

echo "$checks checks"
exit $failed
