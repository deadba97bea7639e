#!/usr/bin/env bash
# hardening.sh INVAR FOLDER COMPILER - hardening of the program by linker and compiler.
#
# Reads the program with readelf and objdump: position-independent, full RELRO, no executable stack,
# stack protector, fortified calls, and control-flow protection of the architecture. Control: a
# small program that is built without all of these must fail every check. Commands that read no
# repository need no libgit2, and the others report that it is missing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 folder=$2 compiler=$3
rm -rf "$folder"
mkdir -p "$folder"
failed=0

# Patterns of lines of readelf, or of objdump of main.
declare -A checks=(
    [position-independent]='FLAGS_1.* PIE'
    [read-only relocations]='GNU_RELRO'
    [bound at start]='FLAGS_1.* NOW'
    [no executable stack]='GNU_STACK.* RW '
    [stack protector]='__stack_chk_fail'
    [fortified calls]='__(read|memcpy|memmove|snprintf|vsnprintf)_chk'
    [control flow]='\b(paciasp|bti|endbr64)\b' # hints: every CPU executes them
)

# says PROGRAM EXPECTED: checks that every pattern matches (0), or that none does (1).
says() {
    local check got
    {
        readelf -ldW "$1"
        readelf --dyn-syms -W "$1"
        objdump -d --disassemble=main "$1"
    } >"$folder/says.txt"
    for check in "${!checks[@]}"; do
        got=0
        grep -qE -- "${checks[$check]}" "$folder/says.txt" || got=1
        if ((got != $2)); then
            echo "$1: $check: $got, expected $2" >&2
            failed=1
        fi
    done
}

cat >"$folder/bare.c" <<'C'
#include <string.h>
int main(int argc, char **argv) { char b[64]; memcpy(b, argv[0], (unsigned)argc); return b[0]; }
C
bare=(-O1 -no-pie -fno-pie -fno-stack-protector -U_FORTIFY_SOURCE)
for option in norelro lazy execstack; do
    bare+=(-Xlinker -z -Xlinker "$option")
done
case $(uname -m) in
aarch64) bare+=(-mbranch-protection=none) ;;
x86_64) bare+=(-fcf-protection=none) ;;
esac
"$compiler" "${bare[@]}" "$folder/bare.c" -o "$folder/bare" 2>/dev/null
says "$folder/bare" 1
says "$invar" 0

# ---- libgit2 -------------------------------------------------------------------------------------

if readelf -dW "$invar" | grep NEEDED | grep -E 'git2|mpi'; then
    echo "the program is linked with a library that it loads on demand" >&2
    failed=1
fi
mkdir "$folder/none"
soname=$(grep -oaE 'libgit2\.so\.[0-9.]+' "$invar")
: >"$folder/none/$soname"
export LD_LIBRARY_PATH=$folder/none
if ! "$invar" version >/dev/null || ! "$invar" ledger ls >/dev/null 2>&1; then
    echo "a verb that needs no libgit2 does not work without it" >&2
    failed=1
fi
for words in 'bisect --good HEAD~1 --run true' 'bisect log' 'ab --a HEAD --b . recipes/bf16.ini'; do
    rc=0
    read -ra list <<<"$words"
    said=$("$invar" "${list[@]}" --work "$folder/work" 2>&1) || rc=$?
    if ((rc != 2)) || [[ $said != "invar: this verb needs libgit2"* ]]; then
        echo "invar $words without libgit2: $rc: $said" >&2
        failed=1
    fi
done
exit "$failed"
