#!/usr/bin/env bash
# headers.sh FLAG ... - every header compiles alone, and twice, as C11, and all headers but those of
# tests compile together as C++17.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

warnings=(-I. -Wall -Wextra -Wpedantic -Werror -fsyntax-only)

cuda=1
if ! echo '#include <cuda.h>' | gcc -x c -fsyntax-only - 2>/dev/null; then
    echo "no CUDA headers here: those of the CUDA backend are left out"
    cuda=0
fi
code=0 count=0 together=""
while read -r header; do
    # This header poisons names for the rest of a file: no header includes it, and no file includes
    # it twice.
    if [[ $header == base/invar_banned.h ]]; then
        continue
    fi
    if [[ $header == kernels-deterministic/cuda/* ]] && ((!cuda)); then
        continue
    fi
    if ! printf '#include "%s"\n#include "%s"\nextern int invar_not_empty;\n' "$header" "$header" |
        gcc -x c -std=c11 -D_POSIX_C_SOURCE=200809L "$@" "${warnings[@]}" -; then
        echo "$header does not compile alone" >&2
        code=1
    fi
    if [[ $header != tests/* ]]; then
        together+="#include \"$header\""$'\n'
    fi
    count=$((count + 1))
done < <(scripts/sources '*.h')
if ! g++ -x c++ -std=c++17 "$@" "${warnings[@]}" - <<<"$together"; then
    echo "the headers do not compile as C++17" >&2
    code=1
fi
if ((count < 100)); then
    echo "only $count headers were found" >&2
    code=1
fi
echo "$count headers"
exit "$code"
