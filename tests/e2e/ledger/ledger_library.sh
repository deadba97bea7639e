#!/usr/bin/env bash
# ledger_library.sh BUILD FOLDER - the ledger as a library: installed, compiled against, used.
#
# Installs the build BUILD below FOLDER, compiles the example with nothing but the C compiler and
# pkg-config, and looks at what it wrote with the installed program and with SQLite's shell.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD build=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/scratch"

# ask RUN SQL EXPECTED: what SQLite's shell answers about the run's ledger.
ask() {
    local answer
    answer=$(sqlite3 -readonly "$1/ledger.db" "$2")
    [[ $answer == "$3" ]] || complain "$1: $2" "  answered $answer, expected $3"
}

# somewhere else than where it was configured for, then moved: nothing in it may know its place
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

# the header alone, and from C++
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

# a run that is interrupted and resumed computes what one that is not computes
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
ask twice "SELECT count(*), min(after_step), max(after_step) FROM segment" "2|-1|3"
ask twice "SELECT group_concat(step) FROM (SELECT step FROM step GROUP BY step
           HAVING count(*) = 2 AND count(DISTINCT chain) = 1 ORDER BY step)" "4,5"
ask twice "SELECT count(*), max(step) FROM timeline" "12|11"
ask twice "SELECT group_concat(step || state) FROM checkpoint" \
    "3intent,3complete,7intent,7complete,11intent,11complete"
ask twice "SELECT count(*) FROM metrics WHERE name = 'train/loss' AND value > 0" 12
ask twice "SELECT count(*) FROM fact WHERE scope = 'host' AND key = 'cpu'" 2
ask once "ATTACH 'file:twice/ledger.db?mode=ro' AS other;
          SELECT count(*) FROM main.timeline a JOIN other.timeline b USING(step, chain)" 12
# the control: the two ledgers are not simply the same
ask once "SELECT count(*) FROM segment" 1

# a checkpoint of another run is refused
cp twice/checkpoint wrong.checkpoint
printf 'x' | dd of=wrong.checkpoint bs=1 seek=8 conv=notrunc status=none # in its chain
cp -r twice mixed
cp wrong.checkpoint mixed/checkpoint
if (cd mixed && ../trainer 16) 2>log || ! grep -q "checkpoint" log; then
    complain "a checkpoint with another chain was accepted:" "$(cat log)"
fi
ask mixed "SELECT count(*), max(step) FROM timeline" "12|11"

# the installed program agrees, and sees a single letter that changes
for run in twice once mixed; do
    prefix/bin/invar ledger verify "$run/ledger.db" >log 2>&1 ||
        complain "verify $run:" "$(cat log)"
done
cp -r once bad
at=$(grep -abo -m 1 train/loss bad/ledger.db | head -n 1 | cut -d: -f 1)
printf 'T' | dd of=bad/ledger.db bs=1 seek="$at" conv=notrunc status=none
! prefix/bin/invar ledger verify bad/ledger.db >log 2>&1 || complain "verify bad:" "$(cat log)"

((failed)) || echo "all as expected"
exit "$failed"
