#!/usr/bin/env bash
# include.sh INVAR FOLDER - recipes that include others, in train, ci, ab and bisect.
#
# All commands use the merged keys. The files of a commit are read from that commit, and a recorded
# recipe has no includes.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/tree/base" && cd "$folder/tree" || exit 2
export XDG_CACHE_HOME=$folder/cache
as_ada
# shellcheck disable=SC2016 # expanded by the shell that builds
build='cp invar.sh "$INVAR_BUILD/invar"'

tiny_recipe 2 >base/tiny.ini
printf 'include = base/tiny.ini\n[optimizer]\nlr = 0.25\n[rollout]\nnum-rollout = 3\n' >own.ini

# ---- train ---------------------------------------------------------------------------------------
identity() {
    "$invar" train "$@" --dry-run | sed -n 's/^identity  //p'
}
expect_verb=(train)
sed -i 's/^task-size = .*/task-size = x/' base/tiny.ini
expect 129 'base/tiny.ini:10: task-size' own.ini --dry-run
sed -i 's/^task-size = .*/task-size = 8/' base/tiny.ini
own=$(identity own.ini) plain=$(identity base/tiny.ini)
holds [ "${#own}:${#plain}" = 32:32 ]
holds [ "$own" = "$(identity base/tiny.ini --lr 0.25)" ]
holds [ "$own" != "$plain" ]
expect 0 '3 executed' own.ini --run "$folder/made" --no-report
# A recorded recipe does not need the included file.
mv base/tiny.ini base/away.ini
expect_verb=()
expect 0 'identical' replay "$folder/made" --step 1
for verb in 'train --dry-run' plan 'ci record' 'ab --a . --b .'; do
    # shellcheck disable=SC2086
    expect 2 'own.ini:1: include: base/tiny.ini' $verb own.ini
done
mv base/away.ini base/tiny.ini
printf 'include = ../own.ini\n' >base/loop.ini
printf 'include = base/loop.ini\n' >loop.ini
sed -i '1i include = loop.ini' own.ini
expect 129 'base/loop.ini:1: include: a file cannot include itself' train own.ini --dry-run
sed -i 1d own.ini

# ---- ci: a change of the included file is detected ----------------------------------------------
mkdir cases && sed 's|base/|../base/|' own.ini >cases/own.ini
expect 0 'own' ci record cases/own.ini
expect 0 'own' ci check --cases cases
sed -i 's/^task-size = .*/task-size = 9/' base/tiny.ini
expect 4 'identity' ci check --cases cases
sed -i 's/^task-size = .*/task-size = 8/' base/tiny.ini
expect 0 'own' ci check --cases cases

# ---- ab: each side's own files ------------------------------------------------------------------
printf '#!/bin/sh\nexec "%s" "$@"\n' "$invar" >invar.sh && chmod +x invar.sh
git init -q . && git add -A && git commit -qm one && git tag one
sed -i 's/^hidden-size = .*/hidden-size = 32/' base/tiny.ini
git commit -qam two && git tag two
expect_verb=(ab --build "$build" --seeds 1 --steps 2)
expect 1 'hidden-size: 16 -> 32' --a one --b two own.ini --own-recipe
expect 0 'identical' --a one --b two own.ini

# ---- bisect: the recipe is read once at the start; programs do not see includes ----------------
cat >invar.sh <<END
#!/bin/sh
grep -q '^include' "\$2" && exit 9
exec "$invar" "\$@" --weight-decay 0.5
END
git commit -qam three && git tag three
cat >invar.sh <<END
#!/bin/sh
grep -q '^include' "\$2" && exit 9
exec "$invar" "\$@"
END
git commit -qam four && git tag four
expect_verb=()
expect 0 "found: $(git rev-parse --short=12 three)" bisect --build "$build" --good two \
    --bad three own.ini
expect 0 'hidden-size = 32' bisect log

echo "$checks checks"
exit $failed
