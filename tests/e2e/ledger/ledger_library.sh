#!/usr/bin/env bash
# ledger_library.sh BUILD FOLDER - the ledger as a library: installed, compiled against, used.
#
# Installs the build BUILD below FOLDER, compiles the example with only the C compiler and
# pkg-config, and checks its ledgers with the installed program and with SQLite's shell.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD build=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/scratch"

# expect_sql RUN SQL EXPECTED: compares the result of SQLite's shell on the run's ledger.
expect_sql() {
    local answer
    answer=$(sqlite3 -readonly "$1/ledger.db" "$2")
    [[ $answer == "$3" ]] || complain "$1: $2" "  answered $answer, expected $3"
}

# The prefix is another one than configured, and is moved: no installed file may contain its own
# path.
cmake --install "$build" --prefix "$folder/scratch/first" >/dev/null
mv "$folder/scratch/first" "$folder/prefix"
cd "$folder"
for file in bin/invar lib/invar/invar.build{,.diff} lib/libinvar_ledger.a \
    lib/pkgconfig/invar-ledger.pc \
    include/invar/{ledger/ledger,base/status,base/hash,base/pool}.h; do
    [[ -f prefix/$file ]] || complain "prefix/$file was not installed"
done
! grep -rlF -e "$tree" -e "$build" prefix/lib/pkgconfig prefix/include ||
    complain "the files above name the folder they were built in"

export PKG_CONFIG_PATH=$folder/prefix/lib/pkgconfig
read -ra cflags <<<"$(pkg-config --cflags invar-ledger)"
read -ra libs <<<"$(pkg-config --libs invar-ledger)"
cc -std=c11 -Wall -Wextra -Werror "${cflags[@]}" "$tree/ledger/example/trainer.c" \
    "${libs[@]}" -o trainer

# The header compiles alone, and in C++.
cat >header.cc <<'HEADER'
#include <ledger/ledger.h>
int main()
{
    invar_ledger *ledger = nullptr;
    invar_ledger_options options{};
    invar_status status = invar_ledger_open(&ledger, "no such file", &options);
    invar_ledger_close(ledger);
    return status == INVAR_E_NOTFOUND ? 0 : 1;
}
HEADER
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "${cflags[@]}" header.cc "${libs[@]}" -o header
./header || complain "the header does not work from C++"
echo '#include <ledger/ledger.h>' |
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror "${cflags[@]}" -fsyntax-only -xc -

# An interrupted and resumed run has the chain of an uninterrupted one.
mkdir twice once
(cd twice && ../trainer 6 && ../trainer 12)
(cd once && ../trainer 12) >log
grep -qx 'wrote ledger.db; its last step is 11' log || complain "the trainer says:" "$(cat log)"
if (cd once && ../trainer abc) 2>log.usage || ! grep -q '^usage: ' log.usage; then
    complain "the trainer takes anything for a number of steps"
fi
next=$(sed -n 's/^next: //p' log)
[[ $next && $(cd once && PATH="$PWD/../prefix/bin:$PATH" sh -c "$next") == *"toy"* ]] ||
    complain "the next command of the trainer: $next"
expect_sql twice "SELECT count(*), min(after_step), max(after_step) FROM segment" "2|-1|3"
expect_sql twice "SELECT group_concat(step) FROM (SELECT step FROM step GROUP BY step
           HAVING count(*) = 2 AND count(DISTINCT chain) = 1 ORDER BY step)" "4,5"
expect_sql twice "SELECT count(*), max(step) FROM timeline" "12|11"
expect_sql twice "SELECT group_concat(step || state) FROM checkpoint" \
    "3intent,3complete,7intent,7complete,11intent,11complete"
expect_sql twice "SELECT count(*) FROM metrics WHERE name = 'train/loss' AND value > 0" 12
expect_sql twice "SELECT count(*) FROM fact WHERE scope = 'host' AND key = 'cpu'" 2
expect_sql once "ATTACH 'file:twice/ledger.db?mode=ro' AS other;
          SELECT count(*) FROM main.timeline a JOIN other.timeline b USING(step, chain)" 12
# Control: the two ledgers differ.
expect_sql once "SELECT count(*) FROM segment" 1

# A checkpoint of another run is rejected.
cp twice/checkpoint wrong.checkpoint
printf 'x' | dd of=wrong.checkpoint bs=1 seek=8 conv=notrunc status=none # a byte of its chain
cp -r twice mixed
cp wrong.checkpoint mixed/checkpoint
if (cd mixed && ../trainer 16) 2>log || ! grep -q "checkpoint" log; then
    complain "a checkpoint with another chain was accepted:" "$(cat log)"
fi
expect_sql mixed "SELECT count(*), max(step) FROM timeline" "12|11"

# The installed program agrees, and detects a change of one letter.
for run in twice once mixed; do
    prefix/bin/invar ledger verify "$run/ledger.db" >log 2>&1 ||
        complain "verify $run:" "$(cat log)"
done
cp -r once bad
at=$(grep -abo -m 1 train/loss bad/ledger.db | head -n 1 | cut -d: -f 1)
printf 'T' | dd of=bad/ledger.db bs=1 seek="$at" conv=notrunc status=none
rc=0
prefix/bin/invar ledger verify bad/ledger.db >log 2>&1 || rc=$?
[[ $rc == 2 && $(<log) == *CORRUPT* ]] || complain "verify bad: exit code $rc:" "$(cat log)"

((failed)) || echo "all as expected"
exit "$failed"
