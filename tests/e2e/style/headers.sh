#!/usr/bin/env bash
# headers.sh FLAG ... - every header compiles alone, and twice, as C11, and all headers but those of
# tests compile together as C++17.
#
# The build has shown of a header that it compiles alone if a .c file includes it before any other.
# The compiler runs for each of the others, except those of tests. All headers but those of tests
# are compiled together, each twice. With INVAR_TEST_FULL=1 every header is compiled alone and
# twice. Control: a header that needs another one, and one without an include guard, are refused.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

flags=("$@")
warnings=(-I. -Wall -Wextra -Wpedantic -Werror -fsyntax-only)

# c11 TEXT: compiles the text as C11.
c11() {
    gcc -x c -std=c11 -D_POSIX_C_SOURCE=200809L "${flags[@]}" "${warnings[@]}" - \
        <<<"$1"$'\nextern int invar_not_empty;'
}

cuda=1
if ! echo '#include <cuda.h>' | gcc -x c -fsyntax-only - 2>/dev/null; then
    echo "no CUDA headers here: those of the CUDA backend are left out"
    cuda=0
fi
# The first header of each .c file.
declare -A built=()
full=${INVAR_TEST_FULL:-}
if [[ ! $full ]]; then
    while read -r header; do
        built[$header]=1
    done < <(scripts/sources '*.c' | xargs -d '\n' grep -hm1 '^#include' |
        sed -n 's/^#include "\(.*\)"/\1/p')
fi
code=0 count=0 alone=0 together=""
while read -r header; do
    # This header poisons names for the rest of a file: no header includes it, and no file includes
    # it twice.
    if [[ $header == base/invar_banned.h ]]; then
        continue
    fi
    if [[ $header == kernels-deterministic/cuda/* ]] && ((!cuda)); then
        continue
    fi
    line="#include \"$header\""$'\n'
    if [[ $full || ($header != tests/* && -z ${built[$header]:-}) ]]; then
        alone=$((alone + 1))
        if ! c11 "$line$line"; then
            echo "$header does not compile alone" >&2
            code=1
        fi
    fi
    if [[ $header != tests/* ]]; then
        together+=$line
    fi
    count=$((count + 1))
done < <(scripts/sources '*.h')
if ! c11 "$together$together"; then
    echo "the headers do not compile together and twice as C11" >&2
    code=1
fi
if ! g++ -x c++ -std=c++17 "${flags[@]}" "${warnings[@]}" - <<<"$together"; then
    echo "the headers do not compile as C++17" >&2
    code=1
fi
if c11 'size_t invar_sample(void);' 2>/dev/null; then
    echo "control: a header that needs another one was not refused" >&2
    code=1
fi
if c11 $'struct invar_sample { int x; };\nstruct invar_sample { int x; };' 2>/dev/null
then
    echo "control: a header without an include guard was not refused" >&2
    code=1
fi
if ((count < 100 || alone < 10)); then
    echo "only $count headers were found, $alone of them to compile alone" >&2
    code=1
fi
echo "$count headers, $alone compiled alone"
exit "$code"
