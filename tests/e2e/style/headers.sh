#!/usr/bin/env bash
# headers.sh FLAG ... - every header compiles alone, and twice, as C11 and (except tests) as C++17.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

# compile LANGUAGE COMPILER HEADER FLAG ...: checks the syntax of a file that includes the header
# twice.
compile() {
    printf '#include "%s"\n#include "%s"\nextern int invar_not_empty;\n' "$3" "$3" |
        "$2" -x "$1" "${@:4}" -I. -Wall -Wextra -Wpedantic -Werror -fsyntax-only - ||
        { echo "$3 does not compile alone as $1" >&2 && return 1; }
}

cuda=1
if ! echo '#include <cuda.h>' | gcc -x c -fsyntax-only - 2>/dev/null; then
    echo "no CUDA headers here: those of the CUDA backend are left out"
    cuda=0
fi
code=0 count=0
while read -r header; do
    # This header poisons names for the rest of a file: no header includes it, and no file includes
    # it twice.
    if [[ $header == base/invar_banned.h ]]; then
        continue
    fi
    if [[ $header == kernels-deterministic/cuda/* ]] && ((!cuda)); then
        continue
    fi
    compile c gcc "$header" -std=c11 -D_POSIX_C_SOURCE=200809L "$@" || code=1
    if [[ $header != tests/* ]]; then
        compile c++ g++ "$header" -std=c++17 "$@" || code=1
    fi
    count=$((count + 1))
done < <(scripts/sources '*.h')
echo "$count headers"
exit "$code"
